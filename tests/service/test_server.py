"""The real server process: start, refused connections, drain on signals."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from tests.clock import within
from tests.service.forked import Forked, start
from tests.service.process_log import announced
from tests.service.tiny import save_tiny, tiny_config
from tests.service.waiting import until
from turbofno.models.core.checkpoint import save_model
from turbofno.models.core.fno import FNO
from turbofno.service.app import create_app
from turbofno.service.server import DrainingServer
from turbofno.service.settings import Settings

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]
CODE = "import sys; from turbofno.service.server import run; from turbofno.service.settings import Settings; sys.exit(run(Settings()))"
LOSE_DEVICE = """
from turbofno.service.errors import DeviceLost
from turbofno.service.runtime.model_instance import ModelInstance

start = ModelInstance.start

def lost(slot, parts):
    if (parts[0] == -1).any():
        raise DeviceLost("the GPU failed", retry_after=1.0)
    return start(slot, parts)

ModelInstance.start = lost
"""
RUN_SLOWLY = """
import time
from turbofno.service.runtime.model_instance import ModelInstance

start = ModelInstance.start

def slow(slot, parts):
    time.sleep(1)
    return start(slot, parts)

ModelInstance.start = slow
"""
LOAD_SLOWLY = """
import time
from turbofno.service.runtime import repository

