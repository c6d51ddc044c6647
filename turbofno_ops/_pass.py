"""A chain on one grid: the buffer it reads, how a batch gets there, and the pass over all stages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from turbofno_ops._activations import activate
from turbofno_ops._channels import mode_major, pointwise
from turbofno_ops._lower import Chain, Mix, Tile
from turbofno_ops._stages import AddMap, Held, Operands, Results, Source, Stages
from turbofno_ops.description import PaddingMode, PointwiseMap, Size

MakeStages = Callable[[Size, Size, Size], Stages]
"""Of a grid, the modes that its mix keeps, and the grid that the mix gives."""


@dataclass(frozen=True)
class Frame:
    """A grid and the points of padding (before, after) its axes."""

    grid: Size
    padding: tuple[tuple[int, int], ...]
    mode: PaddingMode

    @classmethod
    def of(cls, chain: Chain, size: Size) -> Frame:
        """The frame that a chain puts around a grid."""
        pairs = () if chain.padding is None else tuple(chain.padding(size))
        return cls(size, pairs or ((0, 0),) * len(size), chain.padding_mode)

    @property
    def padded(self) -> Size:
        """Points of all axes with their padding."""
        return tuple(
            n + before + after for n, (before, after) in zip(self.grid, self.padding, strict=True)
        )

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """[.., *grid] -> [.., *padded]."""
        if self.padded == self.grid:
            return x
        # F.pad counts from the last axis
        amounts = [amount for pair in reversed(self.padding) for amount in pair]
        return F.pad(x, amounts, mode="constant" if self.mode == "zeros" else self.mode)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """The view without padding of a padded [batch, channels, *padded]."""
        if self.padded == self.grid:
            return x
        for axis, (n, (before, _)) in enumerate(zip(self.grid, self.padding, strict=True), start=2):
            x = x.narrow(axis, before, n)
        return x


class Leg(NamedTuple):
    """A spectral product between two grids: its terms' weights [*modes, c_in, c_out] and phases, as in `SpectralTerm`."""

    size: Size
    out_size: Size
    weights: tuple[torch.Tensor, ...]
    phases: tuple[torch.Tensor | None, ...]

    @property
    def modes(self) -> Size:
        """Kept modes of all terms."""
        return tuple(self.weights[0].shape[:-2])


def size_after(frame: Frame, on_grid: list[Leg]) -> Size:
    """The grid of the network's output."""
    return frame.grid if frame.padded != frame.grid else on_grid[-1].out_size


def legs(chain: Chain, size: Size, *, shapes_only: bool = False) -> list[Leg]:
    """The products of a chain on the padded grid `size`, with weights on the meta device for `shapes_only`."""
    found = []
    for mix in chain.items:
        if isinstance(mix, Mix):
            found.append(_leg(mix, size, shapes_only=shapes_only))
            size = found[-1].out_size
    return found


def _leg(mix: Mix, size: Size, *, shapes_only: bool) -> Leg:
    out_size = size if mix.out_size is None else mix.out_size(size)
    weight = mix.weight.to("meta") if shapes_only else mix.weight
    if mix.terms is None:
        return Leg(size, out_size, (weight,), (None,))
    n_dim = len(size)
    channels_first = weight.permute(n_dim, n_dim + 1, *range(n_dim))
    weights, phases = zip(*mix.terms(channels_first, size, out_size), strict=True)
    return Leg(size, out_size, tuple(mode_major(w).contiguous() for w in weights), phases)


