"""The launch of a child process: its parameters, and its first steps."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from typing import Literal

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from turbofno.service import logs
from turbofno.service.engine.interface import RecoveryRecord
from turbofno.service.processes.memory import KEPT_BYTES
from turbofno.service.settings import Settings
from turbofno.service.system import keep_freed_memory

_PR_SET_PDEATHSIG = 1


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
    sums: int | None = None
    """Descriptor of the memory of the front ends' sums, which each of them inherits."""
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


_SERIAL = TypeAdapter(Launch)


def enter(data: bytes) -> Launch:
    """Make this process the child that its parent launched. The kernel kills it when its parent dies."""
    launch = _SERIAL.validate_json(data)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launch.parent:
        os._exit(1)
    # A front end installs its own handler once it serves.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logs.configure(launch.settings, process=launch.name)
    logs.omit_origins()
    if launch.role == "frontend":
        # There are several, and each would keep all that it held at any time.
        keep_freed_memory(KEPT_BYTES)
    else:
        keep_freed_memory()
    return launch
