"""The real server as a child process: started on a free loopback port, watched, and always ended."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 90.0
_STOP_SECONDS = 45.0
# Killed when the test run dies (prctl PR_SET_PDEATHSIG, SIGKILL), so that no server is ever left
# behind; exec keeps that, and the process becomes the one that a user would start.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_SERVE = "import sys; from turbofno.service.cli import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the service's processes hold at one moment, all together."""

    processes: int
    rss_bytes: int
    """Without shared memory, which stays as large as its fullest moment."""
    threads: int
    files: int


class ServerProcess:
    """`python -m turbofno.service serve`; a context manager that kills the process if it is still there.

    `fault` is Python that runs in it first: what a test breaks on purpose. `shell` is for what a shell does to the process
    that it becomes, such as "ulimit -n 200" or "exec 2>&-". `trust` is for a server that the options make speak TLS.
    """

    def __init__(
        self,
        repository: Path,
        log: Path,
        *options: str,
        fault: str = "",
        shell: str = ":",
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"{'http' if trust is None else 'https'}://127.0.0.1:{self.port}"
        self._trust = trust or False
        self.log = log
        self._terminated = False
        # One arithmetic thread: the machine is shared with the clients that put it under load.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": path, "TURBOFNO_TORCH_THREADS": "1"}
        program = ["-c", f"{fault}\n{_SERVE}"] if fault else ["-m", "turbofno.service"]
        serve = [*program, "serve", "--port", str(self.port)]
        where = ["--model-repository", str(repository)]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    f'{shell}; exec "$@"',
                    "sh",
                    sys.executable,
                    "-c",
                    _DIE_WITH_PARENT,
                    *serve,
                    *where,
                    *options,
                ],
                cwd=log.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> ServerProcess:
        try:
            self.wait_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def wait_ready(self) -> None:
        """Return once all models are loaded and warm; fails with the log if that does not happen."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the server ended with {self.process.returncode}\n{self.tail()}"
                )
            try:
                if (
                    httpx.get(f"{self.url}/readyz", timeout=5.0, verify=self._trust).status_code
                    == 200
                ):
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"not ready within {_START_SECONDS:g} s\n{self.tail()}")

    def terminate(self) -> None:
        """Send SIGTERM, once: a second one would abort the drain. Returns at once."""
        if not self._terminated:
            self._terminated = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Send SIGTERM if need be, wait, and return the exit code."""
        self.terminate()
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after SIGTERM\n{self.tail()}") from None

    def footprint(self) -> Footprint:
        """Memory, threads and open files, now."""
        main = Path(f"/proc/{self.process.pid}")
        children = (main / f"task/{self.process.pid}/children").read_text().split()
        everyone = [main, *(Path("/proc") / child for child in children)]
        statuses = [
            dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
            for proc in everyone
        ]

        def kibibytes(name: str) -> int:
            return sum(int(status[name].split()[0]) for status in statuses)

        return Footprint(
            processes=len(everyone),
            rss_bytes=(kibibytes("VmRSS") - kibibytes("RssShmem")) * 1024,
            threads=sum(int(status["Threads"]) for status in statuses),
            files=sum(len(list((proc / "fd").iterdir())) for proc in everyone),
        )

    def tail(self) -> str:
        """The end of what the server wrote."""
        return self.log.read_text(errors="replace")[-6000:]


def free_port() -> int:
    """A TCP port of the loopback address on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
