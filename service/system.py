"""Settings of Python and the operating system for a server: garbage, threads, streams, malloc, file descriptors, cores, SIGHUP."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turbofno.service.settings import Settings, env_name

if TYPE_CHECKING:
    from collections.abc import Callable


logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.00005
"""Thread switch interval. The device thread releases the GIL at each torch call, some twenty times a batch, and while the event
loop is busy gets it back only after this time each. Python's default of 5 ms is longer than a small model takes."""
YOUNG_OBJECTS = 10_000
"""Threshold of the youngest garbage collection. Requests leave no cycles, and a few dozen concurrent ones exceed
Python's default of 700."""

_OWN_FILES = 128
"""File descriptors of a process besides its connections: streams, models being loaded, shared memory, sockets."""
_MIN_CONNECTIONS = 16
_MALLOC = (
    (-3, "MALLOC_MMAP_THRESHOLD_", 2**30),
    (-8, "MALLOC_ARENA_MAX", 1),
)
"""Parameter of mallopt(3), the environment variable for the same, and value."""
_PR_SET_NAME = 15
_ARGUMENTS = (45, 46)
"""Fields of /proc/self/stat behind the name: the first address of the command line, and the one behind the last."""
_TERMINAL = "/dev/tty"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def keep_imports() -> None:
    """Exclude what was imported from garbage collection, which would block all requests: PyTorch has 200,000 objects."""
    # No collection before: imports leave hardly any garbage, and it would take 0.1 s.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def keep_models() -> None:
    """Exclude the models, too: the 50,000 objects of one take 20 ms."""
    gc.collect()
    gc.freeze()


def name_process(name: str) -> None:
    """Give this process a name for `ps` and `top`, in place of the command of the process that it was forked from."""
    prctl = _of_libc("prctl")
    assert prctl is not None
    # The kernel keeps 15 bytes.
    prctl(_PR_SET_NAME, name.encode())
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(after_name[field]) for field in _ARGUMENTS)
    # Sandboxed kernels do not say where.
    if begin < end:
        ctypes.memmove(
            begin, name.encode()[: end - begin - 1].ljust(end - begin, b"\0"), end - begin
        )


def open_standard_streams() -> None:
    """Open closed standard streams on /dev/null: else the next file or socket would get their numbers and their output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # open takes the lowest free number, which is this one
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def keep_freed_memory(most: int = 1 << 30) -> None:
    """Make glibc's malloc keep up to `most` bytes of freed memory, so that the next batch has no page faults.

    Within that the process keeps the size that its largest batch needed. Environment variables `MALLOC_*` take precedence. Other C
    libraries have no mallopt and are unchanged.
    """
    mallopt = _of_libc("mallopt")
    for parameter, variable, value in ((-1, "MALLOC_TRIM_THRESHOLD_", most), *_MALLOC):
        if mallopt is not None and variable not in os.environ:
            mallopt(parameter, value)


class Gaps:
    """Gaps of malloc's heap, which `keep_freed_memory` does not bound: batches of ever other sizes fit into none, and the
    process would grow for ever.
    """

    def __init__(self, most: int = 1 << 30) -> None:
        """`most` is by how much the process may grow before they are given back."""
        self._most = most
        self._resident = 0
        """Bytes after the last time."""
        self._trim = _of_libc("malloc_trim")

    def give_back(self) -> None:
        """Give them back to the system if the process has grown by more than the limit."""
        if self._trim is not None and _resident_bytes() - self._resident > self._most:
            self._trim(0)
            self._resident = _resident_bytes()


def _of_libc(name: str) -> Callable[..., int] | None:
    # Windows has no library of the process itself to look in.
    return None if os.name == "nt" else getattr(ctypes.CDLL(None), name, None)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def with_descriptors(settings: Settings) -> Settings:
    """Raise the limit of open files of this process and its children to what the settings need, if allowed.

    Returns:
        The settings, with max_connections lowered to the limit.

    Raises:
        ValueError: the limit allows less than 16 connections.
    """
    # Windows has no such module, but runs the commands other than `serve`
    import resource

    # Of several front ends, one may have all.
    needed = settings.max_connections + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return settings
    limit = f"the limit of open files (ulimit -Hn) is {soft}, of which the service itself needs {_OWN_FILES}"
    connections = soft - _OWN_FILES
    if connections < _MIN_CONNECTIONS:
        raise ValueError(f"{limit}: raise it to {needed}")
    logger.warning(
        "%s: serving at most %d connections instead of %d; raise it to %d, or lower %s",
        limit, connections, settings.max_connections, needed, env_name("max_connections"),
    )  # fmt: skip
    return settings.model_copy(update={"max_connections": connections})


def cores() -> int:
    """Number of cores that this process may use: those of its affinity, at most the quota of its container (cgroup v2)."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    try:
        quota, period = map(int, _QUOTA.read_text().split())
    except (OSError, ValueError):  # no container, or "max"
        return count
    return max(1, min(count, quota // period))


def on_hangup() -> Callable[[], bool]:
    """Ignore SIGHUP from now on; return a function that is true if the present terminal has been closed since.

    It stays false if SIGHUP was ignored already: nohup asks to outlive the terminal.
    """
    outlives = signal.signal(signal.SIGHUP, signal.SIG_IGN) is signal.SIG_IGN
    had_terminal = not outlives and _has_terminal()
    return lambda: had_terminal and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
