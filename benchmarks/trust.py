"""What the signals of trust cost beside the prediction that they judge: `python -m benchmarks.trust`, on a CPU."""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.timing import print_table, save
from turbofno.models.core.checkpoint import load_model
from turbofno.models.trust.signals import Signals
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Callable

_BATCHES = (1, 16, 32)
_SECONDS = 4.0


def cpu_medians(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median CPU seconds of this thread for each, called in turn: what others on the machine take is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for call in calls.values():
        call()
    while time.perf_counter() < end or len(next(iter(taken.values()))) < 5:
        for name, call in calls.items():
            began = time.thread_time()
            call()
            taken[name].append(time.thread_time() - began)
    return {name: median(times) for name, times in taken.items()}


def main() -> None:
    """Measure every zoo model on its training grid, one thread; write results/trust.jsonl."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for problem in PROBLEMS.values():
        model = load_model(TRAINED / problem.name)
        signals = Signals(model.config)
        for batch in _BATCHES:
            x = problem.sample([0], seed=0)[:1].expand(batch, 1, *problem.grid.training).clone()
            with torch.inference_mode():
                y = model.module(x)
                found = cpu_medians(
                    {
                        "prediction": partial(model.module, x),
                        "signals": partial(signals, x, y),
                    },
                    _SECONDS,
                )
            rows.append(
                {
                    "model": problem.name,
                    "batch": batch,
                    "prediction ms": 1e3 * found["prediction"],
                    "signals ms": 1e3 * found["signals"],
                    "share": found["signals"] / found["prediction"],
                }
            )
    print_table("Signals of trust beside the prediction, CPU time of one thread", rows)
    save("trust", rows)


if __name__ == "__main__":
    main()
