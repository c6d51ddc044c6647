"""A program that reads files as `turbofno import` does, under resource limits, and reports outcomes and audit events."""

from __future__ import annotations

import codecs
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turbofno.models.importers.detect import convert, read_checkpoint
from turbofno.models.importers.normalizers import read_normalizer
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Options
from turbofno.models.importers.torch_file import read_torch_file

# Audit events of code execution. `open` is checked by path and mode.
_FORBIDDEN = (
    "exec", "import", "os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pickle.", "marshal.",
    "pty.", "tempfile.", "urllib.", "code.", "sys.setprofile", "sys.settrace",
)  # fmt: skip
_EXTRA_BYTES = 2 << 30
_SECONDS = 120

Record = dict[str, Any]


class Watch:
    """An audit hook with a switch; Python cannot remove audit hooks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen, self.on = str(folder), list[str](), False
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, _ = arguments
            inside = isinstance(path, int) or str(path).startswith(self.folder)
            if inside and not set(mode or "") & set("wax+"):
                return
        elif not event.startswith(_FORBIDDEN):
            return
        self.seen.append(f"{event} {arguments!r}"[:200])


def read(path: Path) -> None:
    """Read `path` as the command would."""
    if path.suffix in (".npz", ".json"):
        read_normalizer(path)
    elif path.suffix == ".pickle":
        # read as a legacy torch.save file, which begins with a pickle
        read_torch_file(path)
    else:
        convert(read_checkpoint(path), Options())


def outcome(reading: Callable[[Path], None], path: Path) -> str:
    try:
        reading(path)
    except ImportRefused as refusal:
        return f"refused: {refusal}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return "read"


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _limit() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _EXTRA_BYTES, size + _EXTRA_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def main(honest: Path, hostile: Path) -> list[Record]:
    """One record for each file of both folders; the honest files come first and trigger lazy imports."""
    for path in sorted(honest.iterdir()):
        outcome(read, path)
    for codec in ("raw_unicode_escape", "unicode_escape", "latin1", "cp437"):
        codecs.lookup(codec)
    _limit()
    watch = Watch(hostile.parent)
    records = []
    for path in (*sorted(honest.iterdir()), *sorted(hostile.iterdir())):
        watch.seen, before, started = [], _memory(), time.perf_counter()
        watch.on = True
        said = outcome(read, path)
        watch.on = False
        seconds = time.perf_counter() - started
        records.append(
            {
                "file": path.name,
                "outcome": said,
                "events": watch.seen,
                "seconds": seconds,
                "grew": _memory() - before,
            }
        )
    return records


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
