"""Time until the server is alive, ready and, after SIGTERM, gone; and its memory: `python -m benchmarks.startup`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import httpx
import numpy as np

from benchmarks.timing import no_options, print_table, save
from turbofno_client import Client

ROUNDS = 5
MIB = 2**20


def _until(url: str, path: str, began: float) -> float:
    """Seconds from `began` until `path` answers 200."""
    while time.perf_counter() - began < 120:
        try:
            if httpx.get(url + path, timeout=5.0).status_code == 200:
                return time.perf_counter() - began
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise TimeoutError(f"{path} did not answer 200 within 120 s")


def _memory(process: int, line: str) -> float:
    """A line of /proc/PID/status in MiB: VmRSS (now) or VmHWM (peak)."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(x.split()[1]) * 1024 / MIB for x in status.splitlines() if x.startswith(line))


def _load(url: str) -> None:
    """Send full batches to each model on its training grid."""
    with Client(url) as client:
        for model in client.models():
            description = client.model(model["name"])
            shape = (16, len(description["input"]["channels"]), *description["grid"]["training"])
            for _ in range(4):
                client.predict(model["name"], np.ones(shape, np.float32))


def measure() -> dict[str, float]:
    """Start the server with the zoo, send full batches, stop it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    began = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "turbofno.service", "serve", "--port", str(port), "--device", "cpu"],
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        row = {"alive s": _until(url, "/healthz", began), "ready s": _until(url, "/readyz", began)}
        row["ready MiB"] = _memory(server.pid, "VmRSS")
        _load(url)
        row["most under load MiB"] = _memory(server.pid, "VmHWM")
        began = time.perf_counter()
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        row["idle stop s"] = time.perf_counter() - began
    finally:
        server.kill()
        server.wait()
    return row


def main() -> None:
    """Measure a few starts; write the median of each figure to results/startup.jsonl."""
    rounds = [measure() for _ in range(ROUNDS)]
    row = {name: round(median(one[name] for one in rounds), 2) for name in rounds[0]}
    rows = [{"what": f"the shipped models on a CPU, median of {ROUNDS}", **row}]
    print_table("Start", rows)
    print(f"wrote {save('startup', rows)}")


if __name__ == "__main__":
    no_options(__doc__)
    main()
