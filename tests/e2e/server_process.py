"""The real server as a child process on a free loopback port, which always ends with the tests."""

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

from tests.service.forked import Forked, start

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 90.0
_STOP_SECONDS = 45.0
# The kernel kills the server when the test run dies (prctl PR_SET_PDEATHSIG, SIGKILL), also after exec.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_NO_SHELL = ":"
_SERVE = "import sys; from turbofno.service.cli import main; sys.exit(main())"


def limited(soft: int, hard: int) -> str:
    """Code that limits the descriptors of its process, as `ulimit -n` does."""
    return f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resources of all processes of the service at one moment."""

    processes: int
    rss_bytes: int
    """Without shared memory, which never shrinks."""
    threads: int
    files: int


class ServerProcess:
    """`python -m turbofno.service serve`, as a context manager that kills the process at its end.

    Args:
        fault: Python code that runs in the process first, to break something.
        shell: shell commands that apply to the process, such as "ulimit -n 200" or "exec 2>&-".
        trust: TLS context of the test, for a server with TLS.
    """

    def __init__(
        self,
        repository: Path,
        log: Path,
        *options: str,
        fault: str = "",
        shell: str = _NO_SHELL,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"{'http' if trust is None else 'https'}://127.0.0.1:{self.port}"
        self._trust = trust or False
        self.log = log
        self._terminated = False
        # One CPU thread for the model: the clients need the other cores.
        environment = os.environ | {"TURBOFNO_TORCH_THREADS": "1"}
        serve = ["serve", "--port", str(self.port), "--model-repository", str(repository), *options]
        self.process: Forked | subprocess.Popen[bytes]
        with log.open("wb") as output:
            if shell == _NO_SHELL:
                code = f"{fault}\n{_SERVE}"
                self.process = start(code, *serve, cwd=log.parent, env=environment, output=output)
                return
            program = ["-c", f"{fault}\n{_SERVE}"] if fault else ["-m", "turbofno.service"]
            self.process = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    f'{shell}; exec "$@"',
                    "sh",
                    sys.executable,
                    "-c",
                    _DIE_WITH_PARENT,
                    *program,
                    *serve,
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
        """Return once all models are loaded and warm; fail with the log after a time limit."""
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
        """Send SIGTERM once, because a second one would abort the drain; do not wait."""
        if not self._terminated:
            self._terminated = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> int:
        """Send SIGTERM if not sent yet, wait, and return the exit status."""
        self.terminate()
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after SIGTERM\n{self.tail()}") from None

    def footprint(self) -> Footprint:
        """Memory, threads and open files at this moment."""
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
        """The end of the server's log."""
        return self.log.read_text(errors="replace")[-6000:]


def free_port() -> int:
    """A free TCP port of the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
