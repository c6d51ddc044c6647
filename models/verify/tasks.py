"""The tasks of a verification, one call and a rollout, and a surrogate's errors on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from turbofno.models.zoo.evaluate import Example, rollout
from turbofno.models.zoo.problems import Problem
from turbofno.models.zoo.train import relative_l2

Surrogate: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""float32 [n, channels, *grid] -> [n, channels, *grid], physical units."""


@dataclass(frozen=True, slots=True)
class Task:
    """Inputs [n, *grid] and reference solutions [n, steps, *grid], float32, physical units.

    `seed` is that of the samples; `began` has the time of each input, for a model with a time step. `name` is the
    name of the error on the card.
    """

    problem: Problem
    name: str
    seed: int
    inputs: torch.Tensor
    truth: torch.Tensor
    began: tuple[float, ...] | None = None

    @property
    def steps(self) -> int:
        return self.truth.shape[1]

    @property
    def times(self) -> tuple[float, ...]:
        """The time of each solution after the input; steps of 1 for a problem without a time step."""
        step = self.problem.time_step or 1.0
        return tuple(step * count for count in range(1, self.steps + 1))

    def some(self, begin: int, end: int) -> torch.Tensor:
        """Inputs [end - begin, 1, *grid] for the surrogate; indices wrap around."""
        chosen = torch.arange(begin, end, device=self.inputs.device) % len(self.inputs)
        return self.inputs[chosen].unsqueeze(1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A surrogate's predictions, and the relative L2 error of each sample, over all steps [n] and per step [n, steps]."""

    prediction: torch.Tensor
    errors: torch.Tensor
    by_step: torch.Tensor

    def example(self, task: Task, rank: int) -> Example:
        """The sample with the `rank`-th smallest error, at the last step."""
        index = int(self.errors.argsort()[rank])
        times = None
        if task.began is not None:
            times = (task.began[index], task.began[index] + task.times[-1])
        return Example(task.inputs[index], task.truth[index, -1], self.prediction[index, -1], times)


def tasks_of(problem: Problem, frames: torch.Tensor, *, seed: int) -> list[Task]:
    """One call, and the rollout of an autoregressive model, on reference frames [n, frames, *grid].

    The call starts from one frame of each sample; start times are spread evenly over the samples.
    """
    frames = frames[:, problem.first_frame :]
    samples, starts = len(frames), frames.shape[1] - 1
    each = torch.arange(samples, device=frames.device)
    start = each * starts // samples
    step = problem.time_step
    began = None
    if step is not None:
        began = tuple(step * (problem.first_frame + index) for index in start.tolist())
    grid = problem.grid.training
    trained = tuple(frames.shape[2:]) == grid
    name = "one call" if trained else "one call, grid not trained on"
    one = Task(
        problem, name, seed, frames[each, start], frames[each, start + 1].unsqueeze(1), began
    )
    if step is None:
        return [one]
    first, last = step * problem.first_frame, step * (problem.first_frame + starts)
    name = f"rollout from t = {first:g} to t = {last:g}"
    return [one, Task(problem, name, seed, frames[:, 0], frames[:, 1:], (first,) * samples)]


def outcome(task: Task, surrogate: Surrogate, *, at_once: int = 50) -> Outcome:
    """Run the surrogate on the task and compare it with the reference."""
    parts = [
        rollout(surrogate, some.unsqueeze(1), task.steps)[:, :, 0]
        for some in task.inputs.split(at_once)
    ]
    prediction = torch.cat(parts)
    by_step = [relative_l2(prediction[:, step], task.truth[:, step]) for step in range(task.steps)]
    return Outcome(prediction, relative_l2(prediction, task.truth), torch.stack(by_step, dim=1))
