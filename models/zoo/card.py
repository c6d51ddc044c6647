"""Model cards: card.md and a picture of input, truth, prediction and error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from turbofno.models.core.config import ModelConfig, Parameter
from turbofno.models.core.registry import CARD_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from matplotlib.figure import FigureBase
    from numpy.typing import NDArray

    Field = NDArray[np.float32]


class CardExample(Protocol):
    """A held-out sample, each [*grid] in physical units; `times` of input and truth for a rollout."""

    @property
    def input(self) -> torch.Tensor: ...
    @property
    def truth(self) -> torch.Tensor: ...
    @property
    def prediction(self) -> torch.Tensor: ...
    @property
    def times(self) -> tuple[float, float] | None: ...


def write_card(
    folder: Path, config: ModelConfig, title: str, example: CardExample, *, device: str
) -> None:
    """Write card.md and card.png into a checkpoint's folder."""
    (folder / CARD_FILE).write_text(_text(config, title, device))
    _draw(folder / "card.png", config, example)


def _range(parameter: Parameter) -> str:
    low, high = parameter.minimum, parameter.maximum
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _text(config: ModelConfig, title: str, device: str) -> str:
    arch, pde, training, data = (
        config.architecture,
        config.pde,
        config.training,
        config.statistics,
    )
    lines = [f"# {config.name}: {title}", "", config.description, ""]
    if pde is not None:
        lines += [
            f"- Equation: `{pde.equation}`",
            f"- Domain: {pde.domain}",
            f"- Inputs it was trained on: {pde.input_distribution}",
        ]
        lines += [f"- Parameter {p.name}: {_range(p)} ({p.description})" for p in pde.parameters]
        lines.append(f"- After: {pde.reference}")
    if config.time_step is not None:
        lines.append(f"- Autoregressive: one call advances the time by {config.time_step:g}")
    lines += [
        "",
        "## Held-out error",
        "",
        "Mean relative L2 against our own solver on samples the training never saw.",
        f"Measured on {device} by `python -m turbofno.models.zoo.evaluate {config.name} --write`.",
        "",
        "| what | grid | samples | relative L2 |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {m.name} | {' x '.join(map(str, m.grid))} | {m.n_samples} | {m.value:.3%} |"
        for m in config.evaluation
    ]
    if any(m.steps > 1 for m in config.evaluation):
        lines += [
            "",
            "One call: from the solver's states that the rollout passes, not from earlier ones.",
        ]
    lines += [
        "",
        "![input, truth, prediction and error of the held-out sample of median error](card.png)",
        "",
        f"On fresh inputs, and in time against the solver: `turbofno verify {config.name}` (docs/how-to/verify.md).",
        "",
        "## Shape",
        "",
        f"- Input `[batch, {arch.in_channels}, *grid]`, output `[batch, {arch.out_channels}, *grid]`, "
        "float32, physical units",
        f"- Trained on {' x '.join(map(str, config.grid.training))} points; serves "
        f"{' x '.join(map(str, config.grid.minimum))} to {' x '.join(map(str, config.grid.maximum))}; "
        f"boundary: {config.grid.boundary}",
        f"- FNO, {arch.n_layers} layers, {arch.hidden_channels} hidden channels, "
        f"modes {list(arch.modes)}",
    ]
    if data is not None and data.distribution is not None:
        lines += [
            "",
            "## Trust",
            "",
            _signals(config),
            f"to the true error, by `python -m benchmarks.trust.ranking {config.name} --write` (docs/explanation/trust.md):",
            "",
            "![signals against the true error, in and out of distribution, and ROC curves](trust.png)",
        ]
    if training is not None:
        lines += [
            "",
            "## Training",
            "",
            f"- `{training.recipe}`: {training.n_samples} samples of our solver, "
            f"{training.epochs} epochs, seed {training.seed}",
            f"- {training.seconds:.0f} s on {training.device}, torch {training.torch}",
        ]
    if data is not None:
        lines += ["", "## Training data", "", "| channel | mean | std | min | max |"]
        lines.append("|---|---|---|---|---|")
        for channels, rows in ((config.inputs, data.inputs), (config.outputs, data.outputs)):
            side = "input" if channels is config.inputs else "output"
            lines += [
                f"| {side} {c.name} | {r.mean:.4g} | {r.std:.4g} | {r.minimum:.4g} | {r.maximum:.4g} |"
                for c, r in zip(channels, rows, strict=True)
            ]
    return "\n".join(lines) + "\n"


