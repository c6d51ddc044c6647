"""deploy/smoke.py passes on a working service and names the fault of others."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

from tests.e2e.server_process import ROOT, free_port

if TYPE_CHECKING:
    from tests.deploy.conftest import Watched


def smoke(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it in an interpreter without any packages."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "deploy" / "smoke.py"), url, *options],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_running_service_passes(watched: Watched) -> None:
    done = smoke(watched.service.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all well\n")
    for model in ("tiny-1d 16:", "tiny-2d 16x16:"):
        assert model in done.stdout


def test_unreachable_service_fails() -> None:
    done = smoke(f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr


def test_unready_service_fails_with_the_reason() -> None:
    class Unready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"ready": False, "reasons": ["model m is LOADING"]}).encode()
            self.send_response(200 if self.path == "/healthz" else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Unready) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        done = smoke(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert done.returncode == 1
    assert "model m is LOADING" in done.stderr
