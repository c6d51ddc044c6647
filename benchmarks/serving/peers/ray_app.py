"""Ray Serve: one replica with a batched method; the path selects raw bytes or JSON."""

from __future__ import annotations

import logging
import os
import signal
import threading

import numpy as np
import orjson
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.serving.peers.model import (
    MAX_BATCH,
    MAX_WAITING,
    PORT,
    SCRATCH,
    Array,
    Model,
    from_bytes,
    from_lists,
    to_json,
)


@serve.deployment(
    max_ongoing_requests=MAX_WAITING,
    max_queued_requests=MAX_WAITING,
    logging_config={"enable_access_log": False},
)
class Fields:
    """POST /binary and POST /json."""

    def __init__(self) -> None:
        self._model = Model()

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=0.0)
    async def run(self, fields: list[Array]) -> list[Array]:
        answers = self._model(np.concatenate(fields))
        return [answers[i : i + 1] for i in range(len(answers))]

    async def __call__(self, request: Request) -> Response:
        body = await request.body()
        if request.url.path == "/json":
            answer = await self.run(from_lists(orjson.loads(body)["input"]))
            return Response(to_json(answer), media_type="application/json")
        return Response((await self.run(from_bytes(body))).tobytes())


if __name__ == "__main__":
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=200 * 1024 * 1024,
        logging_level=logging.ERROR,
        _temp_dir=os.environ[SCRATCH],
        runtime_env={"env_vars": dict(os.environ)},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ[PORT])})
    serve.run(Fields.bind(), name="fields", route_prefix="/")  # type: ignore[attr-defined]
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
