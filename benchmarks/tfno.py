"""Whole imported TFNOs on one CPU thread: weights multiplied out, as the service runs them, against contracting the factors.

`python -m benchmarks.tfno` writes results/tfno.jsonl. Both run through the service's own `Forward`, replayed and in parts of a
batch as the service does it. One has the dense weights of the import. The other contracts the channel factors in every layer at
every call, the mode factors beforehand; it exists in this benchmark only. Times are CPU time.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import cycle
from time import process_time
from typing import NamedTuple
from unittest import mock

import torch
from torch import nn

from benchmarks.chains import built
from benchmarks.factorised import Call, staged
from benchmarks.gpu.imported import network_of
from benchmarks.timing import medians, no_options, print_table, save
from turbofno.models.core.fno import FNO
from turbofno.models.importers.neuraloperator.spectral_weights import StoredWeight, stored_weight
from turbofno.models.importers.refusal import ImportRefused
from turbofno.service.runtime import replays
from turbofno.service.runtime.forward import Forward
from turbofno_ops import _library

CHANNELS = (3, 1)  # in, out
SECONDS, LEAST_ROUNDS = 15.0, 15
_TOLERANCE = 1e-4


class Case(NamedTuple):
    """A TFNO with the library's defaults except for its factorisation, rank and width, and its input.

    `n_modes` is of every axis, as the library counts: the last axis keeps half of them and one.
    """

    kind: str
    rank: float
    width: int
    n_modes: int
    grid: tuple[int, ...]
    batch: int


# the library's default is Tucker 0.1
CASES = (
    *(Case("Tucker", 0.1, c, 16, (n, n), b) for c in (32, 64) for n in (64, 128) for b in (1, 32)),
    *(Case(kind, 0.01, 64, 16, (64, 64), b) for kind in ("Tucker", "CP") for b in (1, 32)),
    *(Case("Tucker", 0.1, 128, 16, (64, 64), b) for b in (1, 32)),
    *(Case("Tucker", 0.1, 64, 32, (1024,), b) for b in (1, 32)),
    *(Case("Tucker", 0.1, 32, 12, (32, 32, 32), b) for b in (1, 8)),
)


class Network(NamedTuple):
    """The library's network, its import with dense weights, and for each layer the contraction of its factors."""

    theirs: nn.Module
    ours: FNO
    contractions: tuple[Call, ...]


def network(case: Case) -> Network:
    """A TFNO with random weights, imported from its checkpoint."""
    (c_in, c_out), n_dim = CHANNELS, len(case.grid)
    arguments = {
        "n_modes": (case.n_modes,) * n_dim,
        "in_channels": c_in,
        "out_channels": c_out,
        "hidden_channels": case.width,
        "factorization": case.kind,
        "rank": case.rank,
    }
    theirs, imported = built("TFNO", "TFNO", arguments)[1:3]
    assert theirs is not None
    assert not isinstance(imported, ImportRefused)
    ours = network_of(imported)
    blocks = theirs.get_submodule("fno_blocks.convs")
    contractions = []
    for layer in blocks.children():
        weight = stored_weight(dict(layer.get_submodule("weight").state_dict()), "weight")
        contracted = staged(_in_fft_order(weight, n_dim).parts, n_dim)
        assert contracted is not None, "a tensor train has no factors of the channels alone"
        contractions.append(contracted)
    return Network(theirs, ours, tuple(contractions))


def _in_fft_order(weight: StoredWeight, n_dim: int) -> StoredWeight:
    """The factors with the mode axes before the last in the order of an FFT, as the importer orders dense weights."""
    names = [f"factors.factor_{k}" for k in range(2, 1 + n_dim)]
    shifted = {name: torch.fft.ifftshift(weight.parts[name], dim=0) for name in names}
    return replace(weight, parts={**weight.parts, **shifted})


def contracting(given: Network) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A replacement of the layers' product of modes, which every run of the network calls once a layer, in order."""
    # not by the weight's address: a replay cannot be recorded where the function asks for that
    layers = cycle(given.contractions)
    # a product of strided complex matrices is several times slower
    return lambda z, _: next(layers)(z.contiguous())


def without_dense_weights(ours: FNO) -> FNO:
    """A copy whose spectral weights are NaN, so that its results are right only if nothing reads them."""
    copy = deepcopy(ours)
    weights = [p for name, p in copy.named_parameters() if name.endswith("spectral_weight")]
    assert weights
    for weight in weights:
        weight.fill_(torch.nan)
    return copy


class Candidates(NamedTuple):
    """Calls of a network, by name, and how the service runs it."""

    calls: dict[str, Callable[[], torch.Tensor]]
    execution: str


def candidates(given: Network, x: torch.Tensor) -> Candidates:
    """Ways to run the network on x. Both are replayed, or neither."""
    instead = mock.patch.object(_library, "mix", contracting(given))
    of_dense, of_factors = (
        Forward("TFNO", ours, torch.device("cpu"), precision="fp32", max_batch=len(x))
        for ours in (given.ours, without_dense_weights(given.ours))
    )

    def dense() -> torch.Tensor:
        return of_dense(x)[0]

    def contracted() -> torch.Tensor:
        with instead:
            return of_factors(x)[0]

    of_dense.prepare(x.shape[1:])
    execution = of_dense(x)[1].execution
    # at the limit noise would decide which of the two is replayed
    limit = math.inf if execution == "replay" else 0.0
    with instead, mock.patch.object(replays, "_MAX_SECONDS", limit):
        of_factors.prepare(x.shape[1:])
        if of_factors(x)[1].execution != execution:
            raise RuntimeError(f"with factors it does not run as {execution}")
    return Candidates({"multiplied out": dense, "contracting": contracted}, execution)


def measure(
    case: Case, *, seconds: float = SECONDS, rounds: int = LEAST_ROUNDS
) -> dict[str, object]:
    """The row of a case. Raises RuntimeError if library, dense and contracted network disagree."""
    given = network(case)
    x = torch.randn(case.batch, CHANNELS[0], *case.grid)
    found = candidates(given, x)
    truth = given.theirs(x)
    for name, call in found.calls.items():
        difference = float((call() - truth).norm() / truth.norm())
        if not difference < _TOLERANCE:
            raise RuntimeError(f"{case}: {name} differs by {difference:.1e} from the library")
    timed = medians(
        found.calls,
        seconds=seconds,
        least_rounds=rounds,
        clock=process_time,
    )
    dense, contracted = (timed[name] * 1e3 for name in ("multiplied out", "contracting"))
    return {
        "network": f"{len(case.grid)}D C{case.width} n_modes {case.n_modes}",
        "weight": f"{case.kind} {case.rank}",
        "grid": "x".join(map(str, case.grid)),
        "batch": case.batch,
        "runs as": found.execution,
        "multiplied out ms": dense,
        "contracting ms": contracted,
        "contracting over multiplied out": contracted / dense,
    }


def rows() -> Iterator[dict[str, object]]:
    """A row for each case."""
    for case in CASES:
        yield measure(case)
        print(case, "measured", flush=True)


def main() -> None:
    """Measure, print and record."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.inference_mode():
        measured = list(rows())
    print_table("Whole TFNOs on one CPU thread, CPU ms of a batch", measured)
    print(f"\n{save('tfno', measured)}")


if __name__ == "__main__":
    no_options(__doc__)
    main()
