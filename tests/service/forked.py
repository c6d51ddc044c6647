"""Processes forked from one that has imported the service, or other modules: they start in a fraction of the time.

Their imports are done, so variables that libraries read when they are imported, such as OMP_NUM_THREADS, are those of the
test process. They are its children.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36
SERVICE = (
    "turbofno.service.cli",
    "turbofno.service.engine.local",
    "turbofno.service.server",
    # What a server imports later: the loop.
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
)


class Forked:
    """As subprocess.Popen."""

    def __init__(self, pid: int, stderr: IO[str] | None) -> None:
        self.pid, self.stderr = pid, stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    code: str,
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str],
    output: IO[Any] | None = None,
    imported: tuple[str, ...] = SERVICE,
) -> Forked:
    """Run Python code with these arguments in a process, whose output and errors go to a file or, by default, to `stderr`.

    These modules are imported already. The kernel kills the process when the test process ends.
    """
    parent = _parent(imported)
    ours, theirs = (None, output.fileno()) if output else os.pipe()
    libc = ctypes.CDLL(None)
    # Else the process, whose parent ends, would be a child of init.
    libc.prctl(_SET_SUBREAPER, 1)
    try:
        request = pickle.dumps((code, arguments, str(cwd), dict(env), output is not None))
        socket.send_fds(parent, [len(request).to_bytes(4)], [theirs])
        parent.sendall(request)
        answer = parent.recv(4)
        if len(answer) < 4:
            raise RuntimeError("the process that starts servers has ended")
        pid = int.from_bytes(answer)
    finally:
        libc.prctl(_SET_SUBREAPER, 0)
        if ours is not None:
            os.close(theirs)
    return Forked(pid, None if ours is None else os.fdopen(ours, "r"))


def run(code: str, *arguments: str, cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Run Python code, with the modules of the service imported; return the status, and the output with the errors."""
    with tempfile.TemporaryFile("w+") as output:
        process = start(code, *arguments, cwd=cwd, env=env, output=output)
        try:
            status = process.wait(170)
        finally:
            process.kill()
        output.seek(0)
        return status, output.read()


@cache
def _parent(imported: tuple[str, ...]) -> socket.socket:
    """Connection to the process that has imported these modules."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen([sys.executable, __file__, *imported], stdin=theirs)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve() -> None:
    """Fork a process for each request from standard input, until that ends."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    # Servers collect garbage when they start. They pass over the imports, whose memory the search would also copy.
    gc.collect()
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    while True:
        size, files, _, _ = socket.recv_fds(requests, 4, 1)
        if not size:
            return
        request = b""
        while len(request) < int.from_bytes(size):
            request += requests.recv(1 << 16)
        between = os.fork()
        if between == 0:
            _start(requests, files[0], request)
            return
        os.close(files[0])
        os.waitpid(between, 0)


def _start(requests: socket.socket, output: int, request: bytes) -> None:
    """Run the request in a child, which the test process inherits."""
    between = os.getpid()
    pid = os.fork()
    if pid:
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    requests.sendall(os.getpid().to_bytes(4))
    requests.close()
    code, arguments, folder, environment, both = pickle.loads(request)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, file in enumerate((nothing, output if both else nothing, output)):
        os.dup2(file, number)
    os.close(nothing)
    os.close(output)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = ["-c", *arguments], ""
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _serve()
