"""Entry point of a fork server: its standard input is the socket at which it listens, its argument its parent."""

from __future__ import annotations

import os
import socket
import sys
from functools import partial

from turbofno.service.processes.fork_server import serve
from turbofno.service.processes.launch import run_to_the_end

if __name__ == "__main__":
    run_to_the_end(partial(serve, socket.socket(fileno=os.dup(0)), int(sys.argv[1])))
