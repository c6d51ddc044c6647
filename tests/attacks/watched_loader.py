"""Child process of test_bombs.py: imports files under resource limits and an audit hook, and prints outcomes as JSON."""

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

# Audit events that reading a file must not raise. `open` is allowed only for reading below the folder.
_FORBIDDEN = (
    "exec", "import", "os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pickle.", "marshal.",
    "pty.", "tempfile.", "urllib.", "code.", "sys.setprofile", "sys.settrace",
)  # fmt: skip
_EXTRA_ADDRESS_SPACE = 2 << 30  # bytes
_CPU_SECONDS = 120

Record = dict[str, Any]


class AuditHook:
    """Records forbidden events while `on`; a switch, because Python cannot remove audit hooks."""

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


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _limit() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(
        resource.RLIMIT_AS, (size + _EXTRA_ADDRESS_SPACE, size + _EXTRA_ADDRESS_SPACE)
    )
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def main(honest: Path, hostile: Path) -> list[Record]:
    """Return one record per file, honest files first. They are read once before, because lazy imports are forbidden events."""
    for path in sorted(honest.iterdir()):
        outcome(read, path)
    for codec in ("raw_unicode_escape", "unicode_escape", "latin1", "cp437"):
        codecs.lookup(codec)
    _limit()
    hook = AuditHook(hostile.parent)
    records = []
    for path in (*sorted(honest.iterdir()), *sorted(hostile.iterdir())):
        hook.seen, before, started = [], _peak_memory(), time.perf_counter()
        hook.on = True
        result = outcome(read, path)
        hook.on = False
        seconds = time.perf_counter() - started
        records.append(
            {
                "file": path.name,
                "outcome": result,
                "events": hook.seen,
                "seconds": seconds,
                "grew": _peak_memory() - before,
            }
        )
    return records


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
