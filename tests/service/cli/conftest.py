"""A repository, a field and a fake server for the command line."""

from __future__ import annotations

import io
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pytest

from tests.service.tiny import save_tiny, tiny_config
from turbofno.models.core.config import Channel
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    for n_dim in (1, 2):
        save_tiny(root, f"tiny-{n_dim}d", n_dim=n_dim)
    monkeypatch.setenv(env_name("model_repository"), str(root))
    return root


@pytest.fixture
def field(tmp_path: Path) -> Path:
    path = tmp_path / "field.npy"
    np.save(path, np.sin(np.linspace(0, 6, 16, dtype=np.float32))[None])
    return path


_MODELS = ("/v1/models/tiny-1d", "/v1/models/tiny-1d/versions/7")


class _Server(BaseHTTPRequestHandler):
    """A fake server: the list of models, one model and an older version of it, a prediction of two channels.

    Under `/closed` it asks for a key.
    """

    def do_GET(self) -> None:
        config = tiny_config()
        summary = {"name": config.name, "version": "1", "state": "READY", "reason": ""}
        summary |= {"backend": "cuda", "precision": "fp32", "execution": "graph"}
        summary |= {"execution_reason": "a norm"}
        summary |= {"trust": "no trust signals, not evaluated"}
        if self.path == "/v1/models":
            broken = {"name": "b", "version": "12", "state": "UNAVAILABLE", "reason": "no weights"}
            broken |= {"backend": "", "precision": "", "execution": "", "execution_reason": ""}
            listing = [summary | {"description": config.description}, broken]
            self._answer(200, orjson.dumps({"models": listing}))
        elif self.path == "/hostile/v1/models":
            text = "\x1b[2J\nother-model"
            self._answer(200, orjson.dumps({"models": [summary | {"description": text}]}))
        elif self.path == "/closed/v1/models":
            self._answer(401, orjson.dumps({"detail": "an API key is needed"}))
        elif self.path in _MODELS:
            heat = (Channel(name="heat"),)
            older = {"inputs": heat} if self.path in _MODELS[1:] else {}
            config = config.model_copy(update=older)
            inputs, outputs, grid = (
                config.model_dump(mode="json")[key] for key in ("inputs", "outputs", "grid")
            )
            tensors = {"input": {"channels": inputs}, "output": {"channels": outputs}}
            self._answer(200, orjson.dumps({**summary, **tensors, "grid": grid}))
        else:
            self._answer(404, orjson.dumps({"detail": "there is no model 'other'"}))

    def do_POST(self) -> None:
        array = np.load(io.BytesIO(self.rfile.read(int(self.headers["content-length"]))))
        if self.path.partition(":")[0] not in _MODELS:
            self._answer(404, orjson.dumps({"detail": "there is no model 'other'"}))
            return
        buffer = io.BytesIO()
        np.save(buffer, np.concatenate([2 * array, 3 * array], axis=-2))
        self._answer(200, buffer.getvalue())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
