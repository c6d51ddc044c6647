"""CPU time of a field by the number of fields that the network gets at once: `python -m benchmarks.caches`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.timing import no_options, print_table, save
from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import BURGERS, DARCY, NAVIER_STOKES
from turbofno.service.runtime.forward import Forward

Call = Callable[[torch.Tensor], torch.Tensor]

CASES = (
    (BURGERS.name, BURGERS.grid.training),
    (NAVIER_STOKES.name, (32, 32)),
    (NAVIER_STOKES.name, NAVIER_STOKES.grid.training),
    (DARCY.name, DARCY.grid.training),
    (NAVIER_STOKES.name, (128, 128)),
)
BATCH = 16
_ROUNDS = 7


def _first(served: Forward, x: torch.Tensor) -> torch.Tensor:
    return served(x)[0]


def main() -> None:
    """Measure a batch of 16 in pieces of each size, on one thread; write results/caches.jsonl."""
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for name, grid in CASES:
        module = load_model(TRAINED / name).module
        served = Forward(name, module, torch.device("cpu"), precision="fp32", max_batch=BATCH)
        x = torch.randn(BATCH, module.arch.in_channels, *grid)
        served.prepare(x.shape[1:])
        calls: dict[str, tuple[Call, int]] = {
            f"{size} at once": (module, size) for size in (1, 2, 4, 8, BATCH)
        }
        calls["as served"] = (partial(_first, served), BATCH)
        taken: dict[str, list[float]] = {what: [] for what in calls}
        with torch.inference_mode():
            for _ in range(_ROUNDS):
                for what, (call, size) in calls.items():
                    began = time.thread_time()
                    for piece in x.split(size):
                        call(piece)
                    taken[what].append((time.thread_time() - began) / BATCH * 1e3)
        layer = 4 * module.arch.hidden_channels * math.prod(grid)
        rows.append(
            {
                "model": name,
                "grid": "x".join(map(str, grid)),
                "layer KiB a field": layer // 1024,
                **{what: min(times) for what, times in taken.items()},
            }
        )
    print_table("CPU ms a field", rows)
    print(f"written to {save('caches', rows)}")


if __name__ == "__main__":
    no_options(__doc__)
    main()
