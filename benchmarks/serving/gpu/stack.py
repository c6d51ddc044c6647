"""The service under load from several client processes: rates, CPU time by role, batch sizes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import forms
from benchmarks.serving.measure import serving
from benchmarks.serving.processes import ServerProcess
from benchmarks.serving.servers import ROOT, Place, Server

Row = dict[str, Any]

_READY_SECONDS = 120.0


@dataclass(frozen=True)
class Setup:
    """A configuration of the service: without front ends, in one process. `cores` are the server's and the clients'."""

    checkpoint: Path
    devices: str
    frontends: int
    max_batch: int
    cores: tuple[set[int], set[int]]
    clients: int


@dataclass(frozen=True)
class Phase:
    """The load of all clients together: `rate` requests a second of `fields` fields; a closed loop if it is None."""

    fields: int
    connections: int
    seconds: float
    rate: float | None = None


@dataclass(frozen=True)
class Stack:
    """A running service with its clients."""

    setup: Setup
    server: ServerProcess
    port: int
    clients: list[subprocess.Popen[str]] = field(default_factory=list)

    def measure(self, phase: Phase) -> Row:
        """Run a phase and return its row. Raises RuntimeError if a client ended."""
        share = len(self.clients)
        order: Row = {
            "fields": phase.fields,
            "connections": max(1, phase.connections // share),
            "seconds": phase.seconds,
            "rate": None if phase.rate is None else phase.rate / share,
        }
        cpu, batches = cpu_by_role(self.server), self._batches()
        began = time.perf_counter()
        told = self._ask(order)
        spent = {role: now - cpu[role] for role, now in cpu_by_role(self.server).items()}
        after = self._batches()
        latencies = np.concatenate([one["latencies"] for one in told])
        # CPU time includes the warm-up, so its answers count
        done = sum(one["answered"] for one in told) * phase.fields
        return {
            **_described(self.setup),
            "fields a request": phase.fields,
            "connections": order["connections"] * share,
            "load": "closed" if phase.rate is None else "open",
            "offered/s": None if phase.rate is None else phase.rate * phase.fields,
            "fields/s": sum(one["rate"] for one in told) * phase.fields,
            **_percentiles(latencies),
            "errors": dict(sum((Counter(one["errors"]) for one in told), Counter())),
            "requests": len(latencies),
            "late ms": max(one["late"] for one in told),
            **{f"{role} CPU us/field": spent[role] / done * 1e6 for role in sorted(spent) if done},
            "client CPU us/field": sum(one["cpu"] for one in told) / done * 1e6 if done else None,
            "wall s": time.perf_counter() - began,
            **_in_batches(batches, after),
        }

    def _ask(self, order: Row) -> list[Row]:
        """Have the clients run a phase; return their results."""
        for client in self.clients:
            assert client.stdin is not None
            client.stdin.write(json.dumps(order) + "\n")
            client.stdin.flush()
        return [_told(client) for client in self.clients]

    def _batches(self) -> dict[int, tuple[int, int]]:
        """Batch size -> number of batches, and their nanoseconds on the device."""
        url = f"http://127.0.0.1:{self.port}/v2/models/{self.setup.checkpoint.name}/stats"
        with urllib.request.urlopen(url, timeout=10) as answer:
            stats = json.load(answer)["model_stats"][0]["batch_stats"]
        return {
            one["batch_size"]: (one["compute_infer"]["count"], one["compute_infer"]["ns"])
            for one in stats
        }


@contextmanager
def serve(setup: Setup, questions_file: Path) -> Iterator[Stack]:
    """The service and its clients, ready. Raises RuntimeError with the end of the log if the service does not start."""
    server = Server("turbofno", forms.TURBOFNO, lambda place: _command(setup, place))
    with serving(server, setup.checkpoint, setup.cores[0]) as (process, port):
        stack = Stack(setup, process, port)
        _wait_until_ready(process, port)
        command = [sys.executable, "-m", "benchmarks.serving.gpu.client", str(questions_file)]
        command += [str(port), setup.checkpoint.name]
        try:
            for cores in _dealt(setup.cores[1], setup.clients):
                client = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
                )
                os.sched_setaffinity(client.pid, cores)
                stack.clients.append(client)
            for client in stack.clients:
                assert client.stdout is not None
                client.stdout.readline()
            yield stack
        finally:
            for client in stack.clients:
                client.communicate()


def cpu_seconds(pid: int, *, main_thread: bool = False) -> tuple[float, float]:
    """User and system seconds so far of a process or of its first thread; 0 if it has ended."""
    path = Path(f"/proc/{pid}/task/{pid}/stat" if main_thread else f"/proc/{pid}/stat")
    try:
        numbers = path.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    tick = os.sysconf("SC_CLK_TCK")
    return int(numbers[11]) / tick, int(numbers[12]) / tick


def cpu_by_role(server: ServerProcess) -> dict[str, float]:
    """CPU seconds so far of engines, front ends and the supervisor, as which a service of one process counts.

    System time also has keys of its own (`frontend system`), and so have the engines' event loops (`engine loop`).
    """
    spent: defaultdict[str, float] = defaultdict(float)
    for pid in server.pids():
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text()
            found = re.match(r"(frontend|engine)-\d+$", name)
            role = "supervisor" if found is None else found[1]
            user, system = cpu_seconds(pid)
            spent[role] += user + system
            spent[f"{role} system"] += system
            if role == "engine":
                spent["engine loop"] += sum(cpu_seconds(pid, main_thread=True))
    return spent


def _command(setup: Setup, place: Place) -> list[str | Path]:
    return [
        *(sys.executable, "-m", "turbofno.service", "serve", "--port", str(place.port)),
        *("--model-repository", place.checkpoint.parent, "--models", place.checkpoint.name),
        *where(setup),
        *("--max-batch-size", str(setup.max_batch), "--log-level", "warning"),
    ]


def where(setup: Setup) -> list[str]:
    """The options for front ends and devices."""
    if setup.frontends:
        return ["--frontends", str(setup.frontends), "--devices", setup.devices]
    return ["--device", setup.devices if setup.devices == "cpu" else f"cuda:{setup.devices}"]


def _wait_until_ready(process: ServerProcess, port: int) -> None:
    until = time.monotonic() + _READY_SECONDS
    while time.monotonic() < until and not process.exited:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the service is not ready:\n{process.log_tail()}")


def _told(client: subprocess.Popen[str]) -> Row:
    assert client.stdout is not None
    line = client.stdout.readline()
    if not line:
        raise RuntimeError("a client ended")
    told: Row = json.loads(line)
    return told


def _dealt(cores: set[int], shares: int) -> Iterator[set[int]]:
    """The cores in `shares` parts."""
    ordered = sorted(cores)
    for i in range(shares):
        yield set(ordered[i::shares]) or {ordered[i % len(ordered)]}


def _described(setup: Setup) -> Row:
    return {
        "model": setup.checkpoint.name,
        "devices": setup.devices,
        "frontends": setup.frontends,
        "max batch": setup.max_batch,
        "server cores": len(setup.cores[0]),
        "client cores": len(setup.cores[1]),
        "clients": setup.clients,
    }


def _percentiles(latencies: np.ndarray[Any, Any]) -> Row:
    if not len(latencies):
        return {"p50 ms": None, "p99 ms": None}
    p50, p99 = np.quantile(latencies, (0.5, 0.99)) * 1e3
    return {"p50 ms": float(p50), "p99 ms": float(p99)}


def _in_batches(before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]) -> Row:
    """Mean batch size, number of batches of each size, and device seconds of a phase."""
    counts = {
        size: (count - before.get(size, (0, 0))[0], ns - before.get(size, (0, 0))[1])
        for size, (count, ns) in after.items()
    }
    batches = sum(count for count, _ in counts.values())
    fields = sum(size * count for size, (count, _) in counts.items())
    return {
        "mean batch": fields / batches if batches else None,
        "batches": {size: count for size, (count, _) in counts.items() if count},
        "device s": sum(ns for _, ns in counts.values()) / 1e9,
    }
