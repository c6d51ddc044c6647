"""deploy/smoke.py names the fault of a service; test_monitoring.py has one that works."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

from tests.deploy.smoke import smoke
from tests.e2e.server_process import ServerProcess, free_port
from tests.service.tiny import save_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[_Handler]) -> Iterator[str]:
    """The URL of a server with this handler."""
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_unreachable_service_fails() -> None:
    done = smoke(f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr


def test_unready_service_fails_with_the_reason() -> None:
    class Unready(_Handler):
        def do_GET(self) -> None:
            body = json.dumps({"ready": False, "reasons": ["model m is LOADING"]}).encode()
            self.send_response(200 if self.path == "/healthz" else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Unready) as url:
        done = smoke(url)
    assert done.returncode == 1
    assert "model m is LOADING" in done.stderr


def test_a_redirect_does_not_carry_the_key_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURBOFNO_API_KEY", "0123456789abcdef")
    asked: list[str] = []

    class Other(_Handler):
        def do_GET(self) -> None:
            asked.append(self.path)

    with serving(Other) as other:

        class Gateway(_Handler):
            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", f"{other}/login")
                self.send_header("Content-Length", "0")
                self.end_headers()

        with serving(Gateway) as url:
            done = smoke(url)
    assert done.returncode == 1
    assert "/healthz gave 302, expected 200" in done.stderr
    assert asked == []


def test_a_model_whose_fields_are_too_large_for_json_is_well(tmp_path: Path) -> None:
    save_tiny(tmp_path / "repository")
    limit = ("--max-json-bytes", "300")
    with ServerProcess(tmp_path / "repository", tmp_path / "log", *limit) as server:
        done = smoke(server.url)
    assert done.returncode == 0, done.stderr
    assert "(a field is too large for JSON)" in done.stdout
