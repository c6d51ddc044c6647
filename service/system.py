"""Standard streams, file descriptors and the hang-up signal, as the operating system gives them to a server."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from turbofno.service.settings import Settings

logger = logging.getLogger(__name__)

_OWN_FILES = 128
"""Descriptors of a process besides its connections: standard streams, models being loaded, shared memory, sockets."""
_FEWEST_CONNECTIONS = 16
_MALLOC = (
    (-1, "MALLOC_TRIM_THRESHOLD_", 2**30),
    (-3, "MALLOC_MMAP_THRESHOLD_", 2**30),
    (-8, "MALLOC_ARENA_MAX", 1),
)
"""Parameters of mallopt(3), and the environment variables that set the same."""
_TERMINAL = "/dev/tty"


def open_standard_streams() -> None:
    """Open those that are closed on nothing: else the next file or socket takes their numbers, and gets what is written there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # takes the lowest number that is free, which is this one
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def keep_freed_memory() -> None:
    """Have glibc's malloc keep freed memory, which a batch of the same size takes again without page faults.

    The process stays as large as its largest batch made it. Variables `MALLOC_*` of the environment win. Other C
    libraries have no mallopt and are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for parameter, variable, value in _MALLOC:
        if mallopt is not None and variable not in os.environ:
            mallopt(parameter, value)


def with_descriptors(settings: Settings) -> Settings:
    """Raise this process's limit of open files, which its children inherit, to what the settings need, as far as allowed.

    Returns:
        The settings, with as many connections as there is room for.

    Raises:
        ValueError: there is room for next to none.
    """
    # not on Windows, where the other commands run
    import resource

    processes = max(1, settings.frontends)
    needed = settings.max_connections // processes + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return settings
    limit = f"the limit of open files is {soft} (ulimit -Hn), of which the service needs {_OWN_FILES} itself"
    connections = soft - _OWN_FILES
    if connections < _FEWEST_CONNECTIONS:
        raise ValueError(f"{limit}: raise it to {needed}")
    logger.warning(
        "%s: at most %d connections, not %d; raise it to %d, or lower %s",
        limit, processes * connections, settings.max_connections, needed, env_name("max_connections"),
    )  # fmt: skip
    return settings.model_copy(update={"max_connections": processes * connections})


def on_hangup() -> Callable[[], bool]:
    """Let SIGHUP end nothing from now on. Returns what says, once it came, whether the terminal is gone that was there now."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    had_terminal = _has_terminal()
    return lambda: had_terminal and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
