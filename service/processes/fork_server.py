"""A process that has imported what front ends, engines and ranks need, and is forked for each of them.

So the second and every later one starts without imports, and all share their memory. Those forked become children of the
process that asked for them: the end of the fork server disturbs none.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import socket
import struct
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from turbofno.service.processes.channel import address, new_endpoint, of_this_user
from turbofno.service.processes.child_process import ChildProcess
from turbofno.service.processes.launch import Launch, die_with, enter, run_to_the_end
from turbofno.service.system import SWITCH_SECONDS, keep_imports, name_process

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

START_SECONDS = 120.0
"""Most time until the first heartbeat of a process, which includes importing PyTorch and opening a GPU."""
_NUMBER = struct.Struct("<I")
"""The size of a Launch, before it, and the process id in the answer."""
_PR_SET_CHILD_SUBREAPER = 36

logger = logging.getLogger(__name__)


class ForkServer:
    """A fork server, which the process that uses it starts, again when it has ended."""

    def __init__(self) -> None:
        self._endpoint = ""
        """Where it listens; it changes with every start."""
        self._process: ChildProcess | None = None
        self._starting = asyncio.Lock()

    def fork(self) -> None:
        """Fork it from this process, whose imports it has then, before there are threads and an event loop."""
        listener, parent = self._listener(), os.getpid()
        pid = os.fork()
        if not pid:
            os.setsid()
            run_to_the_end(partial(serve, listener, parent))
        listener.close()
        self._process = ChildProcess(pid)

    async def start(self, launch: Launch) -> ChildProcess:
        """Start a child of this process.

        Raises:
            OSError: it cannot be started; perhaps the next time.
        """
        async with self._starting, asyncio.timeout(START_SECONDS):
            if self._process is None or self._process.returncode is not None:
                self._execute()
            try:
                return await self._ask(launch)
            except BaseException:
                # It may be stuck: the next start has another.
                self.kill()
                raise

    async def close(self) -> None:
        """End it, and the starts that wait for it."""
        self.kill()
        if self._process is not None:
            await self._process.wait()

    async def _ask(self, launch: Launch) -> ChildProcess:
        loop = asyncio.get_running_loop()
        data = launch.dump()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
            # What forks it ends at once, and this process inherits it.
            _adopt_orphans(True)
            try:
                await loop.sock_connect(connection, address(self._endpoint))
                await loop.sock_sendall(connection, _NUMBER.pack(len(data)) + data)
                answer = await loop.sock_recv(connection, _NUMBER.size)
            finally:
                _adopt_orphans(False)
        if not answer:
            raise ChildProcessError("the process that is forked for it has ended")
        return ChildProcess(*_NUMBER.unpack(answer))

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
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    while True:
        connection, _ = listener.accept()
        with connection:
            if not of_this_user(connection):
                continue
            (size,) = _NUMBER.unpack(connection.recv(_NUMBER.size, socket.MSG_WAITALL))
            launch = Launch.load(connection.recv(size, socket.MSG_WAITALL))
            # Front ends come first, and do not wait for PyTorch.
            run = _imported(launch)
            keep_imports()
            between = os.fork()
            if between:
                os.waitpid(between, 0)
                continue
            listener.close()
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.001)
            enter(launch)
            try:
                connection.sendall(_NUMBER.pack(os.getpid()))
            except OSError:
                # Nobody waits for it any more.
                return 1
            break
    return run(launch)


def _imported(launch: Launch) -> Callable[[Launch], int]:
    """What runs a launch, with all its imports."""
    import uvloop  # noqa: F401

    if launch.role == "engine":
        from turbofno.service.processes import engine_process, slab_group

        return lambda launch: _run_in_loop(engine_process.run(*slab_group.fork(launch)))
    from turbofno.service.processes import frontend_process

    return lambda launch: _run_in_loop(frontend_process.run(launch))


def _run_in_loop(run: Coroutine[None, None, int]) -> int:
    import uvloop

    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        return uvloop.run(run)
    except (ValueError, OSError) as error:
        logger.error("cannot start: %s", error)
        return os.EX_CONFIG


def _adopt_orphans(yes: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes))
