"""Two small model configurations for codec tests: one channel in 1D, two channels in 2D."""

from __future__ import annotations

from typing import Any

import pytest

from turbofno.models.core.config import ModelConfig


def make_config(**changes: Any) -> ModelConfig:
    base: dict[str, Any] = {
        "name": "burgers-1d",
        "description": "test",
        "architecture": {
            "in_channels": 1,
            "out_channels": 1,
            "hidden_channels": 4,
            "n_layers": 1,
            "modes": [3],
        },
        "inputs": [{"name": "u0", "units": "m/s"}],
        "outputs": [{"name": "u1", "units": "m/s"}],
        "grid": {
            "training": [1024],
            "minimum": [4],
            "maximum": [4096],
            "extent": [1.0],
            "boundary": "periodic",
        },
        "sha256": "0" * 64,
    }
    return ModelConfig.model_validate(base | changes)


def make_2d_config() -> ModelConfig:
    return make_config(
        name="flow-2d",
        architecture={
            "in_channels": 2,
            "out_channels": 3,
            "hidden_channels": 4,
            "n_layers": 1,
            "modes": [4, 3],
        },
        inputs=[{"name": "a"}, {"name": "b"}],
        outputs=[{"name": "p"}, {"name": "q"}, {"name": "r"}],
        grid={
            "training": [8, 8],
            "minimum": [2, 2],
            "maximum": [16, 12],
            "extent": [1.0, 1.0],
            "boundary": "nodes",
        },
    )


@pytest.fixture
def one_d() -> ModelConfig:
    return make_config()


@pytest.fixture
def two_d() -> ModelConfig:
    return make_2d_config()
