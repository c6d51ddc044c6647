"""A proxy that records requests to models and their responses, and checks them against the PDE solvers."""

from __future__ import annotations

import io
import json
import struct
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from turbofno.models.core.config import read_config
from turbofno.models.core.regrid import at_points
from turbofno.models.zoo import TRAINED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from turbofno.models.core.config import ModelConfig

_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "date", "server"}
TOLERANCE = 5.0
"""Maximum error of a field relative to the mean error of the model's card: single fields scatter."""


@dataclass(frozen=True)
class Exchange:
    """One request and its response."""

    method: str
    path: str
    request: httpx.Headers
    body: bytes
    status: int
    response: httpx.Headers
    content: bytes

    @property
    def model(self) -> str:
        return self.path.partition("/v1/models/")[2].partition(":")[0].partition("/")[0]

    @property
    def verb(self) -> str:
        return self.path.partition("?")[0].rpartition(":")[2]


class Recording:
    """The recorded exchanges, and checks of them."""

    def __init__(self, server: str, url: str) -> None:
        self.url = url
        self._server = server
        self.exchanges: list[Exchange] = []

    def asked(self, verb: str) -> list[Exchange]:
        """The exchanges of one kind: predict, rollout, vjp."""
        return [one for one in self.exchanges if one.method == "POST" and one.verb == verb]

    def check(self) -> None:
        """Check that every response is 200 without a warning, and that outputs agree with the PDE solver."""
        for one in self.exchanges:
            assert one.status == 200, (one.path, one.content[:500])
            assert "x-warning" not in one.response, (one.path, one.response["x-warning"])
        for one in self.asked("predict"):
            for field, answer in zip(*_single_fields(one), strict=True):
                self._check_field(one.model, field, answer, steps=1)
        for one in self.asked("vjp"):
            assert b"gradient" in one.content, one.content[:500]
        for one in self.asked("rollout"):
            fields = _arrays(one.request["content-type"], one.body, "inputs")
            events = list(_events(one.content))
            assert not [event for event, _ in events if "warnings" in event]
            last, payload = [pair for pair in events if pair[0]["event"] == "frame"][-1]
            answer = np.frombuffer(payload, "<f4").reshape(fields.shape)
            self._check_field(one.model, fields, answer, steps=last["step"])

    def _check_field(
        self, model: str, field: NDArray[Any], answer: NDArray[Any], *, steps: int
    ) -> None:
        buffer = io.BytesIO()
        np.save(buffer, field.astype(np.float32))
        params = {"steps": steps} if steps > 1 else {}
        solved = httpx.post(
            f"{self._server}/v1/models/{model}:solve",
            params=params, content=buffer.getvalue(), timeout=60,
            headers={"Content-Type": "application/x-npy"},
        )  # fmt: skip
        assert solved.status_code == 200, solved.text
        config = _config(model)
        truth = np.load(io.BytesIO(solved.content))
        if answer.shape != truth.shape:
            truth = at_points(truth[None], answer.shape[1:], config.grid.boundary)[0]
        error = np.linalg.norm(answer - truth) / np.linalg.norm(truth)
        stated = max(one.value for one in config.evaluation if one.steps >= steps)
        assert error < TOLERANCE * stated, (model, steps, error)


def _single_fields(one: Exchange) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Inputs and outputs of a prediction, [channels, *grid] each."""
    inputs = _arrays(one.request["content-type"], one.body, "inputs")
    outputs = _arrays(one.response["content-type"], one.content, "outputs")
    axes = len(_config(one.model).grid.training)
    fields, answers = (
        list(array.reshape(-1, 1, *array.shape[array.ndim - axes :])) for array in (inputs, outputs)
    )
    return fields, answers


def _config(model: str) -> ModelConfig:
    return read_config(TRAINED / model / "config.json")


def _arrays(kind: str, body: bytes, member: str) -> NDArray[Any]:
    if kind.startswith("application/x-npy"):
        return np.asarray(np.load(io.BytesIO(body)))
    (values,) = json.loads(body)[member].values()
    return np.asarray(values)


def _events(stream: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    while stream:
        text, payload = struct.unpack_from("<II", stream)
        yield json.loads(stream[8 : 8 + text]), stream[8 + text : 8 + text + payload]
        stream = stream[8 + text + payload :]


@contextmanager
def recording(server: str) -> Iterator[Recording]:
    """Run the proxy on a free loopback port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._forward()

        def do_POST(self) -> None:
            self._forward()

        def log_message(self, *_: Any) -> None:
            pass

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
            answer = httpx.request(
                self.command, server + self.path, headers=headers, content=body, timeout=60
            )
            kept.exchanges.append(
                Exchange(
                    self.command, self.path, httpx.Headers(headers), body,
                    answer.status_code, answer.headers, answer.content,
                )
            )  # fmt: skip
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP | {"content-encoding"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept = Recording(server, f"http://127.0.0.1:{proxy.server_address[1]}")
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield kept
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
