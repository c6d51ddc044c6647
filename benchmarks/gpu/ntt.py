"""Number-theoretic transforms: exchanges by warp shuffles and through shared memory, over radix, size and batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from benchmarks.gpu.device import each, ends, floor_ms, in_graph, milliseconds
from turbofno_ops.ntt import BABY_BEAR, GOLDILOCKS, ntt
from turbofno_ops.ntt._arithmetic import FIELDS
from turbofno_ops.ntt._cuda import EXCHANGES, RADICES, transform

PRIMES = (BABY_BEAR, GOLDILOCKS)
SIZES = tuple(2**bits for bits in range(6, 17))
BATCHES = (1, 16, 256, 4096)
_MOST_INPUTS = 16
_FEWEST_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Case:
    """Lines of one size, modulo one prime."""

    prime: int
    points: int
    batch: int

    @property
    def label(self) -> str:
        """As in tables."""
        return f"{FIELDS[self.prime].name} {self.batch} x {self.points}"


CASES = tuple(Case(*case) for case in product(PRIMES, SIZES, BATCHES))


def residues(case: Case, device: str) -> torch.Tensor:
    """Random residues [batch, points]."""
    shape = (case.batch, case.points)
    if case.prime == BABY_BEAR:
        return torch.randint(case.prime, shape, device=device)
    words = torch.randint(-(2**63), 2**63 - 1, shape, device=device)
    # the words from the prime on are -(2^32 - 1) .. -1
    return words.masked_fill((words < 0) & (words > -(2**32)), 0)


def inputs(case: Case) -> list[torch.Tensor]:
    """Random residues on the GPU: so many that, used in turn, they are no longer in the L2 cache."""
    one = residues(case, "cuda")
    cache: int = torch.cuda.get_device_properties(one.device).L2_cache_size
    count = min(_MOST_INPUTS, -(-2 * cache // one.nbytes))
    return [one, *(residues(case, "cuda") for _ in range(count - 1))]


def check(label: str, found: list[torch.Tensor], x: torch.Tensor, prime: int) -> None:
    """Raise RuntimeError unless all results are the same, and their first and last lines those of the CPU."""
    expected = ntt(ends(x).cpu(), prime, backend="reference")
    if not torch.equal(ends(found[0]).cpu(), expected):
        raise RuntimeError(f"{label}: a transform is wrong")
    if not all(torch.equal(one, found[0]) for one in found):
        raise RuntimeError(f"{label}: radices or exchanges give different results")


def measure(case: Case, bandwidth: float, *, seconds: float) -> Iterator[dict[str, object]]:
    """One row for each radix and exchange, by CUDA graphs. Raises RuntimeError if a result is wrong."""
    fields = inputs(case)
    variants = list(product(RADICES, EXCHANGES))
    calls = [
        partial(
            transform,
            factor=None,
            name=FIELDS[case.prime].name,
            inverse=False,
            negacyclic=False,
            radix=radix,
            exchange=exchange,
        )
        for radix, exchange in variants
    ]
    check(case.label, [call(fields[0]) for call in calls], fields[0], case.prime)
    # a graph of a large batch would hold several of its results
    issue = in_graph if case.batch * case.points < 2**24 else each
    runs = [issue(call, fields) for call in calls]
    times = milliseconds(runs, seconds=max(seconds, _FEWEST_SECONDS))
    floor = floor_ms(case.batch * case.points, fields[0].element_size(), bandwidth)
    for (radix, exchange), ms in zip(variants, times, strict=True):
        yield {
            "case": case.label,
            "prime": FIELDS[case.prime].name,
            "points": case.points,
            "batch": case.batch,
            "radix": radix,
            "exchange": exchange,
            "ms": ms / len(fields),
            "floor ms": floor,
        }
