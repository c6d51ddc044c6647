"""A process that has imported what front ends, engines and ranks need, and is forked for each of them.

So the second and every later one starts without imports, and all share their memory. Those forked become children of the
process that asked for them: the end of the fork server disturbs none.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock

import uvloop

from turbofno.service import logs
from turbofno.service.processes.channel import address, new_endpoint, of_this_user
from turbofno.service.processes.child_process import ChildProcess
from turbofno.service.processes.launch import Launch, die_with, enter, run_to_the_end
from turbofno.service.system import SWITCH_SECONDS, keep_imports, name_process

START_SECONDS = 120.0
"""Most time until the first heartbeat of a process, which includes importing PyTorch and opening a GPU."""
_NUMBER = struct.Struct("<i")
"""The size of a Launch, before it, and the process id in the answer, or the negative number of the error."""
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_adoption = Lock()
_adopters = 0
"""Starts that run now, of all fork servers of this process."""
_adopted_before = 0

logger = logging.getLogger(__name__)


class ForkServer:
    """A fork server, which the process that uses it starts, again when it has ended."""

    def __init__(self) -> None:
        self._endpoint = ""
        """Where it listens; it changes with every start."""
        self._process: ChildProcess | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    def fork(self) -> None:
        """Fork it from this process, whose imports it has then, before there are threads and an event loop.

        Raises:
            ValueError: no process or thread may be started any more.
        """
        listener, parent = self._listener(), os.getpid()
        try:
            pid = os.fork()
            if not pid:
                os.setsid()
                run_to_the_end(partial(serve, listener, parent))
            self._process = ChildProcess(pid)
        except OSError as error:
            raise ValueError(
                f"{error.strerror}; raise the limit on processes and threads (ulimit -u), or the container's"
            ) from error
        finally:
            listener.close()

    async def start(self, launch: Launch) -> ChildProcess:
        """Start a child of this process.

        Raises:
            OSError: it cannot be started; perhaps the next time.
        """
        async with self._starting:
            if self._closed:
                raise ChildProcessError("nothing is started any more")
            if self._process is None or self._process.returncode is not None:
                self._execute()
            try:
                async with asyncio.timeout(START_SECONDS):
                    number = await self._ask(launch)
            except BaseException as error:
                # It may be stuck: the next start has another.
                self.kill()
                self._process = None
                if isinstance(error, TimeoutError):
                    late = f"it was not forked within {START_SECONDS:.0f} s"
                    raise ChildProcessError(late) from None
                if isinstance(error, ConnectionError):
                    raise ChildProcessError("it, or the process that forks it, ended") from None
                raise
        if number < 0:
            raise OSError(-number, os.strerror(-number))
        return ChildProcess(number)

    async def close(self) -> None:
        """End it, and the starts that wait for it."""
        self._closed = True
        self.kill()
        if self._process is not None:
            await self._process.wait()

    async def _ask(self, launch: Launch) -> int:
        loop = asyncio.get_running_loop()
        data = launch.dump()
        # What forks it ends at once, and this process inherits it.
        with (
            _adopting_orphans(),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection,
        ):
            await loop.sock_connect(connection, address(self._endpoint))
            await loop.sock_sendall(connection, _NUMBER.pack(len(data)) + data)
            answer = await loop.sock_recv(connection, _NUMBER.size)
        if not answer:
            raise ConnectionResetError
        (number,) = _NUMBER.unpack(answer)
        return int(number)

    def _execute(self) -> None:
        # Its own session: Ctrl-C must reach only the supervisor, which stops the others in order.
        with self._listener() as listener:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "turbofno.service.processes", str(os.getpid())],
                stdin=listener.fileno(), start_new_session=True,
            )  # fmt: skip
        self._process = ChildProcess(process.pid, process.wait)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _listener(self) -> socket.socket:
        self._endpoint = new_endpoint()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(address(self._endpoint))
        listener.listen()
        return listener


def serve(listener: socket.socket, parent: int) -> int:
    """Fork processes until the parent ends. In each of them: run it. Returns its exit status."""
    name_process("fork-server")
    die_with(parent)
    # If it was ignored, nobody could wait for a child.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    while True:
        connection, _ = listener.accept()
        if of_this_user(connection):
            (size,) = _NUMBER.unpack(connection.recv(_NUMBER.size, socket.MSG_WAITALL))
            launch = Launch.load(connection.recv(size, socket.MSG_WAITALL))
            logs.configure(launch.settings, process="fork-server")
            # Front ends come first, and do not wait for PyTorch. What fails is logged before the connection ends.
            try:
                run = _imported(launch)
            except (ImportError, ValueError) as error:
                # ValueError: OpenTelemetry, which FastAPI imports, reads OTEL_PROPAGATORS. The next one would fail, too.
                missing = isinstance(error, ImportError)
                advice = "; install the package again" if missing else ""
                logger.critical("cannot start: %s%s", error, advice, exc_info=True)
                run = partial(int, os.EX_CONFIG)
            keep_imports()
            if _forked(connection):
                break
        connection.close()
    listener.close()
    enter(launch)
    with connection:
        try:
            connection.sendall(_NUMBER.pack(os.getpid()))
        except OSError:
            # Nobody waits for it any more.
            return 1
    return run()


def _forked(connection: socket.socket) -> bool:
    """Fork a process that becomes a child of the parent of this one. True in it."""
    between = 0
    try:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return False
        between = os.getpid()
        if os.fork():
            os._exit(0)
    except OSError as error:
        connection.sendall(_NUMBER.pack(-(error.errno or 1)))
        if between:
            os._exit(1)
        return False
    while os.getppid() == between:
        time.sleep(0.001)
    return True


def _imported(launch: Launch) -> Callable[[], int]:
    """What runs a launch, with all its imports."""
    if launch.role == "engine":
        from turbofno.service.processes import engine_process, slab_group

        return lambda: _run_in_loop(engine_process.run(*slab_group.fork(launch)))
    from turbofno.service.processes import frontend_process

    return lambda: _run_in_loop(frontend_process.run(launch))


def _run_in_loop(run: Coroutine[None, None, int]) -> int:
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return uvloop.run(run)
    except (ValueError, OSError) as error:
        logger.error("cannot start: %s", error)
        return os.EX_CONFIG


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """This process becomes the parent of its descendants whose parents end, as it may be already."""
    global _adopters, _adopted_before
    prctl = ctypes.CDLL(None).prctl
    with _adoption:
        if not _adopters:
            before = ctypes.c_int()
            prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
            _adopted_before = before.value
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _adopters += 1
    try:
        yield
    finally:
        with _adoption:
            _adopters -= 1
            if not _adopters:
                prctl(_PR_SET_CHILD_SUBREAPER, _adopted_before)
