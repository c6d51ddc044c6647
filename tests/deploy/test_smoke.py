"""deploy/smoke.py names the fault of a service; test_monitoring.py has one that works."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.deploy.smoke import smoke
from tests.e2e.server_process import ServerProcess, free_port
from tests.service.tiny import save_tiny


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


def test_a_model_whose_fields_are_too_large_for_json_is_well(tmp_path: Path) -> None:
    save_tiny(tmp_path / "repository")
    limit = ("--max-json-bytes", "300")
    with ServerProcess(tmp_path / "repository", tmp_path / "log", *limit) as server:
        done = smoke(server.url)
    assert done.returncode == 0, done.stderr
    assert "(a field is too large for JSON)" in done.stdout
