"""Train a zoo model from scratch: `python -m turbofno.models.zoo.train burgers`.

The data comes from our solvers and is cached in data/. The state of training is saved in runs/ after every epoch, and
the same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from turbofno.models.core.checkpoint import save_model
from turbofno.models.core.config import ModelConfig, Normalization, Training
from turbofno.models.core.fno import FNO
from turbofno.models.core.statistics import ChannelStatistics, Statistics
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import PROBLEMS, TRAINING_SEED, Phase, Problem

_SIMULATED_AT_ONCE = 512
_LARGEST_GRADIENT = 1.0


def relative_l2(prediction: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """||prediction - truth|| / ||truth|| of each sample, [batch]."""
    error = (prediction - truth).flatten(1).norm(dim=1)
    return error / truth.flatten(1).norm(dim=1)


def training_frames(problem: Problem, samples: int, folder: Path, device: str) -> torch.Tensor:
    """The training data [samples, frames, *grid] on the CPU, simulated once and cached in `folder`."""
    file = folder / f"{problem.name}-seed{TRAINING_SEED}-{samples}.safetensors"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        chunks = []
        started = time.monotonic()
        for begin in range(0, samples, _SIMULATED_AT_ONCE):
            indices = range(begin, min(begin + _SIMULATED_AT_ONCE, samples))
            chunks.append(problem.simulate(indices, seed=TRAINING_SEED, device=device).cpu())
            _log(f"simulated {indices[-1] + 1}/{samples}, {time.monotonic() - started:.0f} s")
        unfinished = file.with_suffix(".new")
        save_file({"frames": torch.cat(chunks).contiguous()}, unfinished)
        unfinished.replace(file)
    return load_file(file)["frames"]


def channel_statistics(values: torch.Tensor) -> ChannelStatistics:
    """Moments of one channel over a data set."""
    return ChannelStatistics(
        mean=values.mean(dtype=torch.float64).item(),
        std=values.double().std().item(),
        minimum=values.min().item(),
        maximum=values.max().item(),
    )


def statistics_of(frames: torch.Tensor) -> Statistics:
    """Moments of all inputs (every frame but the last) and all outputs (every frame but the first)."""
    return Statistics(
        n_samples=frames.shape[0],
        inputs=(channel_statistics(frames[:, :-1]),),
        outputs=(channel_statistics(frames[:, 1:]),),
    )


def normalization_of(statistics: Statistics) -> Normalization:
    """Normalisation of inputs and outputs to zero mean and unit variance."""
    return Normalization(
        input_mean=tuple(channel.mean for channel in statistics.inputs),
        input_std=tuple(channel.std for channel in statistics.inputs),
        output_mean=tuple(channel.mean for channel in statistics.outputs),
        output_std=tuple(channel.std for channel in statistics.outputs),
    )


@dataclass(slots=True)
class Progress:
    """Progress of a training run: the next phase and epoch, and the seconds spent."""

    phase: int = 0
    epoch: int = 0
    seconds: float = 0.0


class Run:
    """One training run: module, optimiser, schedule and their saved state."""

    def __init__(self, problem: Problem, frames: torch.Tensor, folder: Path, device: str) -> None:
        self.problem = problem
        self.recipe = problem.recipe
        self.folder = folder
        self.frames = frames.to(device)
        self.statistics = statistics_of(frames)
        torch.manual_seed(self.recipe.seed)
        self.module = FNO(problem.architecture, normalization_of(self.statistics)).to(device)
        self.progress = Progress()
        self._saved_optimizer: dict[str, object] | None = None

    @property
    def _state_file(self) -> Path:
        return self.folder / "state.pt"

    @property
    def _identity(self) -> str:
        """Architecture and recipe, which must equal those of a saved state to resume from it."""
        return f"{self.problem.architecture!r} {self.recipe!r}"

    def resume(self) -> None:
        """Resume from the saved state, if there is one.

        Raises:
            ValueError: the state has another recipe or architecture.
        """
        if not self._state_file.is_file():
            return
        state = torch.load(self._state_file, map_location=self.frames.device, weights_only=True)
        if state["identity"] != self._identity:
            raise ValueError(
                f"{self._state_file} was trained with another recipe or architecture; "
                "delete it, or choose another folder with --runs"
            )
        self.module.load_state_dict(state["module"])
        self.progress = Progress(**state["progress"])
        self._saved_optimizer = state["optimizer"]
        _log(f"resuming at phase {self.progress.phase + 1}, epoch {self.progress.epoch}")

    def train(self, report: Callable[[str], None]) -> None:
        """Run the remaining phases."""
        for number in range(self.progress.phase, len(self.recipe.phases)):
            self._train_phase(number, self.recipe.phases[number], report)
            self.progress = Progress(number + 1, 0, self.progress.seconds)
            self._saved_optimizer = None

    def _train_phase(self, number: int, phase: Phase, report: Callable[[str], None]) -> None:
        samples, frames = self.frames.shape[:2]
        starts = frames - phase.unroll
        batches = math.ceil(samples * starts / phase.unroll / phase.batch)
        optimizer = torch.optim.AdamW(
            self.module.parameters(),
            lr=phase.learning_rate,
            weight_decay=self.recipe.weight_decay,
        )
        if self._saved_optimizer is not None:
            optimizer.load_state_dict(self._saved_optimizer)
        total = phase.epochs * batches
        done = self.progress.epoch
        for epoch in range(done, phase.epochs):
            began = time.monotonic()
            order = torch.Generator().manual_seed(
                (self.recipe.seed * 100 + number) * 100_000 + epoch
            )
            windows = torch.randperm(samples * starts, generator=order)[: batches * phase.batch]
            windows = windows.to(
                self.frames.device
            )  # one copy: a copy per step would stall the GPU
            symmetries = self.problem.symmetries or (_unchanged,)
            drawn = torch.randint(len(symmetries), (batches,), generator=order).tolist()
            mean_loss = torch.zeros((), device=self.frames.device)
            for step, chosen in enumerate(windows.split(phase.batch)):
                rate = one_cycle((epoch * batches + step) / total) * phase.learning_rate
                for group in optimizer.param_groups:
                    group["lr"] = rate
                mean_loss += self._step(optimizer, chosen, phase.unroll, symmetries[drawn[step]])
            loss = mean_loss.item() / batches
            seconds = time.monotonic() - began
            self.progress.epoch = epoch + 1
            self.progress.seconds += seconds
            if not math.isfinite(loss):
                raise RuntimeError(
                    f"training diverged in epoch {epoch + 1}; lower the learning rate"
                )
            report(
                f"phase {number + 1}/{len(self.recipe.phases)} epoch {epoch + 1}/{phase.epochs} "
                f"relative L2 {loss:.5f}, {self.progress.seconds:.0f} s "
                f"({1e3 * seconds / batches:.1f} ms per step)"
            )
            self._save_state(optimizer)

    def _step(
        self,
        optimizer: torch.optim.Optimizer,
        windows: torch.Tensor,
        unroll: int,
        symmetry: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        starts = self.frames.shape[1] - unroll
        sample, start = windows // starts, windows % starts
        field = symmetry(self.frames[sample, start]).unsqueeze(1)
        loss = torch.zeros((), device=self.frames.device)
        for ahead in range(1, unroll + 1):
            field = self.module(field)
            truth = symmetry(self.frames[sample, start + ahead]).unsqueeze(1)
            loss = loss + relative_l2(field, truth).mean()
        loss = loss / unroll
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), _LARGEST_GRADIENT)
        optimizer.step()
        return loss.detach()

    def _save_state(self, optimizer: torch.optim.Optimizer) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        progress = {
            "phase": self.progress.phase,
            "epoch": self.progress.epoch,
            "seconds": self.progress.seconds,
        }
        state = {
            "module": self.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "progress": progress,
            "identity": self._identity,
        }
        temporary = self._state_file.with_suffix(".new")
        torch.save(state, temporary)
        temporary.replace(self._state_file)

    def save_checkpoint(self, folder: Path, command: str) -> ModelConfig:
        """Write the native checkpoint; `command` is the command line that trains it."""
        problem = self.problem
        config = ModelConfig(
            name=problem.name,
            description=problem.description,
            architecture=problem.architecture,
            inputs=problem.inputs,
            outputs=problem.outputs,
            grid=problem.grid,
            normalization=normalization_of(self.statistics),
            time_step=problem.time_step,
            pde=problem.pde,
            statistics=self.statistics,
            training=Training(
                recipe=command,
                seed=self.recipe.seed,
                n_samples=self.recipe.samples,
                epochs=sum(phase.epochs for phase in self.recipe.phases),
                device=device_name(self.frames.device),
                torch=str(torch.__version__),
                seconds=round(self.progress.seconds, 1),
            ),
            sha256="0" * 64,
        )
        return save_model(folder, config, self.module)


def _unchanged(field: torch.Tensor) -> torch.Tensor:
    return field


def one_cycle(progress: float) -> float:
    """Learning-rate factor: a linear rise over the first tenth, then a half cosine to zero."""
    warm_up = 0.1
    if progress < warm_up:
        return progress / warm_up
    return 0.5 * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up)))


def device_name(device: torch.device) -> str:
    """Name of a device for records: the GPU's product name, or 'cpu'."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def default_device() -> str:
    """'cuda' if there is a GPU, else 'cpu'."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201  progress of a command


def positive(text: str) -> int:
    """An argparse type for integers of at least 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line and train one model."""
    parser = argparse.ArgumentParser(
        prog="python -m turbofno.models.zoo.train", description=__doc__
    )
    parser.add_argument("problem", choices=sorted(PROBLEMS))
    parser.add_argument("--device", default=default_device(), help="default: %(default)s")
    parser.add_argument("--samples", type=positive, help="training samples, if not the recipe's")
    parser.add_argument("--epochs", type=positive, help="epochs of each phase, if not the recipe's")
    parser.add_argument("--data", type=Path, default=Path("data"), help="default: %(default)s")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="default: %(default)s")
    parser.add_argument(
        "--out",
        type=Path,
        help="checkpoint folder; default: the zoo's folder for the full recipe, else one in --runs",
    )
    arguments = parser.parse_args(argv)
    problem = PROBLEMS[arguments.problem]
    recipe = problem.recipe
    command = f"python -m turbofno.models.zoo.train {problem.key}"
    if arguments.samples:
        recipe = replace(recipe, samples=arguments.samples)
        command += f" --samples {arguments.samples}"
    if arguments.epochs:
        phases = tuple(replace(phase, epochs=arguments.epochs) for phase in recipe.phases)
        recipe = replace(recipe, phases=phases)
        command += f" --epochs {arguments.epochs}"
    run_folder = arguments.runs / problem.name
    full = recipe == problem.recipe
    zoo_folder = TRAINED / problem.name
    out = arguments.out or (zoo_folder if full else run_folder / "checkpoint")
    problem = replace(problem, recipe=recipe)
    frames = training_frames(problem, recipe.samples, arguments.data, arguments.device)
    run = Run(problem, frames, run_folder, arguments.device)
    run.resume()
    run.train(_log)
    config = run.save_checkpoint(out, command)
    in_zoo = out.resolve() == zoo_folder.resolve()
    measure = f"python -m turbofno.models.zoo.evaluate {problem.name}"
    # evaluate without options measures the model in the zoo
    now = measure if in_zoo else f"turbofno verify {shlex.quote(str(out))}"
    _log(f"saved {out} ({config.sha256[:12]}); now: {now}")


if __name__ == "__main__":
    main()
