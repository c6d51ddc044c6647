"""The launch of a child process: its parameters, its first and its last steps."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
from collections.abc import Callable
from typing import Literal, NoReturn

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from turbofno.service import logs
from turbofno.service.engine.interface import RecoveryRecord
from turbofno.service.processes.memory import KEPT_BYTES
from turbofno.service.settings import Settings
from turbofno.service.system import keep_freed_memory, name_process

_PR_SET_PDEATHSIG = 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch parameters, which the parent sends."""

    role: Literal["frontend", "engine"]
    index: int
    generation: int
    """Counts the processes with this role and index, from 1."""
    parent: int
    """Process id of the supervisor, or of the first rank."""
    endpoint: str
    """The supervisor's address."""
    settings: Settings
    recovery: tuple[RecoveryRecord, ...] = ()
    """Models of the dead engine that this one replaces."""
    banner: bool = False
    """Print usage examples once the models are ready."""
    sums: str = ""
    """File of the memory of the front ends' sums."""
    rank: int = 0
    """Of an engine of several devices. Only the first rank is a child of the supervisor."""
    store: str = ""
    """File by which the ranks find each other."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}" + (f"-rank-{self.rank}" if self.rank else "")

    @property
    def identity(self) -> bytes:
        """Sender of this process's messages; never used by another process."""
        return f"{self.name}.{self.generation}".encode()

    @property
    def devices(self) -> list[str]:
        """The devices of an engine, one for each rank."""
        return (self.settings.devices or (self.settings.device,))[0].split("+")

    def dump(self) -> bytes:
        # Unlike dump_json this keeps infinite seconds.
        return json.dumps(_SERIAL.dump_python(self, mode="json")).encode()

    @staticmethod
    def load(data: bytes) -> Launch:
        return _SERIAL.validate_json(data)


_SERIAL = TypeAdapter(Launch)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def enter(launch: Launch) -> None:
    """Make this process the child that its parent launched."""
    name_process(launch.name)
    # Its own session: Ctrl-C must reach only the supervisor, which stops the others in order.
    os.setsid()
    die_with(launch.parent)
    # A front end installs its own handler once it serves.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logs.configure(launch.settings, process=launch.name)
    logs.omit_origins()
    if launch.role == "frontend":
        # There are several, and each would keep all that it held at any time.
        keep_freed_memory(KEPT_BYTES)
    else:
        keep_freed_memory()


def run_to_the_end(run: Callable[[], int]) -> NoReturn:
    """Run and exit with the status, whatever called this.

    Interpreter shutdown would crash a device thread that is still in a batch; nothing else is left to clean up.
    """
    status = 1
    try:
        status = run()
    except BaseException:
        logger.critical("unexpected failure", exc_info=True)
    logging.shutdown()
    os._exit(status)
