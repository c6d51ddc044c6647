"""The report of `turbofno import`, on the terminal and in the model's card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turbofno.models.core.config import ModelConfig
from turbofno.models.core.regrid import Boundary
from turbofno.models.importers.detect import Checkpoint, describe
from turbofno.models.importers.normalizers import Normalizing
from turbofno.models.importers.refusal import printable
from turbofno.models.importers.result import Imported

_BOUNDARIES: dict[Boundary, str] = {
    "periodic": "for answers on other grids, fields are interpolated as periodic: the last point is one spacing before the end",
    "nodes": "for answers on other grids, fields are interpolated linearly: both ends of the domain are points",
}


def report(
    checkpoint: Checkpoint, imported: Imported, config: ModelConfig, scaling: Normalizing | None
) -> list[str]:
    """Format, architecture and assumptions of an import; the lines of its comparison follow."""
    arch = imported.architecture
    parameters = sum(t.numel() * (2 if t.is_complex() else 1) for t in imported.state.values())
    shown = arch.model_dump(exclude_defaults=True, mode="json")
    kind = "none: inputs and outputs are scaled as in training (add one with --normalizer)"
    if config.normalization is not None:
        kind = "mean and standard deviation of each channel"
    if config.field_normalization is not None:
        kind = f"mean and standard deviation of each point of the grid {list(config.field_normalization.grid)}"
    assumptions = (*imported.assumptions, *(scaling.assumptions if scaling else ()))
    return [
        f"  {imported.format} (file format {describe(checkpoint)})",
        f"  {parameters:,} parameters",
        *(f"  {key}: {value}" for key, value in shown.items()),
        f"  normaliser: {kind}",
        *(f"    {line}" for line in (scaling.lines if scaling else ())),
        "assumptions (--set KEY=VALUE changes those with a key):",
        *(f"  - {line}" for line in (*assumptions, *_about_grid(config, imported))),
        "comparison:",
    ]


def _about_grid(config: ModelConfig, imported: Imported) -> list[str]:
    grid = config.grid
    between = f"{_BOUNDARIES[grid.boundary]} (boundary=periodic or nodes)"
    known = imported.training_grid is not None or config.field_normalization is not None
    return [
        f"the network was trained on the grid {list(grid.training)}{'' if known else ' (change it with --grid)'}; it is "
        f"served on grids from {list(grid.minimum)} to {list(grid.maximum)}",
        # which have no answers on other grids than the input's
        *([between] if config.architecture.positional_grid != "cell_centres" else []),
        f"its channels are named {', '.join(c.name for c in config.inputs)} -> "
        f"{', '.join(c.name for c in config.outputs)} (change them with --inputs, --outputs)",
    ]


def next_steps(config: ModelConfig, repository: Path) -> list[str]:
    """Lines that say what is missing, and how to serve and to call the model."""
    shape = "x".join(map(str, (config.architecture.in_channels, *config.grid.training)))
    return [
        "the model has no trust signals: answers will not warn of inputs unlike the training data",
        f"serve it: turbofno serve --model-repository {repository}",
        f"call it:  turbofno predict {config.name} field.npy -o answer.npy   ({shape} float32)",
    ]


def card(config: ModelConfig, lines: Sequence[str]) -> str:
    """The model's card, Markdown: the lines of the report."""
    quoted = [f"    {printable(line)}" for line in lines]
    head = [
        f"# {config.name}",
        "",
        printable(config.description),
        "",
        "From the report of `turbofno import`:",
        "",
    ]
    return "\n".join([*head, *quoted, ""])
