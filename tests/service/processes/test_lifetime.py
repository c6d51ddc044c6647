"""Start and end of several processes: drain, failures at start, and no leftovers."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.service.processes.running import Service, running, until
from tests.service.tiny import save_tiny

pytestmark = pytest.mark.timeout(120)

BODY = json.dumps({"inputs": {"u0": [0.5] * 16}}).encode()
HEAD = (
    "POST /v1/models/tiny-1d:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n"
).encode()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("zoo")
    save_tiny(root)
    return root


def status(connection: socket.socket) -> int:
    return int(connection.recv(65536).split()[1])


def alive(pids: dict[str, int]) -> list[str]:
    return [name for name, pid in pids.items() if Path(f"/proc/{pid}/cmdline").exists()]


def shared_memory() -> set[str]:
    """Names of shared memory, except that of browsers of other tests."""
    return {name for name in os.listdir("/dev/shm") if "chromium" not in name.lower()}


def listening(service: Service) -> bool:
    try:
        service.connect().close()
    except ConnectionError:
        return False
    return True


def test_drain_answers_what_was_accepted_and_leaves_nothing_behind(repository: Path) -> None:
    held_before = shared_memory()
    with running(repository) as service:
        service.until_ready()
        pids = service.children()
        slow = [service.connect() for _ in range(8)]
        for connection in slow:
            connection.sendall(HEAD + BODY[:5])
        time.sleep(0.3)
        service.process.terminate()
        # Each front end refuses new work, reports not ready, and still answers.
        until(lambda: service.get("/readyz").status_code == 503, 5)
        refused = [service.post("/v1/models/tiny-1d:predict", BODY) for _ in range(8)]
        assert {answer.status_code for answer in refused} == {503}
        for connection in slow:
            connection.sendall(BODY[5:])
        assert [status(connection) for connection in slow] == [200] * 8
        for connection in slow:
            connection.close()
        assert service.process.wait(15) == 0
        assert not alive(pids)
        assert not listening(service)
    assert shared_memory() <= held_before


def test_when_the_supervisor_is_killed_everything_ends(repository: Path) -> None:
    with running(repository) as service:
        service.until_ready()
        pids = service.children()
        os.kill(pids["engine-0"], signal.SIGSTOP)
        service.process.kill()
        until(lambda: not alive(pids), 5)
        assert not listening(service)


def test_second_signal_aborts(repository: Path) -> None:
    with running(repository) as service:
        service.until_ready()
        pids = service.pids()
        with service.connect() as stuck:
            stuck.sendall(HEAD + BODY[:5])
            time.sleep(0.3)
            service.process.terminate()
            time.sleep(0.5)
            assert service.process.poll() is None
            service.process.terminate()
            assert service.process.wait(10) == 1
        assert not alive(pids)
    assert any("aborted by a second signal" in line for line in service.log)
    assert not any("Traceback" in line for line in service.log)


def test_wrong_repository_fails_the_start_with_its_reason(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        pids = service.pids()
        assert service.process.wait(60) == 1
        assert not alive(pids)
    assert sum("cannot start" in line for line in service.log) == 1
    assert any("engine-0" in line and "no model in" in line for line in service.log)


@pytest.mark.parametrize("setting", ["api_keys_file", "tls_certificate"])
def test_a_wrong_setting_of_the_front_ends_fails_the_start(
    setting: str, repository: Path, tmp_path: Path
) -> None:
    with running(repository, **{setting: tmp_path / "missing"}) as service:
        pids = service.pids()
        assert service.process.wait(60) == 1
        assert not alive(pids)
    assert any("frontend-" in line and "cannot start" in line for line in service.log)
    assert not any("starting it again" in line for line in service.log)


def test_port_in_use_fails_the_start(repository: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(repository, port=port) as service:
            assert service.process.wait(30) == 1
    assert len(service.log) == 1
    assert f"127.0.0.1:{port}" in service.log[0]
