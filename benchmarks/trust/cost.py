"""CPU time of the trust signals beside that of the prediction: `python -m benchmarks.trust.cost`."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from benchmarks.timing import medians, no_options, print_table, save
from turbofno.models.core.checkpoint import load_model
from turbofno.models.trust.signals import Signals
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import PROBLEMS

_BATCHES = (1, 16, 32)
_SECONDS = 4.0


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
                seconds = medians(
                    {
                        "prediction": partial(model.module, x),
                        "signals": partial(signals, x, y),
                    },
                    seconds=_SECONDS,
                    clock=time.thread_time,
                )
            rows.append(
                {
                    "model": problem.name,
                    "batch": batch,
                    "prediction ms": 1e3 * seconds["prediction"],
                    "signals ms": 1e3 * seconds["signals"],
                    "share": seconds["signals"] / seconds["prediction"],
                }
            )
    print_table("Trust signals beside the prediction, CPU time of one thread", rows)
    save("trust", rows)


if __name__ == "__main__":
    no_options(__doc__)
    main()
