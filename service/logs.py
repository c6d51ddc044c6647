"""Logging as JSON lines or short text lines, each with the id of its request."""

from __future__ import annotations

import json
import logging
import random
import re
import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from turbofno.models.importers.refusal import printable

if TYPE_CHECKING:
    from turbofno.service.settings import Settings

request_id: ContextVar[str] = ContextVar("turbofno_request_id", default="")

_as_json = json.JSONEncoder(default=str).encode
_SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}")


def accept_request_id(offered: bytes) -> str:
    """The client's request id if it is safe for logs and headers, else a new one."""
    if offered and _SANE_ID.fullmatch(offered):
        return offered.decode("ascii")
    # An id need not be unguessable; os.urandom would cost a system call.
    return random.randbytes(8).hex()


def configure(settings: Settings, *, process: str = "") -> None:
    """Log everything, including uvicorn's lines and Python's warnings, to standard error in the format of the settings.

    `process` is the name of this process in each line, if the service has several.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(process) if settings.log_format == "json" else ConsoleFormatter(process)
    )
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)
    logging.captureWarnings(True)
    # The service has its own access log.
    logging.getLogger("uvicorn.access").disabled = True


def omit_origins() -> None:
    """Have records without their caller, thread and process, whose look-up takes a sixth of a line's time.

    For processes in which all lines are those of `configure`, which show none of them.
    """
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class _Formatter(logging.Formatter):
    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process


class JsonFormatter(_Formatter):
    """Formats a record as one JSON object: time, level, logger, message, process, request_id, then the data of extra={"data": {...}}."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            line["process"] = self._process
        if identity := request_id.get():
            line["request_id"] = identity
        line |= getattr(record, "data", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _as_json(line)


class ConsoleFormatter(_Formatter):
    """Formats a record as a line: time, level, process, message, then the extra data as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        process = f" {self._process:10}" if self._process else ""
        parts = [
            f"{clock}.{record.msecs:03.0f} {record.levelname:7}{process} {record.getMessage()}"
        ]
        parts += [f"{key}={value}" for key, value in getattr(record, "data", {}).items()]
        if identity := request_id.get():
            parts.append(f"request_id={identity}")
        text = " ".join(parts)
        if not text.isprintable():
            # Messages quote files of models, which could otherwise forge lines.
            text = printable(text)
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text