def _signals(config: ModelConfig) -> str:
    """The opening of the sentence on the signals, which goes on with their relation to the true error."""
    carried = "Each answer carries the distance of its input from the training data"
    if config.pde is not None and config.pde.residual is not None:
        return f"{carried} and the residual of the PDE. Their relation"
    return f"{carried}; its PDE has no residual here. The relation"


def _draw(file: Path, config: ModelConfig, example: CardExample) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=sample_size(example.truth.ndim), layout="constrained")
    draw_sample(figure, config, example)
    figure.savefig(file, dpi=100)


def sample_size(n_dim: int) -> tuple[float, float]:
    """Width and height in inches of a figure for `draw_sample`."""
    return {1: (12.0, 3.3), 2: (14.0, 3.5), 3: (14.0, 6.8)}[n_dim]


def draw_sample(figure: FigureBase, config: ModelConfig, example: CardExample) -> None:
    """Draw input, truth, prediction and error of a sample: lines in 1D, heat maps in 2D, of two middle planes in 3D."""
    fields = [t.cpu().numpy() for t in (example.input, example.truth, example.prediction)]
    error = fields[2] - fields[1]
    start, end = ("", "") if example.times is None else (f", t = {t:g}" for t in example.times)
    titles = (
        f"input {config.inputs[0].name}{start}",
        f"truth {config.outputs[0].name}{end}",
        f"prediction{end}",
        f"prediction - truth{end}",
    )
    if error.ndim == 1:
        _lines(figure, titles, (*fields, error), config)
    else:
        _maps(figure, titles, (*fields, error), config)


def _quantities(config: ModelConfig) -> tuple[str, str, str, str]:
    """Quantity and units of input, truth, prediction and error."""
    given, answer = config.inputs[0].quantity, config.outputs[0].quantity
    return given, answer, answer, answer


def _lines(
    figure: FigureBase, titles: Sequence[str], fields: Sequence[Field], config: ModelConfig
) -> None:
    points = len(fields[0])
    x = np.linspace(0, config.grid.extent[0], points, endpoint=config.grid.boundary == "nodes")
    before, after, difference = figure.subplots(1, 3)
    before.plot(x, fields[0], color="0.4")
    before.set_title(titles[0])
    after.plot(x, fields[1], color="C0", label=titles[1])
    after.plot(x, fields[2], "--", color="C1", label=titles[2])
    after.set_title("truth and prediction")
    after.legend(fontsize="small")
    difference.plot(x, fields[3], color="C3")
    difference.set_title(titles[3])
    given, answer, *_ = _quantities(config)
    for axis, quantity in ((before, given), (after, answer), (difference, answer)):
        axis.set_xlabel("x")
        axis.set_ylabel(quantity)


def _maps(
    figure: FigureBase, titles: Sequence[str], fields: Sequence[Field], config: ModelConfig
) -> None:
    low, high = float(fields[1].min()), float(fields[1].max())
    largest = float(np.abs(fields[3]).max())
    looks = (
        ("viridis", None, None),
        ("viridis", low, high),
        ("viridis", low, high),
        ("RdBu_r", -largest, largest),
    )
    # one row in 2D; in 3D the middle planes of constant z and of constant y
    rows = ["xy"] if fields[0].ndim == 2 else ["xy", "xz"]
    axes = figure.subplots(len(rows), 4, squeeze=False)
    for plane, row in zip(rows, axes, strict=True):
        across, up = ("xyz".index(name) for name in plane)
        extent = config.grid.extent
        panels = zip(row, titles, fields, looks, _quantities(config), strict=True)
        for axis, title, field, (colours, least, most), quantity in panels:
            shown, where = _middle_plane(field, plane, config)
            image = axis.imshow(
                shown.T,  # the first grid axis is x, to the right
                origin="lower",
                extent=(0, extent[across], 0, extent[up]),
                cmap=colours,
                vmin=least,
                vmax=most,
            )
            axis.set_title(f"{title}{where}")
            axis.set_xlabel(plane[0])
            axis.set_ylabel(plane[1])
            figure.colorbar(image, ax=axis, fraction=0.046, pad=0.03, label=quantity)


def _middle_plane(field: Field, plane: str, config: ModelConfig) -> tuple[Field, str]:
    """The field's middle plane along the axes in `plane`, and its place for a title; a 2D field as it is."""
    if field.ndim == 2:
        return field, ""
    [name] = set("xyz") - set(plane)
    axis = "xyz".index(name)
    points, grid = field.shape[axis], config.grid
    middle = points // 2
    place = grid.extent[axis] * middle / (points - (grid.boundary == "nodes"))
    units = "" if grid.units == "1" else f" {grid.units}"
    return field.take(middle, axis=axis), f", {name} = {place:g}{units}"
