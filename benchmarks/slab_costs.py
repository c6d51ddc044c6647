"""A model of what cutting a field over cards costs: bytes, operations, time. `python -m benchmarks.slab_costs` prints it.

Nothing here is measured. Assumed are data-sheet rates of H200 cards, NVLink within a host of eight, and a network of 400 Gbit/s
a card. A layer is limited by memory traffic, each value read once and written once; an FFT by three such passes, one an axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from turbofno_ops._exchange import LATE_SHARE
from turbofno_ops.dispatch import fft_flops, gemm_flops
from turbofno_ops.distributed.fft import _MOST_PIECES, _PIECE_BYTES

MEMORY = 4.8e12  # bytes/s
CARDS_A_HOST = 8


@dataclass(frozen=True)
class Link:
    """A connection of each card: bytes/s in one direction, and seconds until a collective moves its first byte."""

    rate: float
    latency: float


NVLINK = Link(450e9, 20e-6)
NETWORK = Link(50e9, 40e-6)


def link(cards: int) -> Link:
    """The slowest link between the cards."""
    return NVLINK if cards <= CARDS_A_HOST else NETWORK


@dataclass(frozen=True)
class Layer:
    """A Fourier layer of a cubic grid: channels, points of an axis, modes of the last axis, twice as many on the others."""

    channels: int
    points: int
    modes: int

    @property
    def _kept(self) -> tuple[int, int, int]:
        return 2 * self.modes, 2 * self.modes, self.modes

    def sent(self, cards: int) -> float:
        """Bytes that a card sends: the kept modes, by an all-reduce."""
        return 2 * (cards - 1) / cards * 8 * self.channels * math.prod(self._kept)

    def operations(self, cards: int) -> float:
        """Floating point operations of a card: transforms, product of modes, pointwise map."""
        size = (self.points,) * 3
        transforms = 2 * self.channels * gemm_flops(self._kept, size)
        pointwise = 2 * self.channels**2 * math.prod(size)
        return (transforms + pointwise) / cards + 8 * self.channels**2 * math.prod(self._kept)

    def seconds(self, cards: int) -> tuple[float, float]:
        """Seconds of computing and of communication."""
        computing = 2 * 4 * self.channels * self.points**3 / cards / MEMORY
        if cards == 1:
            return computing, 0.0
        over = link(cards)
        return computing, self.sent(cards) / over.rate + over.latency


@dataclass(frozen=True)
class Fft:
    """A complex FFT of a cubic grid in single precision, natural to transposed order, and its inverse."""

    points: int

    def sent(self, cards: int) -> float:
        """Bytes that a card sends: all of its slab that it does not keep, there and back."""
        return 2 * (cards - 1) / cards * 8 * self.points**3 / cards

    def operations(self, cards: int) -> float:
        """Floating point operations of a card."""
        return 2 * 2 * fft_flops((self.points,) * 3) / cards

    def seconds(self, cards: int) -> tuple[float, float]:
        """Seconds of computing, and of what else an exchange takes. Two of three transforms come before it."""
        transform = 2 * 2 * 8 * self.points**3 / cards / MEMORY
        computing = 3 * transform
        if cards == 1:
            return computing, 0.0
        over = link(cards)
        exchange = self.sent(cards) / over.rate
        pieces = max(1, min(_MOST_PIECES, 8 * self.points**3 // cards // _PIECE_BYTES))
        late = LATE_SHARE if pieces > 1 else 0.0
        computed, sent = 2 * transform / pieces, (1 - late) * exchange / pieces
        # once other processes' columns are packed, by the second of two passes, a piece travels beside the rest of it
        beside = computed / 2 * (1 / cards + late * (1 - 1 / cards))
        ahead = max(
            pieces * computed, computed - beside + (pieces - 1) * max(computed, sent) + sent
        )
        after = max((1 - late) * transform, late * exchange) + late * transform
        return computing, ahead + after - computing + 2 * (pieces + (late > 0)) * over.latency


def table(name: str, cost: Layer | Fft, cards: tuple[int, ...]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [
        f"| {name}, cards | link | sent a card, MB | operations a card, 1e9 | computing, ms | exposed communication, ms | efficiency |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    alone = sum(cost.seconds(1))
    for count in cards:
        computing, exposed = cost.seconds(count)
        over = "" if count == 1 else "NVLink" if link(count) is NVLINK else "network"
        sent = cost.sent(count) / 1e6
        efficiency = alone / (count * (computing + exposed))
        lines.append(
            f"| {count} | {over} | {sent:.3g} | {cost.operations(count) / 1e9:.3g} | {1e3 * computing:.3g} | "
            f"{1e3 * exposed:.2g} | {efficiency:.0%} |"
        )
    return lines


def tables() -> str:
    """All tables, as in docs/explanation/slabs.md."""
    cards = (1, 2, 4, 8, 16, 64)
    parts = [
        table("layer C32 512^3 m16", Layer(32, 512, 16), cards),
        table("layer C20 256^3 m24", Layer(20, 256, 24), cards),
        table("FFT 1024^3 and back", Fft(1024), cards),
    ]
    return "\n\n".join("\n".join(part) for part in parts)


if __name__ == "__main__":
    print(tables())