repository.load_model = lambda *_, **__: time.sleep(600)
"""
BODY = json.dumps({"inputs": {"u0": [0.5] * 16}}).encode()


@dataclass
class Server:
    process: Forked
    port: int
    log: list[str]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}")


@contextmanager
def running(repository: Path, *, before: str = "", **settings: object) -> Iterator[Server]:
    environment = {**os.environ, "TURBOFNO_PORT": "0", "TURBOFNO_DEVICE": "cpu"}
    environment |= {f"TURBOFNO_{key.upper()}": str(value) for key, value in settings.items()}
    environment["TURBOFNO_MODEL_REPOSITORY"] = str(repository)
    process = start(before + CODE, cwd=ROOT, env=environment)
    log: list[str] = []
    with announced(process, r"running on http://(?:127\.0\.0\.1|\[::\]):(\d+)", log) as port:
        yield Server(process, int(port or 0), log)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("zoo")
    save_tiny(root)
    return root


def until_ready(server: Server) -> None:
    for _ in range(500):
        if server.get("/readyz").status_code == 200:
            return
        time.sleep(0.02)
    raise AssertionError("never ready: " + "".join(server.log))


def read_response(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of one response with Content-Length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None
    while len(body) < int(found[1]):
        body += connection.recv(65536)
    return int(head.split()[1]), body


def predict_head(length: int) -> bytes:
    return (
        "POST /v1/models/tiny-1d:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_accepted_requests_and_exits_0(
    repository: Path, number: signal.Signals
) -> None:
    with running(repository) as server, ExitStack() as sockets:
        until_ready(server)
        accepted = sockets.enter_context(server.connect())
        accepted.sendall(predict_head(len(BODY)) + BODY[:5])
        time.sleep(0.2)
        server.process.send_signal(number)
        time.sleep(0.3)
        late = sockets.enter_context(server.connect())
        late.sendall(predict_head(len(BODY)) + BODY)
        status, body = read_response(late)
        assert status == 503, "still listening, but refuses new work"
        assert b"shutting down" in body
        assert server.get("/readyz").status_code == 503
        assert server.get("/healthz").status_code == 200
        accepted.sendall(BODY[5:])
        status, body = read_response(accepted)
        assert status == 200
        assert len(json.loads(body)["outputs"]["u"]) == 16
        assert server.process.wait(10) == 0


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_the_wildcard_of_ipv6_listens_on_ipv4_too(repository: Path) -> None:
    with running(repository, host="::") as server:
        until_ready(server)
        assert httpx.get(f"http://[::1]:{server.port}/readyz").status_code == 200
        # Its port is taken for both.
        with running(repository, host="::", port=server.port) as second:
            assert second.process.wait(20) == 1
        assert any("set another TURBOFNO_HOST or TURBOFNO_PORT" in line for line in second.log)
        server.process.terminate()
        assert server.process.wait(10) == 0


def test_idle_server_exits_at_once(repository: Path) -> None:
    with running(repository) as server:
        until_ready(server)
        started = time.monotonic()
        server.process.terminate()
        assert server.process.wait(10) == 0
        within(time.monotonic() - started, 3)


def test_second_signal_aborts(repository: Path) -> None:
    with running(repository) as server:
        until_ready(server)
        with server.connect() as stuck:
            stuck.sendall(predict_head(len(BODY)) + BODY[:5])
            time.sleep(0.2)
            server.process.terminate()
            time.sleep(0.5)
            assert server.process.poll() is None
            server.process.terminate()
            status, body = read_response(stuck)
            assert (status, b"retry" in body) == (503, True), "an answer, not a dropped connection"
            assert server.process.wait(5) == 1
    assert any("aborted by a second signal" in line for line in server.log)
    assert not any("Traceback" in line for line in server.log)


def test_a_second_signal_aborts_requests_that_wait_for_the_device(repository: Path) -> None:
    with running(repository, before=RUN_SLOWLY, max_batch_size=1) as server, ExitStack() as sockets:
        until_ready(server)
        waiting = [sockets.enter_context(server.connect()) for _ in range(12)]
        for one in waiting:
            one.sendall(predict_head(len(BODY)) + BODY)
        time.sleep(0.2)
        server.process.terminate()
        time.sleep(0.5)
        assert server.process.poll() is None
        server.process.terminate()
        statuses = [read_response(one)[0] for one in waiting]
        assert statuses.count(503) >= 8, "at a second each, few were answered before"
        assert set(statuses) <= {200, 503}
        assert server.process.wait(8) == 1


def test_the_end_waits_for_nobody_who_does_not_read(repository: Path) -> None:
    with running(repository) as server:
        until_ready(server)
        with socket.socket() as unread:
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            unread.connect(("127.0.0.1", server.port))
            unread.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 600)
            time.sleep(2)
            server.process.terminate()
            time.sleep(1)
            server.process.terminate()
            assert server.process.wait(8) == 1


def test_lost_device_is_answered_with_503_and_ends_the_process_with_1(repository: Path) -> None:
    body = json.dumps({"inputs": {"u0": [-1.0] * 16}}).encode()
    with running(repository, before=LOSE_DEVICE) as server, ExitStack() as sockets:
        until_ready(server)
        slow, last = (sockets.enter_context(server.connect()) for _ in range(2))
        slow.sendall(predict_head(len(BODY)) + BODY[:5])
        time.sleep(0.1)
        last.sendall(predict_head(len(body)) + body)
        status, answer = read_response(last)
        assert (status, b"the GPU failed" in answer) == (503, True)
        ready = server.get("/readyz")
        assert (ready.status_code, "the GPU failed" in ready.text) == (503, True)
        slow.sendall(BODY[5:])
        assert read_response(slow)[0] == 503, "an answer, not a dropped connection"
        assert server.process.wait(10) == 1
        assert any("exiting with status 1: the GPU failed" in line for line in server.log)


def test_a_signal_while_a_model_is_loaded_ends_the_process_and_says_so(repository: Path) -> None:
    with running(repository, before=LOAD_SLOWLY) as server:
        # A signal before the server has started aborts the start.
        assert server.get("/healthz").status_code == 200
        server.process.terminate()
        assert server.process.wait(20) == 0
        assert "while model tiny-1d version 1 is loaded" in "".join(server.log)


def test_the_drain_ends_at_its_time_limit(repository: Path) -> None:
    with running(repository, drain_seconds=0.5) as server:
        until_ready(server)
        with server.connect() as stuck:
            stuck.sendall(predict_head(len(BODY)) + BODY[:5])
            time.sleep(0.2)
            server.process.terminate()
            assert server.process.wait(15) == 0


def save_large(root: Path, *, n_layers: int) -> None:
    """A model for fields of 512 x 512: fast with one layer, slow with many."""
    config = tiny_config("large", n_dim=2)
    architecture = config.architecture.model_copy(update={"n_layers": n_layers})
    grid = config.grid.model_copy(update={"maximum": (512, 512)})
    config = config.model_copy(update={"architecture": architecture, "grid": grid})
    save_model(root / config.name, config, FNO(config.architecture).eval())


def large_request(n_fields: int) -> bytes:
    """Fields of 1 MiB each; outputs have 2 MiB each."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((n_fields, 1, 512, 512), np.float32))
    head = (
        "POST /v1/models/large:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\n"
        f"Content-Length: {buffer.tell()}\r\n\r\n"
    )
    return head.encode() + buffer.getvalue()


