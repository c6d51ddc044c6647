"""The text that `serve` prints once it is ready: the URL, and a shell command for each model."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from turbofno.models.importers.refusal import printable
from turbofno.service.codec.fields import grid_limits
from turbofno.service.demo.sample_parameters import sampler_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turbofno.models.core.config import ModelConfig
    from turbofno.service.context import AppContext

_POINTS = 32
"""Most points on each axis of a generated field, if the model allows it: few enough to read the output."""
_MOST_MODELS = 10
"""Most models with a command: those of a large repository would fill screens."""
_KEY = ' -H "Authorization: Bearer $TURBOFNO_API_KEY"'


def greet(url: str, context: AppContext) -> None:
    """Print the banner for the models that are ready."""
    engine = context.engine
    names = dict.fromkeys(status.name for status in engine.statuses() if status.state == "READY")
    # Serve also if standard output is full or closed.
    with suppress(OSError):
        configs = [engine.config(name) for name in names]
        settings = context.settings
        text = banner(url, configs, page=settings.ui, keys=settings.api_keys_file is not None)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def banner(url: str, configs: Sequence[ModelConfig], *, page: bool, keys: bool = False) -> str:
    """The text, with a shell command for each of the first models.

    Each command sends a field from the distribution of the training data if the server has a sampler for the model
    (only with `page`), else a sine wave. With `keys` it sends the API key in TURBOFNO_API_KEY.
    """
    curl = f"curl -sS{_KEY if keys else ''}"
    look = f"; web page: {url}/ui" if page else ""
    lines = [f"turbofno is ready at {url} (documentation: {url}/docs{look}). Try:", ""]
    for config in configs[:_MOST_MODELS]:
        # On one line, because it is a shell comment.
        description = printable(" ".join(config.description.split()))
        call = _sample_command if page and sampler_of(config) else _wave_command
        lines += [f"# {config.name}: {description}", call(curl, url, config), ""]
    if len(configs) > _MOST_MODELS:
        lines += [f"# {len(configs) - _MOST_MODELS} more models: {curl} {url}/v1/models", ""]
    return "\n".join(lines)


def _sample_command(curl: str, url: str, config: ModelConfig) -> str:
    model = f"{url}/v1/models/{config.name}"
    return (
        f"{curl} {model}/sample | {curl} {model}:predict "
        "-H 'Content-Type: application/x-npy' -H 'Accept: application/json' --data-binary @-"
    )


def _wave_command(curl: str, url: str, config: ModelConfig) -> str:
    limits = zip(config.grid.training, *grid_limits(config), strict=True)
    grid = [min(max(min(_POINTS, usual), low), high) for usual, low, high in limits]
    inputs = ", ".join(
        f'"{channel.name}": {_wave(config, number, grid)}'
        for number, channel in enumerate(config.inputs)
    )
    program = (
        "from json import dumps; from math import pi, sin; "
        f'print(dumps({{"inputs": {{{inputs}}}}}))'
    )
    return (
        f"python3 -c '{program}' | {curl} {url}/v1/models/{config.name}:predict "
        "-H 'Content-Type: application/json' -d @-"
    )


def _wave(config: ModelConfig, channel: int, grid: Sequence[int]) -> str:
    """A Python expression for a product of sine waves with the mean and deviation of the training data, if they are known."""
    expression = "*".join(f"sin(2*pi*{axis}/{n})" for axis, n in zip("ijk", grid, strict=False))
    statistics, normalization = config.statistics, config.normalization
    if statistics is not None:
        seen = statistics.inputs[channel]
        expression = f"{seen.mean:.3g} + {seen.std:.3g}*{expression}"
    elif normalization is not None:
        mean, std = normalization.input_mean[channel], normalization.input_std[channel]
        expression = f"{mean:.6g} + {std:.3g}*{expression}"
    for axis, n in reversed(list(zip("ijk", grid, strict=False))):
        expression = f"[{expression} for {axis} in range({n})]"
    return expression
