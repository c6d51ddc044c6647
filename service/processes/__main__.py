"""Entry point of front-end and engine processes: reads its Launch from standard input; its argument is only for `ps`."""

from __future__ import annotations

import logging
import os
import signal
import sys

import uvloop

from turbofno.service import logs
from turbofno.service.processes.liveness import EX_CONFIG, Launch, die_with_parent
from turbofno.service.server import SWITCH_SECONDS, keep_objects
from turbofno.service.system import keep_freed_memory


def main() -> int:
    launch = Launch.load(sys.stdin.buffer.read())
    die_with_parent(launch.supervisor)
    # A front end installs its own handler once it serves.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logs.configure(launch.settings, process=launch.name)
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_SECONDS)
    if launch.role == "engine":
        from turbofno.service.processes.engine_process import run
    else:
        from turbofno.service.processes.frontend_process import run
    keep_objects()
    try:
        return uvloop.run(run(launch))
    except (ValueError, OSError) as error:
        logging.getLogger(__name__).error("cannot start: %s", error)
        return EX_CONFIG


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # Interpreter shutdown would crash a device thread that is still in a batch; nothing else is left to clean up.
    os._exit(status)
