"""Starts a server, applies each load, and yields the results as table rows."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from benchmarks.serving.checkpoint import Question, questions
from benchmarks.serving.load import Load, Target, closed_loop, open_loop
from benchmarks.serving.processes import ServerProcess, running
from benchmarks.serving.servers import ARITHMETIC, ROOT, Place, Server, environment

Row = dict[str, Any]
T = TypeVar("T")

PEERS_HALF = "open, half of the best peer's peak"

_START_SECONDS = 90.0
_SETTLE_SECONDS = 2.0
"""A server is ready after it has answered for this long without an error. Ray Serve's proxy drops its connections once,
when it first learns where the model runs."""
_OPEN_CONNECTIONS = 512
_OPEN_RUNS = 3
"""Runs of an open loop, of which the one with the median p99 counts: a shared machine stalls for longer than a p99 here."""


@dataclass(frozen=True)
class Plan:
    """Loads with one body format and size.

    Open loops offer `open_shares` times the best closed-loop rate; one more offers `peers_half`, half the best peer's rate.
    """

    body: str
    side: int
    connections: tuple[int, ...] = ()
    open_shares: tuple[float, ...] = ()
    peers_half: float = 0.0


@dataclass(frozen=True)
class Pace:
    """Seconds of a phase and of its warm-up."""

    measured: float = 1.2
    warm_up: float = 0.4


class ServerFailed(RuntimeError):
    """The server exited, or gave no correct answer in time."""


@contextmanager
def serving(
    server: Server, checkpoint: Path, cores: set[int]
) -> Iterator[tuple[ServerProcess, int]]:
    """The started server with this checkpoint on these cores, and its port; it may not answer yet."""
    port = free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        place = Place(checkpoint, port, Path(scratch))
        command, variables = server.command(place), environment(server, place)
        with running(command, environment=variables, cores=cores, cwd=ROOT) as process:
            yield process, port


def rows(
    server: Server, checkpoint: Path, plans: list[Plan], *, cores: set[int], pace: Pace
) -> Iterator[Row]:
    """Start the server and measure every plan.

    Raises:
        ServerFailed: the message has the end of the server's log.
    """
    with serving(server, checkpoint, cores) as (process, port):
        for number, plan in enumerate(plans):
            asked = questions(checkpoint, plan.side)
            target = _target(server, plan, asked, model=checkpoint.name, port=port)
            label = {"server": server.name, "model": checkpoint.name}
            form = {"body": plan.body, "side": plan.side}
            try:
                wait_until_right(target, process, seconds=0.1 if number else _SETTLE_SECONDS)
                for row in _plan_rows(target, plan, process, pace):
                    yield {**label, **form, **row}
            except ServerFailed as error:
                raise ServerFailed(f"{server.name}: {error}\n{process.log_tail()}") from None


def forward_ms(checkpoint: Path, side: int, batch: int, cores: set[int], *options: str) -> float:
    """Median milliseconds of the network in a process of its own on these cores; see `forward` for the options."""
    command = [sys.executable, "-m", "benchmarks.serving.forward", str(checkpoint)]
    command += [str(side), str(batch), *options]
    with running(command, environment=ARITHMETIC, cores=cores, cwd=ROOT) as process:
        while not process.exited:
            time.sleep(0.05)
        return float(process.log_tail())


def generator_rows(side: int, cores: set[int], pace: Pace) -> Iterator[Row]:
    """Rows of the load generator against a server that does nothing, with bodies of the size of binary ones."""
    body = bytes(side * side * 4)
    port = free_port()
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    target = Target("127.0.0.1", port, [head.encode() + body], lambda _, answer: answer == body)
    command = [sys.executable, "-m", "benchmarks.serving.null_server", str(port), str(len(body))]
    with running(command, environment={}, cores=cores, cwd=ROOT) as process:
        wait_until_right(target, process)
        for row in _plan_rows(target, Plan("binary", side, (1, 32), (0.5,)), process, pace):
            yield {"server": "null server", "body": "binary", "side": side, **row}


def _target(server: Server, plan: Plan, asked: list[Question], *, model: str, port: int) -> Target:
    form = server.forms[plan.body]

    def is_right(index: int, body: bytes) -> bool:
        try:
            answer = form.values(body)
        except (ValueError, KeyError, IndexError, TypeError):
            return False
        return asked[index].is_answered_by(answer)

    requests = [form.request(question.field, model=model, port=port) for question in asked]
    return Target("127.0.0.1", port, requests, is_right)


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_until_right(target: Target, process: ServerProcess, *, seconds: float = 0.1) -> None:
    """Return once one client got only right answers for `seconds`. Raises ServerFailed."""
    until = time.monotonic() + _START_SECONDS
    failure = "it does not listen"
    while time.monotonic() < until:
        if process.exited:
            raise ServerFailed("it ended")
        try:
            load = run(closed_loop(target, connections=1, seconds=seconds, warm_up=0.0))
        except OSError:
            time.sleep(0.2)
            continue
        if load.latencies and not load.errors:
            return
        failure = f"it answers {dict(load.errors)}"
        time.sleep(0.2)
    raise ServerFailed(f"not ready after {_START_SECONDS:g} s: {failure}")


def _plan_rows(target: Target, plan: Plan, process: ServerProcess, pace: Pace) -> Iterator[Row]:
    closed = partial(closed_loop, target, seconds=pace.measured, warm_up=pace.warm_up)
    best, best_connections = 0.0, 0
    for connections in plan.connections:
        load, cpu = _with_cpu(closed(connections=connections), process)
        if load.rate > best:
            best, best_connections = load.rate, connections
        yield {"load": f"closed, {connections}", "offered/s": None, **_figures(load, cpu)}
    if plan.open_shares and not best:
        raise ServerFailed(
            f"no right answer in a closed loop of {pace.measured:g} s ({plan.body}, {plan.side}x{plan.side})"
        )
    offered = {f"open, {share:g} of peak": share * best for share in plan.open_shares}
    if plan.peers_half:
        offered[PEERS_HALF] = plan.peers_half
    for name, rate in offered.items():
        tried, kept = [], []
        for _ in range(_OPEN_RUNS):
            wait_until_right(target, process)
            peak = 0.0
            if 0.0 < best < rate:
                # Measured again, because the machine's speed drifts by more than a server loses past its peak.
                peak = run(closed(connections=best_connections)).rate
            phase = open_loop(
                target,
                rate=rate,
                connections=_OPEN_CONNECTIONS,
                seconds=pace.measured,
                warm_up=pace.warm_up,
            )
            (load, late), cpu = _with_cpu(phase, process)
            tried.append({**_figures(load, cpu), "late ms": late})
            if peak:
                kept.append(load.rate / peak)
        tried.sort(key=lambda row: math.inf if row["p99 ms"] is None else row["p99 ms"])
        row = {"load": name, "offered/s": rate, **tried[_OPEN_RUNS // 2]}
        yield {**row, "of peak": statistics.median(kept)} if kept else row


def _figures(load: Load, cpu_seconds: float) -> Row:
    answered = load.answered
    return {
        "fields/s": load.rate,
        "p50 ms": load.percentile_ms(0.5),
        "p99 ms": load.percentile_ms(0.99),
        "CPU ms/field": cpu_seconds / answered * 1e3 if answered else None,
        "requests": load.offered,
        "errors": dict(load.errors),
    }


def _with_cpu(phase: Coroutine[Any, Any, T], process: ServerProcess) -> tuple[T, float]:
    before = process.cpu_seconds()
    result = run(phase)
    return result, process.cpu_seconds() - before


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine on a uvloop event loop, without garbage collection: its pauses would count as the server's."""
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    finally:
        gc.enable()
