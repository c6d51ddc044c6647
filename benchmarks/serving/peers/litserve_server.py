"""LitServe: one endpoint for bodies of raw float32 or JSON text."""

# no `from __future__ import annotations`: LitServe needs the annotations of decode_request as objects
import os
from typing import Annotated, Any

import litserve
import numpy as np
import orjson
from fastapi import Body, Response

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
"""With 0, LitServe runs every request alone; this is the shortest interval in which it polls."""
_JSON_BEGINS = b'{"input"'


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Declares the body as bytes, which FastAPI passes through; LitServe itself supports only JSON and forms."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's signature
        self.model = Model()

    def decode_request(
        self,
        request: Annotated[bytes, Body(media_type="application/octet-stream")],
        context: dict[str, Any],
    ) -> Array:
        context["json"] = request.startswith(_JSON_BEGINS)
        return (
            from_lists(orjson.loads(request)["input"]) if context["json"] else from_bytes(request)
        )

    def batch(self, inputs: list[Array]) -> Array:
        return np.concatenate(inputs)

    def predict(self, x: Array) -> Array:
        return self.model(x)

    def unbatch(self, output: Array) -> list[Array]:
        return [output[i : i + 1] for i in range(len(output))]

    def encode_response(self, output: Array, context: dict[str, Any]) -> Response:
        return Response(to_json(output) if context["json"] else output.tobytes())


if __name__ == "__main__":
    server = litserve.LitServer(
        Api(max_batch_size=MAX_BATCH, batch_timeout=_WINDOW_SECONDS),
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
