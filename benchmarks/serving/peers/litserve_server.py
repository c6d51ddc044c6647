"""LitServe: one endpoint for raw bytes, one for JSON, ZeroMQ queues."""

# LitServe reads the annotations of decode_request as objects: no `from __future__ import annotations` here.
import os
from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Body, Request, Response

from benchmarks.serving.peers.model import (
    MAX_BATCH,
    PORT,
    Array,
    Model,
    from_bytes,
    from_lists,
    to_json,
)

_WINDOW_SECONDS = 0.001
"""At 0 LitServe runs every request alone; this is the shortest wait it polls in."""


class Api(litserve.LitAPI):  # type: ignore[misc]
    """What both endpoints share."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's signature
        self.model = Model()

    def batch(self, inputs: list[Array]) -> Array:
        return np.concatenate(inputs)

    def predict(self, x: Array) -> Array:
        return self.model(x)

    def unbatch(self, output: Array) -> list[Array]:
        return [output[i : i + 1] for i in range(len(output))]


class Binary(Api):
    """Raw float32 both ways: FastAPI hands over the bytes of a body that is declared as bytes."""

    def decode_request(
        self, request: Annotated[bytes, Body(media_type="application/octet-stream")]
    ) -> Array:
        return from_bytes(request)

    def encode_response(self, output: Array) -> Response:
        return Response(output.tobytes(), media_type="application/octet-stream")


class Json(Api):
    """JSON; LitServe parses it, the answer is written by orjson."""

    def decode_request(self, request: Request) -> Array:
        document: Any = request
        return from_lists(document["input"])

    def encode_response(self, output: Array) -> Response:
        return Response(to_json(output), media_type="application/json")


if __name__ == "__main__":
    limits = {"max_batch_size": MAX_BATCH, "batch_timeout": _WINDOW_SECONDS}
    server = litserve.LitServer(
        [Binary(api_path="/binary", **limits), Json(api_path="/json", **limits)],
        accelerator="cpu",
        workers_per_device=1,
        fast_queue=True,
        disable_openapi_url=True,
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ[PORT]),
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
