"""Server processes on their own cores; a mark in the environment identifies all descendants."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

MARK = "TURBOFNO_BENCH_MARK"
_STOP_SECONDS = 10.0
_TICK = os.sysconf("SC_CLK_TCK")


def split_cores() -> tuple[set[int], set[int]]:
    """The client's core (the first) and the server's (all others, or the same if there is only one)."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[0]}, set(cores[1:]) or {cores[0]}


class ServerProcess:
    """A running server with all its descendants, including those with another parent now."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, log: IO[bytes]) -> None:
        self._process = process
        self._mark = f"{MARK}={mark}".encode()
        self._log = log

    @property
    def exited(self) -> bool:
        return self._process.poll() is not None

    def log_tail(self) -> str:
        """The end of its output."""
        self._log.seek(0)
        return self._log.read()[-3000:].decode(errors="replace")

    def pids(self) -> list[int]:
        """Running processes with the mark."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._mark in (folder / "environ").read_bytes().split(b"\0"):
                        found.append(int(folder.name))
        return found

    def cpu_seconds(self) -> float:
        """User and system time so far of all its running processes."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                # the second field, the name, may contain blanks and brackets
                rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(rest[11]) + int(rest[12])
        return total / _TICK

    def stop(self) -> None:
        """Send SIGTERM to the first process, then kill the remaining ones."""
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        until = time.monotonic() + _STOP_SECONDS
        while (left := self.pids()) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._process.wait()


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], *, environment: Mapping[str, str], cores: set[int], cwd: Path
) -> Iterator[ServerProcess]:
    """Run the command on these cores; on exit stop it and all descendants."""
    mark = secrets.token_hex(8)
    own_cores = os.sched_getaffinity(0)
    with tempfile.TemporaryFile() as log:
        os.sched_setaffinity(0, cores)
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment, MARK: mark},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.sched_setaffinity(0, own_cores)
        server = ServerProcess(process, mark, log)
        try:
            yield server
        finally:
            server.stop()
