"""A server process whose address is read from its log."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.service.forked import Forked


@contextmanager
def announced(
    process: subprocess.Popen[str] | Forked, pattern: str, log: list[str]
) -> Iterator[str]:
    """The group of `pattern` in the log, or "" if the process ends before; kills the process at the end.

    All lines of its stderr are appended to `log`.
    """
    places: list[str] = []
    found = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line)
            if match := re.search(pattern, line):
                places.append(match[1])
                found.set()
        found.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert found.wait(30)
        yield places[0] if places else ""
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()
