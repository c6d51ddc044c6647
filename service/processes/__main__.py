"""Entry point of front-end and engine processes: reads its Launch from standard input; its argument is only for `ps`."""

from __future__ import annotations

import logging
import os
import sys

import uvloop

from turbofno.service.processes.launch import enter
from turbofno.service.system import SWITCH_SECONDS, keep_imports


def main() -> int:
    launch = enter(sys.stdin.buffer.read())
    sys.setswitchinterval(SWITCH_SECONDS)
    if launch.role == "engine":
        from turbofno.service.processes.engine_process import run
    else:
        from turbofno.service.processes.frontend_process import run
    keep_imports()
    try:
        return uvloop.run(run(launch))
    except (ValueError, OSError) as error:
        logging.getLogger(__name__).error("cannot start: %s", error)
        return os.EX_CONFIG


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # Interpreter shutdown would crash a device thread that is still in a batch; nothing else is left to clean up.
    os._exit(status)
