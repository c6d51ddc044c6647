"""Whole imported TFNOs on one CPU thread: weights multiplied out, as the service runs them, against contracting the factors.

`python -m benchmarks.tfno` writes results/tfno.jsonl. Both run through the service's own `Forward`, replayed where the service
replays. One has the dense weights of the import. The other contracts the channel factors in every layer at every call (mode
factors beforehand, which is the fastest way of `benchmarks.factorised`); it exists in this benchmark only. Times are CPU time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from time import process_time
from typing import NamedTuple
from unittest import mock

import torch
from torch import nn

from benchmarks.chains import built
from benchmarks.factorised import Call, staged
from benchmarks.timing import medians, print_table, save
from turbofno.models.core.fno import FNO
from turbofno.models.importers.neuraloperator.spectral_weights import StoredWeight, stored_weight
from turbofno.models.importers.refusal import ImportRefused
from turbofno.service.runtime.forward import Forward
from turbofno_ops import _library

N_DIM, N_MODES = 2, 16
CHANNELS = (3, 1)  # in, out
SECONDS, LEAST_ROUNDS = 15.0, 15
_TOLERANCE = 1e-4


class Case(NamedTuple):
    """A TFNO with the library's defaults except for its factorisation, rank and width, and its input."""

    kind: str
    rank: float
    width: int
    points: int
    batch: int


# the library's default is Tucker 0.1
CASES = (
    *(Case("Tucker", 0.1, c, n, b) for c in (32, 64) for n in (64, 128) for b in (1, 32)),
    *(Case(kind, 0.01, 64, 64, b) for kind in ("Tucker", "CP") for b in (1, 32)),
)


class Network(NamedTuple):
    """The library's network, its import with dense weights, and for each layer the contraction of its factors."""

    theirs: nn.Module
    ours: FNO
    contractions: tuple[Call, ...]


def network(case: Case) -> Network:
    """A TFNO with random weights, imported from its checkpoint."""
    c_in, c_out = CHANNELS
    arguments = {
        "n_modes": (N_MODES,) * N_DIM,
        "in_channels": c_in,
        "out_channels": c_out,
        "hidden_channels": case.width,
        "factorization": case.kind,
        "rank": case.rank,
    }
    theirs, imported = built("TFNO", "TFNO", arguments)[1:3]
    assert theirs is not None
    assert not isinstance(imported, ImportRefused)
    ours = FNO(imported.architecture, imported.normalization).eval().requires_grad_(False)
    ours.load_state_dict(imported.state)
    blocks = theirs.get_submodule("fno_blocks.convs")
    contractions = []
    for layer in blocks.children():
        weight = stored_weight(dict(layer.get_submodule("weight").state_dict()), "weight")
        contracted = staged(_in_fft_order(weight).parts, N_DIM)
        assert contracted is not None, "a tensor train has no factors of the channels alone"
        contractions.append(contracted)
    return Network(theirs, ours, tuple(contractions))


def _in_fft_order(weight: StoredWeight) -> StoredWeight:
    """The factors with the mode axes before the last in the order of an FFT, as the importer orders dense weights."""
    names = [f"factors.factor_{k}" for k in range(2, 1 + N_DIM)]
    shifted = {name: torch.fft.ifftshift(weight.parts[name], dim=0) for name in names}
    return replace(weight, parts={**weight.parts, **shifted})


def contracting(given: Network) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A replacement of the layers' product of modes, which every run of the network calls once a layer, in order."""
    # not by the weight's address: a replay cannot be recorded where the function asks for that
    layers = cycle(given.contractions)
    # a product of strided complex matrices is several times slower
    return lambda z, _: next(layers)(z.contiguous())


def candidates(
    given: Network, x: torch.Tensor
) -> tuple[dict[str, Callable[[], torch.Tensor]], str]:
    """Calls of the network with dense weights and with contractions, and how the service runs it."""
    instead = mock.patch.object(_library, "mix", contracting(given))
    forwards = {
        name: Forward(name, given.ours, torch.device("cpu"), precision="fp32", max_batch=len(x))
        for name in ("multiplied out", "contracting")
    }

    def dense() -> torch.Tensor:
        return forwards["multiplied out"](x)[0]

    def contracted() -> torch.Tensor:
        with instead:
            return forwards["contracting"](x)[0]

    field = x.shape[1:]
    forwards["multiplied out"].prepare(field)
    with instead:
        forwards["contracting"].prepare(field)
    execution = forwards["multiplied out"](x)[1].execution
    with instead:
        of_contracting = forwards["contracting"](x)[1].execution
    if of_contracting != execution:
        raise RuntimeError(f"one runs as {execution}, the other as {of_contracting}")
    return {"multiplied out": dense, "contracting": contracted}, execution


def measure(
    case: Case, *, seconds: float = SECONDS, rounds: int = LEAST_ROUNDS
) -> dict[str, object]:
    """The row of a case. Raises RuntimeError if library, dense and contracted network disagree."""
    given = network(case)
    x = torch.randn(case.batch, CHANNELS[0], *(case.points,) * N_DIM)
    calls, execution = candidates(given, x)
    truth = given.theirs(x)
    for name, call in calls.items():
        difference = float((call() - truth).norm() / truth.norm())
        if not difference < _TOLERANCE:
            raise RuntimeError(f"{case}: {name} differs by {difference:.1e} from the library")
    timed = medians(
        calls,
        seconds=seconds,
        least_rounds=rounds,
        clock=process_time,
    )
    dense, contracted = (timed[name] * 1e3 for name in ("multiplied out", "contracting"))
    return {
        "network": f"2D C{case.width} m{N_MODES}x{N_MODES // 2 + 1}",
        "weight": f"{case.kind} {case.rank}",
        "grid": f"{case.points}x{case.points}",
        "batch": case.batch,
        "runs as": execution,
        "multiplied out ms": dense,
        "contracting ms": contracted,
        "multiplied out is faster": contracted / dense,
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
    main()