def test_drain_that_ends_while_the_device_is_busy_exits_0(tmp_path: Path) -> None:
    save_large(tmp_path, n_layers=400)
    with running(tmp_path, drain_seconds=0.2) as server, ExitStack() as connections:
        until_ready(server)
        connection = connections.enter_context(server.connect())
        connection.sendall(large_request(16))
        time.sleep(1)
        server.process.terminate()
        status, body = read_response(connection)
        assert status == 503
        assert b"stopped before" in body
        assert server.process.wait(10) == 0
        assert "left behind" in "".join(server.log), "the device was to be busy"


def test_a_response_is_kept_for_a_slow_reader_and_dropped_for_none(tmp_path: Path) -> None:
    save_large(tmp_path, n_layers=1)
    with running(tmp_path, keep_alive_seconds=1) as server, ExitStack() as sockets:
        until_ready(server)
        idle, slow = (sockets.enter_context(server.connect()) for _ in range(2))
        for connection in (idle, slow):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
            connection.sendall(large_request(8))
        got = {idle: 0, slow: 0}
        for connection, pause in ((slow, 0.01), (idle, 0.0)):
            while chunk := connection.recv(65536):
                got[connection] += len(chunk)
                time.sleep(pause)
        assert got[slow] > 16 * 2**20
        assert got[idle] < 16 * 2**20


def test_unread_responses_block_new_requests_until_they_are_read(tmp_path: Path) -> None:
    save_large(tmp_path, n_layers=1)
    limits = {"max_body_bytes": 20 * 2**20, "max_inflight_bytes": 20 * 2**20}
    with running(tmp_path, **limits) as server, server.connect() as unread:
        until_ready(server)
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        unread.sendall(large_request(8))
        unread.recv(1)
        with server.connect() as refused:
            refused.sendall(large_request(8))
            status, body = read_response(refused)
        assert status == 429
        assert "TURBOFNO_MAX_INFLIGHT_BYTES" in error_of(body)
        left = 16 * 2**20
        while left > 0:
            left -= len(unread.recv(1 << 20))
        with server.connect() as served:
            served.sendall(large_request(8))
            assert read_response(served)[0] == 200
        assert "\nturbofno_inflight_bytes 0.0" in server.get("/metrics").text


def test_misspelt_variable_is_logged(repository: Path) -> None:
    with running(repository, max_batchsize=3) as server:
        assert "did you mean TURBOFNO_MAX_BATCH_SIZE?" in server.log[0]


