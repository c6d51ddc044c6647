"""No serving framework: uvicorn, an ASGI function, torch; no batching, checks or limits."""

from __future__ import annotations

import os

import orjson
import uvicorn
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

from benchmarks.serving.peers.model import PORT, Model, from_bytes, from_lists, to_json


class Application:
    """POST /binary and POST /json."""

    def __init__(self) -> None:
        self._model = Model()

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        if scope["type"] != "http":
            return
        chunks, more = [], True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            chunks.append(message["body"])
            more = message["more_body"]
        body = b"".join(chunks)
        if scope["path"] == "/json":
            answer = to_json(self._model(from_lists(orjson.loads(body)["input"])))
        else:
            answer = self._model(from_bytes(body)).tobytes()
        length = str(len(answer)).encode()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", length)],
                "trailers": False,
            }
        )
        await send({"type": "http.response.body", "body": answer, "more_body": False})


if __name__ == "__main__":
    uvicorn.run(
        Application(),
        port=int(os.environ[PORT]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
