"""Answers of fields that are cut over devices carry the input distance of whole fields, and its warning."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.service.processes.running import running
from tests.service.tiny import rollable_config
from turbofno.models.core.checkpoint import save_model
from turbofno.models.core.config import GridSpec, ModelConfig
from turbofno.models.core.fno import FNO
from turbofno.models.core.statistics import (
    ChannelStatistics,
    GridThresholds,
    Statistics,
    Thresholds,
)
from turbofno.models.trust.calibrate import distribution_of
from turbofno.models.trust.signals import Signals
from turbofno_client import Client

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

GRID = (18, 16)
LIMIT = 1.5

pytestmark = [
    pytest.mark.timeout(170),
    pytest.mark.filterwarnings("ignore::turbofno_client.PredictionWarning"),
]


def save_cut(root: Path) -> tuple[ModelConfig, FNO]:
    """A rollable model whose fields are cut, as if trained on white noise of deviation 1."""
    config = rollable_config()
    arch = config.architecture.model_copy(update={"modes": (4, 3), "n_layers": 2})
    channel = ChannelStatistics(mean=0.0, std=1.0, minimum=-100.0, maximum=100.0)
    here = GridThresholds(grid=GRID, n_fields=1, input_distance=LIMIT, residual=None)
    statistics = Statistics(
        n_samples=400,
        inputs=(channel,),
        outputs=(channel,),
        distribution=distribution_of(torch.randn(400, 1, *GRID), torch.ones(1)),
        thresholds=Thresholds(exceeded_by=0.001, grids=(here,)),
    )
    grid = GridSpec(
        training=GRID, minimum=(8, 8), maximum=(64, 64), extent=(1.0, 1.0), boundary="periodic"
    )
    update = {"name": "cut", "architecture": arch, "slabs": True, "grid": grid}
    config = config.model_copy(update=update | {"statistics": statistics})
    module = FNO(arch).eval()
    return save_model(root / "cut", config, module), module


def distances(config: ModelConfig, fields: NDArray[np.float32]) -> NDArray[np.float32]:
    x = torch.from_numpy(fields)
    return Signals(config)(x, x)["input_distance"].numpy()


def test_a_cut_field_has_the_input_distance_of_the_whole_field(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config, module = save_cut(tmp_path)
    noise = generator().normal(size=(4, 1, *GRID)) * np.array([1, 1, 10, 30])[:, None, None, None]
    fields = noise.astype(np.float32)
    states = [torch.from_numpy(fields)]
    with torch.inference_mode():
        for _ in range(7):
            states.append(module(states[-1]))
    known = [distances(config, state.numpy()) for state in states]
    with running(tmp_path, devices="cpu+cpu") as service:
        service.until_ready(90)
        for part in (fields, fields[:2]):
            with service.client() as client:
                body = {"inputs": {"w": part[:, 0].tolist()}}
                answer = client.post("/v1/models/cut:predict", json=body).json()
            assert answer["trust"].keys() == {"input_distance"}
            np.testing.assert_allclose(
                answer["trust"]["input_distance"], known[0][: len(part)], rtol=1e-5
            )
            warned = any("input_distance" in one for one in answer.get("warnings", ()))
            assert warned == (len(part) == 4)
        with Client(service.url) as client:
            frames = list(client.rollout("cut", fields, steps=7, frames=3))
    # A frame has the largest of the states that left the devices since the last one.
    ends = [frame.step for frame in frames]
    assert ends[-1] == 7
    seen = [0, *ends]
    for frame, (begin, end) in zip(frames, itertools.pairwise(seen), strict=True):
        largest = max(known[end].max(), 0.0 if begin else known[0].max())
        assert frame.trust["input_distance"] == pytest.approx(largest, rel=1e-3)
