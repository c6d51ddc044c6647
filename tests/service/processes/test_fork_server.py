"""Starts of processes that fail, run beside each other, or are not wanted any more."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.service.processes.running import running
from tests.service.processes.running import until as running_until
from tests.service.processes.test_supervised_engine import children
from tests.service.tiny import save_tiny
from tests.service.waiting import until
from turbofno.service.processes import child_process, fork_server
from turbofno.service.processes.channel import new_endpoint
from turbofno.service.processes.child_process import ChildProcess
from turbofno.service.processes.fork_server import ForkServer
from turbofno.service.processes.launch import Launch
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(120)

SET_SUBREAPER, GET_SUBREAPER = 36, 37
FAILING = """
import os
fork, forks = os.fork, []
def failing():
    forks.append(None)
    if len(forks) == {}:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = failing
"""
"""Code after which one fork fails, counted in each process and its ancestors."""


@pytest.fixture
def launch() -> Launch:
    settings = Settings(frontends=1, devices=("cpu",), torch_threads=1)
    return Launch("frontend", 0, 1, os.getpid(), new_endpoint(), settings)


@pytest.fixture
def subreaper() -> Iterator[ctypes.CDLL]:
    """This process adopts orphans, as the host of an application may."""
    libc = ctypes.CDLL(None)
    libc.prctl(SET_SUBREAPER, 1)
    yield libc
    libc.prctl(SET_SUBREAPER, 0)


def until_it_catches(number: signal.Signals, pid: int) -> None:
    def catches() -> bool:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = status.partition("SigCgt:")[2].split()[0]
        return bool(int(caught, 16) >> number - 1 & 1)

    running_until(catches, 10)


async def ended(server: ForkServer, *processes: ChildProcess) -> None:
    for process in processes:
        process.kill()
        await process.wait()
    await server.close()


def test_starts_beside_each_other_and_a_host_that_adopts_orphans(
    launch: Launch, subreaper: ctypes.CDLL
) -> None:
    before = children()

    async def main() -> None:
        servers = [ForkServer() for _ in range(3)]
        processes = await asyncio.gather(*(server.start(launch) for server in servers))
        adopts = ctypes.c_int()
        subreaper.prctl(GET_SUBREAPER, ctypes.byref(adopts))
        assert adopts.value == 1
        for server, process in zip(servers, processes, strict=True):
            await ended(server, process)
        assert children() == before

    asyncio.run(main())


def test_nothing_is_started_after_the_end(launch: Launch) -> None:
    before = children()

    async def main() -> None:
        server = ForkServer()
        starts = [asyncio.create_task(server.start(launch)) for _ in range(3)]
        await until(lambda: children() != before)
        await server.close()
        for start in starts:
            with pytest.raises(ChildProcessError):
                await start
        await until(lambda: children() == before)

    asyncio.run(main())


def test_a_start_that_takes_too_long_says_so(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "START_SECONDS", 0.001)

    async def main() -> None:
        server = ForkServer()
        with pytest.raises(ChildProcessError, match="not forked within"):
            await server.start(launch)
        await server.close()

    asyncio.run(main())


def test_a_signal_to_a_process_that_has_just_ended_is_no_error() -> None:
    seen = threading.Event()
    with subprocess.Popen(["true"]) as real:
        real.wait()
    process = ChildProcess(real.pid, lambda: int(seen.wait()))
    process.kill()
    seen.set()


def test_a_process_that_no_thread_can_wait_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(child_process, "in_thread", no_thread)
    with subprocess.Popen(["sleep", "60"]) as real:
        with pytest.raises(OSError, match="can't start new thread"):
            ChildProcess(real.pid, real.wait)
        assert real.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("failing", "starts"), [(2, 1), (3, 2)])
def test_a_fork_that_fails_is_said_once_and_tried_again(
    failing: int, starts: int, tmp_path: Path
) -> None:
    save_tiny(tmp_path)
    with running(tmp_path, fault=FAILING.format(failing)) as service:
        service.until_ready()
    errors = [line for line in service.log if "ERROR" in line or "CRITICAL" in line]
    assert len(errors) == starts
    assert all("cannot be started: [Errno 11] Resource" in line for line in errors)


def test_a_first_fork_that_fails_is_no_fault_of_the_port(tmp_path: Path) -> None:
    with running(tmp_path, fault=FAILING.format(1)) as service:
        assert service.process.wait(30) == 1
    (line,) = service.log
    assert "cannot start: Resource temporarily unavailable; raise the limit on processes" in line


def test_what_cannot_be_imported_is_said_by_the_fork_server(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    fault = "from turbofno.service.processes import fork_server; fork_server._imported = None"
    with running(tmp_path, fault=fault) as service:
        service.until_ready()
    errors = [line for line in service.log if "ERROR" in line or "CRITICAL" in line]
    assert sum("fork-server unexpected failure" in line for line in errors) == 1
    assert any("ended; starting it again" in line for line in errors)


def test_a_package_that_is_not_installed_fails_the_start(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    fault = """
from turbofno.service.processes import fork_server
def lacking(_):
    import turbofno.missing
fork_server._imported = lacking
"""
    with running(tmp_path, fault=fault) as service:
        assert service.process.wait(60) == 1
    (line, *_) = [line for line in service.log if "CRITICAL" in line]
    assert "cannot start: No module named 'turbofno.missing'; install the package again" in line
    assert not [line for line in service.log if "starting it again" in line]


def test_a_stop_at_the_start_is_no_error(tmp_path: Path) -> None:
    fault = """
import time
from turbofno.service.processes import fork_server
fork_server._imported = lambda _: time.sleep(60)
"""
    with running(tmp_path, fault=fault) as service:
        until_it_catches(signal.SIGTERM, service.process.pid)
        service.process.terminate()
        assert service.process.wait(20) == 0
    assert not [line for line in service.log if "ERROR" in line]


def test_exit_statuses_arrive_also_if_the_caller_ignores_them(tmp_path: Path) -> None:
    fault = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
    with running(tmp_path, fault=fault) as service:
        assert service.process.wait(60) == 1
    errors = [line for line in service.log if "ERROR" in line or "CRITICAL" in line]
    assert len(errors) == 1
    assert "no model in" in errors[0]
