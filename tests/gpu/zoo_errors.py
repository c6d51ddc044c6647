"""Compare the zoo's held-out errors on the GPU with its model cards, to three digits (tests/gpu/run.py).

Models run as in the service, by `compile_fno`, on the samples of the cards. Only fp32 is checked; errors of the other
precisions are printed.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import cache

import torch

from turbofno.models.core.checkpoint import LoadedModel, load_model
from turbofno.models.core.config import Metric
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.evaluate import evaluate
from turbofno.models.zoo.problems import Problem, problem_named
from turbofno_ops import PRECISIONS, compile_fno


def equal_to_three_digits(measured: float, recorded: float) -> bool:
    """True if two numbers differ by at most half a unit of the recorded one's third digit."""
    unit = 10.0 ** (math.floor(math.log10(recorded)) - 2)
    return abs(measured - recorded) <= unit / 2


def measured(model: LoadedModel, problem: Problem, precision: str) -> tuple[Metric, ...]:
    """Evaluate the card's metrics with the compiled model."""
    chain = compile_fno(model.module.description(), device="cuda", precision=precision)
    samples = max(metric.n_samples for metric in model.config.evaluation)
    compiled = replace(model, module=chain)
    return evaluate(compiled, problem, samples=samples, device="cuda").metrics


def main() -> None:
    """Evaluate all models. Exits with 1 if an fp32 error differs from the card's."""
    wrong = 0
    for folder in sorted(TRAINED.iterdir()):
        model = load_model(folder, device="cuda")
        problem = problem_named(model.config.name)
        # the solver takes longer than the model, so run it once for all precisions
        problem = replace(problem, simulate=cache(problem.simulate))
        found = {precision: measured(model, problem, precision) for precision in PRECISIONS}
        for i, recorded in enumerate(model.config.evaluation):
            values = {precision: metrics[i].value for precision, metrics in found.items()}
            same = equal_to_three_digits(values["fp32"], recorded.value)
            wrong += not same
            grid = "x".join(map(str, recorded.grid))
            shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
            verdict = "as on the card" if same else "NOT AS ON THE CARD"
            print(
                f"{model.config.name}, {recorded.name}, {grid}: {shown}; card {recorded.value:.4g}: {verdict}",
                flush=True,
            )
        torch.cuda.empty_cache()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
