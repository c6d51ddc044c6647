"""BentoML: a batched endpoint for raw bytes and one for JSON, in one worker process."""

from __future__ import annotations

from typing import Annotated, Any

import bentoml
import numpy as np
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from benchmarks.serving.peers.model import (
    MAX_BATCH,
    MAX_WAITING,
    Array,
    Model,
    from_bytes,
    to_json,
)

_MAX_LATENCY_MS = 30_000


def _from_json(body: bytes) -> Array:
    import orjson

    return np.asarray(orjson.loads(body)["input"], np.float32)


def _raw(content: str) -> Any:
    return WithJsonSchema({"type": "string", "contentMediaType": content})


# A type that BentoML treats as text, so that it passes bytes through. Its own array type converts to Python lists.
Raw = Annotated[
    Any,
    PlainValidator(lambda x: from_bytes(x) if isinstance(x, bytes) else x),
    PlainSerializer(lambda x: x.tobytes()),
    _raw("application/octet-stream"),
]
Numbers = Annotated[
    Any,
    PlainValidator(lambda x: _from_json(x) if isinstance(x, bytes) else x),
    PlainSerializer(to_json),
    _raw("application/json"),
]
LIMITS = {"batchable": True, "max_batch_size": MAX_BATCH, "max_latency_ms": _MAX_LATENCY_MS}


@bentoml.service(workers=1, traffic={"timeout": 30, "max_concurrency": MAX_WAITING})
class Fields:
    """POST /binary and POST /json."""

    def __init__(self) -> None:
        self._model = Model()

    @bentoml.api(route="/binary", **LIMITS)
    async def binary(self, fields: Raw, /) -> Raw:
        return self._model(fields)

    @bentoml.api(route="/json", **LIMITS)
    async def numbers(self, fields: Numbers, /) -> Numbers:
        return self._model(fields)
