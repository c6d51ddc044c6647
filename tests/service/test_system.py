"""A real server with closed streams, few file descriptors, and a closed terminal."""

from __future__ import annotations

import os
import platform
import pty
import resource
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.e2e.server_process import ROOT, ServerProcess, limited
from tests.e2e.traffic import FIELD, predict_call
from tests.service.processes.running import until
from tests.service.tiny import save_tiny

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.timeout(120)

WAYS = pytest.mark.parametrize("options", [(), ("--frontends", "2")], ids=["one", "several"])
RESET = 0
CALL = predict_call("tiny-1d", FIELD, name="one field")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    save_tiny(root)
    return root


def answers(server: ServerProcess) -> bool:
    answer = httpx.post(server.url + CALL.path, content=CALL.body, headers=CALL.headers)
    return answer.status_code == 200


@WAYS
def test_closed_standard_streams_are_nothing_and_no_socket(
    repository: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    closed = "exec 0<&- 1>&- 2>&-"
    with ServerProcess(repository, tmp_path / "log.txt", *options, shell=closed) as server:
        until(lambda: serves(server), 20)
        pid = server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) >= (3 if options else 0)
        for process in (pid, *children):
            written = {os.readlink(f"/proc/{process}/fd/{number}") for number in (1, 2)}
            assert written == {"/dev/null"}
        assert server.stop() == 0


@WAYS
def test_streams_that_nobody_reads_any_more_fail_nothing(
    repository: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    # stdout and stderr into a pipe whose reader is gone before the first line
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    unread = f"exec 1>'{fifo}' 2>&1; while [ ! -e '{tmp_path}/gone' ]; do sleep 0.02; done"
    server = ServerProcess(repository, tmp_path / "log.txt", *options, shell=unread)
    until(lambda: os.readlink(f"/proc/{server.process.pid}/fd/2") == str(fifo), 10)
    os.close(reader)
    (tmp_path / "gone").touch()
    with server:
        until(lambda: serves(server), 20)
        assert httpx.get(server.url + "/nowhere").status_code == 404
        assert server.stop() == 0


def test_too_few_descriptors_are_refused_in_words(repository: Path, tmp_path: Path) -> None:
    for options in ((), ("--frontends", "2")):
        server = ServerProcess(repository, tmp_path / "log.txt", *options, fault=limited(100, 100))
        assert server.process.wait(30) == 1
        said = "cannot start: the limit of open files (ulimit -Hn) is 100, of which the service itself needs 128"
        assert said in server.tail()
        assert "Traceback" not in server.tail()


@WAYS
def test_few_descriptors_are_fewer_connections(
    repository: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    few = limited(160, 160)
    with ServerProcess(repository, tmp_path / "log.txt", *options, fault=few) as server:
        most = 32
        assert f"at most {most} connections instead of 4096; raise it to " in server.log.read_text()
        # Those over the limit come when the others count.
        held = connected(server, most)
        assert [status(connection) for connection in held] == [200] * most
        held += connected(server, 300 - most)
        assert {status(connection) for connection in held[most:]} <= {503, RESET}
        assert [status(connection) for connection in held[:most]] == [200] * most
        for connection in held:
            connection.close()
        until(lambda: serves(server), 10)
        assert server.stop() == 0, server.tail()
        assert "Traceback" not in server.log.read_text()


def connected(server: ServerProcess, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(count)]


def status(connection: socket.socket) -> int:
    """Of the answer to a request; RESET if it came after a refusal that closed the connection."""
    try:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return int(connection.recv(1000).split(maxsplit=2)[1])
    except (ConnectionResetError, BrokenPipeError):
        return RESET


def serves(server: ServerProcess) -> bool:
    try:
        return answers(server)
    except httpx.TransportError:
        return False


def test_the_soft_limit_is_raised_as_far_as_allowed(repository: Path, tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with ServerProcess(repository, tmp_path / "log.txt", fault=limited(200, hard)) as server:
        limits = (tmp_path / f"/proc/{server.process.pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert int(line.split()[3]) == 4096 + 128
        assert "open files" not in server.log.read_text()
        assert server.stop() == 0


@contextmanager
def on_a_terminal(
    repository: Path, log: Path, *options: str, before: str = ":"
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], None]]]:
    """A server that is ready, with a terminal of its own, and a function that closes the terminal."""
    terminal, theirs = pty.openpty()
    # a new session, whose controlling terminal is the first that it opens
    serve = [
        sys.executable,
        "-m",
        "service",
        "serve",
        "--port",
        "0",
        "--model-repository",
        str(repository),
    ]
    shell = f"exec 0<'{os.ttyname(theirs)}' 2>'{log}' 1>&2; {before}; exec \"$@\""
    # Tests that run under nohup would pass it on.
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(
        ["sh", "-c", shell, "sh", *serve, *options],
        start_new_session=True,
        cwd=ROOT,
        env={**os.environ, "TURBOFNO_DEVICE": "cpu"},
    )
    signal.signal(signal.SIGHUP, ours)

    def close() -> None:
        os.close(theirs)
        os.close(terminal)

    try:
        until(lambda: said(log, "turbofno is ready at"), 40)
        yield process, close
    finally:
        process.kill()
        process.wait()


def said(log: Path, text: str) -> bool:
    return log.exists() and text in log.read_text()


@WAYS
def test_a_terminal_that_is_closed_ends_the_server_as_sigterm_does(
    repository: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """While the terminal is open, SIGHUP ends nothing."""
    log = tmp_path / "log.txt"
    with on_a_terminal(repository, log, *options) as (process, close):
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        close()
        assert process.wait(20) == 0, log.read_text()
        assert said(log, "draining: refusing new requests")
        assert not said(log, "Traceback")


@WAYS
def test_a_server_under_nohup_outlives_its_terminal(
    repository: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    log = tmp_path / "log.txt"
    with on_a_terminal(repository, log, *options, before="trap '' HUP") as (process, close):
        close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        assert not said(log, "draining")
        process.terminate()
        assert process.wait(20) == 0, log.read_text()


_FAULTS_OF_THE_SECOND = """
import resource
import numpy as np
from turbofno.service.system import keep_freed_memory

keep_freed_memory()
faults = []
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(64 * 2**20, np.uint8)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    command = [sys.executable, "-c", _FAULTS_OF_THE_SECOND]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert second < first / 10


_RESIDENT_WITH_GAPS = """
import os
from pathlib import Path
import numpy as np
from turbofno.service.system import Gaps, keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

keep_freed_memory()
gaps = Gaps(32 << 20)
gaps.give_back()
large, small = [], []
for _ in range(8):
    large.append(np.ones(16 << 20, np.uint8))
    small.append(np.ones(64 << 10, np.uint8))  # keeps a gap from joining the next one
before = resident()
large.clear()
kept = resident()
gaps.give_back()
print(before - kept, before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_gaps_of_the_heap_are_given_back_once_the_process_has_grown() -> None:
    command = [sys.executable, "-c", _RESIDENT_WITH_GAPS]
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    freed_at_once, freed = map(int, done.stdout.split())
    assert freed_at_once < 8 << 20
    assert freed > 100 << 20
