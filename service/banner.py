"""The text that `serve` prints once it is ready: the URL, and a shell command for each model."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from turbofno.service.codec.fields import grid_limits
from turbofno.service.demo.sample_parameters import parameters_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turbofno.models.core.config import ModelConfig
    from turbofno.service.context import AppContext

_POINTS = 32
"""Points on each axis of a generated field, if the model allows it: few enough to read the output."""


def greet(url: str, context: AppContext) -> None:
    """Print the banner for the models that are ready."""
    engine = context.engine
    names = dict.fromkeys(status.name for status in engine.statuses() if status.state == "READY")
    # Serve also if standard output is full or closed.
    with suppress(OSError):
        configs = [engine.config(name) for name in names]
        sys.stdout.write(banner(url, configs, page=context.settings.ui) + "\n")
        sys.stdout.flush()


def banner(url: str, configs: Sequence[ModelConfig], *, page: bool) -> str:
    """The text, with a shell command for each model.

    Each command sends a field from the distribution of the training data if the server has a sampler for the model
    (only with `page`), else a sine wave.
    """
    look = f"; web page: {url}/ui" if page else ""
    lines = [f"turbofno is ready at {url} (documentation: {url}/docs{look}). Try:", ""]
    for config in configs:
        # On one line, because it is a shell comment.
        description = " ".join(config.description.split())
        call = _sample_command if page and parameters_of(config.pde) else _wave_command
        lines += [f"# {config.name}: {description}", call(url, config), ""]
    return "\n".join(lines)


def _sample_command(url: str, config: ModelConfig) -> str:
    model = f"{url}/v1/models/{config.name}"
    return (
        f"curl -sS {model}/sample | curl -sS {model}:predict "
        "-H 'Content-Type: application/x-npy' -H 'Accept: application/json' --data-binary @-"
    )


def _wave_command(url: str, config: ModelConfig) -> str:
    lowest, highest = grid_limits(config)
    grid = [min(max(_POINTS, low), high) for low, high in zip(lowest, highest, strict=True)]
    inputs = ", ".join(
        f'"{channel.name}": {_wave(config, number, grid)}'
        for number, channel in enumerate(config.inputs)
    )
    program = (
        "from json import dumps; from math import pi, sin; "
        f'print(dumps({{"inputs": {{{inputs}}}}}))'
    )
    return (
        f"python3 -c '{program}' | curl -sS {url}/v1/models/{config.name}:predict "
        "-H 'Content-Type: application/json' -d @-"
    )


def _wave(config: ModelConfig, channel: int, grid: Sequence[int]) -> str:
    """A Python expression for a product of sine waves with the mean and deviation of the training data."""
    expression = "*".join(f"sin(2*pi*{axis}/{n})" for axis, n in zip("ijk", grid, strict=False))
    if config.statistics is not None:
        seen = config.statistics.inputs[channel]
        expression = f"{seen.mean:.3g} + {seen.std:.3g}*{expression}"
    for axis, n in reversed(list(zip("ijk", grid, strict=False))):
        expression = f"[{expression} for {axis} in range({n})]"
    return expression
