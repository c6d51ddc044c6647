"""What trust signals add to the time of a network on a GPU under load: large batches, one after another.

As in the service, the signals of a batch run beside the network of the next one. Their spectra are computed by this
package where it is preferred, and for comparison by torch.fft everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest.mock import patch

import torch

from benchmarks.gpu.device import milliseconds
from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import TRAINED
from turbofno.service.runtime.judge import Judge
from turbofno.service.runtime.judgement import Judged
from turbofno_ops import compile_fno, fft
from turbofno_ops.fft import _preferred

VALUES = 2**22
"""Of a batch of inputs: so many that a network's rate no longer rises."""
QUICK_VALUES = 2**16
_BATCHES = 16
"""Of a timed run, of which only the last one's signals have no network beside them."""


@dataclass(frozen=True, slots=True)
class Case:
    """A trained network and a grid."""

    model: str
    size: tuple[int, ...]

    @property
    def label(self) -> str:
        """Name in tables."""
        return f"{self.model} {'x'.join(map(str, self.size))}"


CASES = (
    Case("burgers-1d", (1024,)),
    Case("burgers-1d", (2187,)),
    Case("navier-stokes-2d", (64, 64)),
    Case("navier-stokes-2d", (85, 85)),
    Case("navier-stokes-2d", (128, 128)),
    Case("navier-stokes-2d", (211, 211)),
    Case("darcy-2d", (85, 85)),
    Case("darcy-2d", (421, 421)),
    Case("nagumo-3d", (21, 21, 21)),
)


def measure(
    case: Case, *, seconds: float, quick: bool, device: str = "cuda"
) -> Iterator[dict[str, object]]:
    """The row of a case."""
    loaded = load_model(TRAINED / case.model)
    batch = max(1, (QUICK_VALUES if quick else VALUES) // math.prod(case.size))
    forward = compile_fno(loaded.module.to(device).description(), device=device, max_batch=batch)
    x = torch.randn(batch, loaded.module.arch.in_channels, *case.size, device=device)

    beside = torch.cuda.Stream(priority=-1) if x.is_cuda else None

    def signals(preferred: Callable[..., bool]) -> Callable[[], Judged]:
        judge = Judge(loaded.config, x.device)

        def run() -> Judged:
            # held, since the allocator does not know that another stream reads them
            outputs = []
            with (
                patch.object(_preferred, "is_preferred", preferred),
                patch.object(fft, "is_preferred", preferred),
            ):
                for _ in range(_BATCHES):
                    outputs.append(forward(x))
                    if beside is not None:
                        beside.wait_stream(torch.cuda.current_stream())
                    with torch.cuda.stream(beside):
                        found = judge(x, outputs[-1])
            if beside is not None:
                torch.cuda.current_stream().wait_stream(beside)
            return found

        return run

    runs: dict[str, Callable[[], object]] = {
        "network ms": lambda: [forward(x) for _ in range(_BATCHES)],
        "with signals ms": signals(_preferred.is_preferred),
        "with signals by torch.fft ms": signals(lambda *_, **__: False),
    }
    found = signals(_preferred.is_preferred)()
    taken = milliseconds(list(runs.values()), seconds=seconds)
    row = {name: ms / _BATCHES for name, ms in zip(runs, taken, strict=True)}
    network, ours, theirs = row.values()
    yield {
        "case": case.label,
        "batch": batch,
        "signals": sorted(found.names),
        **row,
        "share": 1 - network / ours,
        "share by torch.fft": 1 - network / theirs,
    }