def test_wrong_repository_fails_the_start_with_its_reason(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.process.wait(10) == 1
    assert len(server.log) == 1
    assert "no model in" in server.log[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_missing_device_fails_the_start_in_one_line(repository: Path) -> None:
    with running(repository, device="cuda:7") as server:
        assert server.process.wait(10) == 1
    assert len(server.log) == 1
    assert "TURBOFNO_DEVICE=cuda:7" in server.log[0]


@pytest.fixture(scope="module")
def strict(repository: Path) -> Iterator[Server]:
    with running(
        repository,
        header_timeout_seconds=0.5,
        body_timeout_seconds=0.5,
        max_header_bytes=1000,
        max_connections=5,
        max_json_bytes=500,
    ) as server:
        until_ready(server)
        yield server


def error_of(body: bytes) -> str:
    return str(json.loads(body)["detail"])


def test_slow_header_is_refused(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        status, body = read_response(connection)
        assert status == 408
        assert "TURBOFNO_HEADER_TIMEOUT_SECONDS" in error_of(body)
        assert connection.recv(1) == b""


def test_silent_connection_is_closed(strict: Server) -> None:
    with strict.connect() as connection:
        assert connection.recv(1) == b""


def test_slow_body_is_refused(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(predict_head(100) + b"{")
        status, body = read_response(connection)
        assert status == 408
        assert "TURBOFNO_BODY_TIMEOUT_SECONDS" in error_of(body)


def test_endless_header_is_refused(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 2000)
        status, body = read_response(connection)
        assert status == 431
        assert "TURBOFNO_MAX_HEADER_BYTES" in error_of(body)


def test_endless_trailer_is_refused(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(
            b"POST /v1/models/tiny-1d:predict HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
        )
        for _ in range(12):
            time.sleep(0.02)
            connection.sendall(b"X-Trailer: " + b"x" * 87 + b"\r\n")
        status, body = read_response(connection)
        assert status == 431
        assert "TURBOFNO_MAX_HEADER_BYTES" in error_of(body)


def test_small_chunks_do_not_count_as_header(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(
            b"POST /v1/models/tiny-1d:predict HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for byte in BODY.ljust(400):
            connection.sendall(b"1;note=x\r\n%c\r\n" % byte)
        connection.sendall(b"0\r\n\r\n")
        assert read_response(connection)[0] == 200


def test_a_request_that_breaks_http_is_told_the_rule(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(
            b"POST /v1/models/tiny-1d:predict HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n"
        )
        status, body = read_response(connection)
    assert status == 400
    assert b"no HTTP/1.1 request: Duplicate Content-Length" in body


def test_anything_but_http_is_a_bad_request(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(b"\x16\x03\x01\r\n\r\n")
        assert read_response(connection)[0] == 400
    text = strict.get("/metrics").text
    assert 'turbofno_rejections_total{model="",reason="no_http"}' in text
    assert 'turbofno_requests_total{code="400",model="",protocol="http",version=""}' in text


def test_body_over_the_limit_is_answered_before_it_is_sent(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(predict_head(501))
        status, body = read_response(connection)
        assert status == 413
        assert "TURBOFNO_MAX_JSON_BYTES" in error_of(body)
        connection.sendall(b"x" * 501 + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(connection)[0] == 200, "the connection goes on after the refused body"


def test_connection_over_the_limit_is_refused(strict: Server) -> None:
    for _ in range(100):
        connections = [strict.connect() for _ in range(6)]
        try:
            status, body = read_response(connections[-1])
        except IndexError:
            continue
        finally:
            for connection in connections:
                connection.close()
        assert status == 503
        assert "TURBOFNO_MAX_CONNECTIONS" in error_of(body)
        break
    else:
        pytest.fail("no connection over the limit could read why it was refused")
    time.sleep(0.1)
    assert strict.get("/healthz").status_code == 200


def test_pipelined_requests_are_answered_in_order(strict: Server) -> None:
    with strict.connect() as connection:
        connection.sendall(
            predict_head(len(BODY)) + BODY + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        data = b""
        while data.count(b"HTTP/1.1") < 2 or not data.endswith(b'{"live":true}'):
            data += connection.recv(65536)
        assert data.index(b'"outputs"') < data.index(b'{"live":true}')


def test_keys_that_change_while_the_server_starts_are_not_missed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"revoked {'r' * 16}\n")
    save_tiny(tmp_path / "models")
    app = create_app(Settings(port=0, model_repository=tmp_path / "models", api_keys_file=keys))
    keys.write_text(f"new {'n' * 16}\n")

    async def main() -> None:
        server = DrainingServer(app, None, lambda: False)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        server.should_exit = True
        await serving

    asyncio.run(main())
    held = app.state.context.keys
    assert held.caller(f"Bearer {'n' * 16}".encode()) is not None
    assert held.caller(f"Bearer {'r' * 16}".encode()) is None
