"""Rollouts are not offered yet where the engine is another process, and say so."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from service.errors import Unsupported
from service.pipeline.engine import PredictRequest, RolloutRequest
from service.processes.remote_engine import RemoteEngine


def test_a_front_end_refuses_with_the_setting_to_change() -> None:
    initial = PredictRequest("tiny-flow", None, np.zeros((1, 1, 8), np.float32), "id")
    # without an engine, whose parts it does not look at
    frames = RemoteEngine.__new__(RemoteEngine).rollout(RolloutRequest(initial, last=3))
    with pytest.raises(Unsupported, match="TURBOFNO_FRONTENDS=0"):
        asyncio.run(anext(frames))  # type: ignore[arg-type]
