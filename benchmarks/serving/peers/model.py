"""The model of every peer: the module that turbofno runs on a CPU, with orjson for JSON."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from turbofno.models.core.checkpoint import load_model

CHECKPOINT = "BENCH_CHECKPOINT"
PORT = "BENCH_PORT"
SCRATCH = "BENCH_SCRATCH"
MAX_BATCH = int(os.environ.get("BENCH_MAX_BATCH", "16"))
MAX_WAITING = int(os.environ.get("BENCH_MAX_WAITING", "256"))

Array = NDArray[np.float32]


class Model:
    """The network: float32 fields [n, 1, side, side] in and out."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._module = load_model(Path(os.environ[CHECKPOINT])).module

    def __call__(self, fields: Array) -> Array:
        with torch.inference_mode():
            answer: Array = self._module(torch.from_numpy(fields)).numpy()
        return answer


def from_bytes(body: bytes) -> Array:
    """One square field [1, 1, side, side] of raw float32, writable for torch."""
    values = np.frombuffer(bytearray(body), np.float32)
    side = math.isqrt(values.size)
    return values.reshape(1, 1, side, side)


def from_lists(lists: Any) -> Array:
    """One field [1, 1, side, side] from nested lists of that shape."""
    return np.asarray(lists, np.float32)


def to_json(answer: Array) -> bytes:
    """{"output": nested lists}."""
    document = {"output": np.ascontiguousarray(answer)}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