class Pass:
    """A chain for the fields of one grid.

    Its buffers hold x less its mean and, written once, the channels that depend on the grid alone:
    positions, ones, and zeros where the domain is padded by zeros.
    """

    def __init__(
        self,
        chain: Chain,
        size: Size,
        make_stages: MakeStages,
        *,
        device: torch.device,
    ) -> None:
        self._chain, self._frame = chain, Frame.of(chain, size)
        broadcast = (-1, *[1] * chain.n_dim)
        self._shift, self._scale = (
            per_channel.view(broadcast)
            if per_channel is not None and per_channel.ndim == 1
            else per_channel
            for per_channel in (chain.shift, chain.scale)
        )
        constant = [torch.empty(0, *size, dtype=torch.float64)]
        if chain.positions is not None:
            constant.append(chain.positions(size))
        if chain.ones:
            constant.append(torch.ones(1, *size, dtype=torch.float64))
        self._constant = torch.cat(constant).to(device, chain.dtype)
        self._framed = chain.padding_mode == "zeros" and not chain.lifting
        self._legs = legs(chain, self._frame.padded)
        self._factors = [
            [_factor(phase, weight) for phase, weight in zip(leg.phases, leg.weights, strict=True)]
            for leg in self._legs
        ]
        self._stages = _stages_of(self._legs, make_stages)

    @property
    def nbytes(self) -> int:
        """Of the channels and weights that are this grid's own."""
        given = {mix.weight.data_ptr() for mix in self._chain.items if isinstance(mix, Mix)}
        weights = [weight for leg in self._legs for weight in leg.weights]
        own = sum(weight.nbytes for weight in weights if weight.data_ptr() not in given)
        return self._constant.nbytes + own

    def buffer(self, batch: int) -> torch.Tensor:
        """Room for a batch, everything in place but x: [batch, channels, *grid], padded if by zeros."""
        shape = self._frame.padded if self._framed else self._frame.grid
        channels = self._chain.in_channels + self._constant.shape[0]
        # zeros also because a batch may fill a part only, and the rest is computed all the same
        buffer = self._constant.new_zeros(batch, channels, *shape)
        self._inside(buffer)[:, self._chain.in_channels :] = self._constant
        return buffer

    def slot(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer's view that x goes to, [batch, in_channels, *grid]."""
        return self._inside(buffer)[:, : self._chain.in_channels]

    def load(self, x: torch.Tensor, slot: torch.Tensor) -> None:
        """Write x, in physical units, to as many elements of a slot."""
        if self._shift is None:
            slot.copy_(x)
        else:
            torch.sub(x, self._shift, out=slot)
        if self._scale is not None:
            slot.mul_(self._scale)

    def run(self, buffer: torch.Tensor) -> torch.Tensor:
        """The network's output in physical units: [batch, out_channels, *out_size], a view where padding was cut off."""
        chain = self._chain
        y = self._frame.inside(self._chained(buffer))
        if chain.tail:
            y = _mapped(y.to(chain.dtype), chain.tail, chain.tail_activation)
        if chain.rescaling is not None:
            y = y * chain.rescaling.std + chain.rescaling.mean
        return y

    def _chained(self, buffer: torch.Tensor) -> torch.Tensor:
        """The result of the last tile program, in plain torch's order."""
        operands, count = self._begun(buffer), 0
        wrote = Results()
        for item in self._chain.items:
            stages = self._stages[count]
            if isinstance(item, Tile):
                wrote = stages.tile(item.steps, operands)
                x = operands.x if wrote.x is None else wrote.x
                operands = Operands(x, wrote.held, wrote.moments)
            else:
                mixed = self._mixed(stages, wrote.spectra, count)
                count += 1
                x = operands.x
                if item.resamples_x:
                    x = self._resampled(x, stages, count)
                # nothing else refers to them, so that their memory serves what follows
                operands, wrote = Operands(x=x, mixed=mixed), Results()
                del mixed
        if wrote.out is not None:
            return wrote.out
        assert operands.held is not None
        return self._stages[count].plain(operands.held)

    def _begun(self, buffer: torch.Tensor) -> Operands:
        chain, first = self._chain, self._chain.items[0]
        assert isinstance(first, Tile)
        x = buffer
        if chain.lifting:
            x = _mapped(buffer, chain.lifting, chain.lifting_activation)
        if not self._framed:
            x = self._frame.pad(x)
        match first.steps[0]:
            case Source():
                return Operands(x=x)
            case AddMap():
                return Operands(x=self._stages[0].convert(x))
            case Held():
                field = self._stages[0].convert(x)
                return Operands(x=field, held=field)
            case other:
                raise ValueError(f"a chain begins with {other}")

    def _mixed(self, stages: Stages, spectra: torch.Tensor | None, count: int) -> torch.Tensor:
        assert spectra is not None
        terms = [
            stages.mix(spectra, weight) if factor is None else stages.mix(spectra, weight) * factor
            for weight, factor in zip(self._legs[count].weights, self._factors[count], strict=True)
        ]
        return sum(terms[1:], start=terms[0])

    def _resampled(self, x: torch.Tensor | None, stages: Stages, count: int) -> torch.Tensor:
        assert x is not None
        assert self._chain.resample is not None
        plain = stages.plain(x).to(self._chain.dtype)
        finer = self._chain.resample(plain, self._legs[count - 1].out_size)
        return self._stages[count].convert(finer)

    def _inside(self, buffer: torch.Tensor) -> torch.Tensor:
        return self._frame.inside(buffer) if self._framed else buffer


def _factor(phase: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor | None:
    """exp(i phase) for mixed spectra [batch, channels, *others, modes]."""
    if phase is None:
        return None
    turned = torch.polar(torch.ones_like(phase), phase)
    return turned.to(weight.device, weight.dtype).unsqueeze(-1)


def _stages_of(legs_: list[Leg], make: MakeStages) -> list[Stages]:
    """The stages for each leg, which also run the tile programs before it, and those for the programs after the last."""
    last = legs_[-1]
    wanted = [(leg.size, leg.modes, leg.out_size) for leg in legs_]
    wanted.append((last.out_size, last.modes, last.out_size))
    made = {key: make(*key) for key in dict.fromkeys(wanted)}
    return [made[key] for key in wanted]


def _mapped(x: torch.Tensor, maps: tuple[PointwiseMap, ...], activation: str) -> torch.Tensor:
    for i, linear in enumerate(maps):
        x = pointwise(activate(x, activation) if i else x, linear.weight, linear.bias)
    return x


def bytes_of_one(chain: Chain, on_grid: list[Leg], field_dtype: torch.dtype) -> int:
    """About the most that one element of a batch takes during a pass: three fields and their spectra at a time."""
    most = 0
    for leg in on_grid:
        points = max(math.prod(leg.size), math.prod(leg.out_size))
        lines = points // leg.size[-1] + 1
        width = max(sum(weight.shape[-2:]) for weight in leg.weights)
        spectra = 3 * width * leg.modes[-1] * chain.dtype.to_complex().itemsize
        most = max(most, width * points * field_dtype.itemsize + lines * spectra)
    points = math.prod(on_grid[0].size)
    widths = [m.weight.shape[0] for m in (*chain.lifting, *chain.tail)]
    return most + 2 * max(widths, default=0) * chain.dtype.itemsize * points
