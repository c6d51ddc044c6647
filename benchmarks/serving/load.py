"""The load generator: closed and open loops over persistent connections; latency counts from when a request was due.

To use little CPU time it is a bare protocol on uvloop, requests are built beforehand and answers are checked afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LEAST_BUFFER = 64 * 1024
_HEAD_END = b"\r\n\r\n"
NEVER_SENT = -1
_SPIN_SECONDS = 0.002
"""Timers of the event loop are a millisecond coarse, so the loop spins for this long before a request is due."""
_CONNECT_SECONDS = 0.5
"""Pause between opening the connections of an open loop and its first request."""
GRACE_SECONDS = 2.0
"""Time that answers may take after the last request was due."""


@dataclass
class Outcome:
    """The result of one request. Times are of time.perf_counter."""

    question: int
    due: float
    done: float = 0.0
    status: int = 0
    """HTTP status. 0: connection lost or no answer in time. NEVER_SENT: no connection was free in time."""
    body: bytes = b""


@dataclass
class Load:
    """One measured phase: latencies of right answers, errors counted by kind."""

    seconds: float
    offered: int
    latencies: list[float] = field(default_factory=list)
    answered: int = 0
    """Answers with status 200, including the warm-up."""
    right_in_time: int = 0
    """Right answers before the end of the phase."""
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Right answers a second."""
        return self.right_in_time / self.seconds

    def percentile_ms(self, q: float) -> float | None:
        """The `q` quantile of the latencies of right answers in milliseconds; None if there are none."""
        if not self.latencies:
            return None
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1e3


class Answers:
    """Answer bodies. Equal answers to a question are stored once; otherwise a fast server fills the memory in seconds."""

    def __init__(self) -> None:
        self._kept: defaultdict[int, list[bytes]] = defaultdict(list)

    def keep(self, question: int, body: memoryview) -> bytes:
        kept = self._kept[question]
        for one in kept:
            # compares bytes; == would compare the view's items one by one
            if len(one) == len(body) and one.startswith(body):
                return one
        kept.append(bytes(body))
        return kept[-1]


class Connection(asyncio.BufferedProtocol):
    """A persistent HTTP/1.1 connection with at most one request at a time."""

    def __init__(
        self, idle: Callable[[Connection], None], lost: Callable[[], None], answers: Answers
    ) -> None:
        self._idle = idle
        self._lost = lost
        self._answers = answers
        self._transport: asyncio.Transport | None = None
        self._outcome: Outcome | None = None
        self._buffer = bytearray(_LEAST_BUFFER)
        self._filled = 0
        self._expected = 0
        self._head = 0

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's
        self._transport = cast("asyncio.Transport", transport)

    def send(self, request: bytes, outcome: Outcome) -> None:
        assert self._transport is not None
        self._outcome = outcome
        self._transport.write(request)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if not self._expected:
            end = self._buffer.find(_HEAD_END, 0, self._filled)
            if end < 0:
                return
            length = _LENGTH.search(self._buffer, 0, end + 2)
            if length is None:
                self.close()
                return
            self._head = end + len(_HEAD_END)
            self._expected = self._head + int(length[1])
            if self._expected >= len(self._buffer):
                grown = bytearray(self._expected + _LEAST_BUFFER)
                grown[: self._filled] = self._buffer[: self._filled]
                self._buffer = grown
        if self._filled < self._expected:
            return
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome.done = time.perf_counter()
            outcome.status = int(self._buffer[9:12])
            body = memoryview(self._buffer)[self._head : self._expected]
            outcome.body = self._answers.keep(outcome.question, body)
        self._filled = self._expected = 0
        self._idle(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome.done = time.perf_counter()
        self._lost()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def give_up(self) -> None:
        """Close; a request that still waits gets no answer."""
        self._outcome = None
        self.close()


@dataclass(frozen=True)
class Target:
    """Address, prepared requests, and the check of an answer to request i."""

    host: str
    port: int
    requests: Sequence[bytes]
    is_right: Callable[[int, bytes], bool]


class Pool:
    """Connections, reopened when lost; `idle` is called with each that is free."""

    def __init__(self, target: Target, idle: Callable[[Connection], None]) -> None:
        self._target = target
        self._idle = idle
        self._answers = Answers()
        self._connections: list[Connection] = []
        self._reopening: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self, count: int) -> None:
        for _ in range(count):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self._idle, self._lost, self._answers),
                self._target.host,
                self._target.port,
            )
            self._connections.append(connection)
            self._idle(connection)

    def close(self) -> None:
        self._closed = True
        for task in self._reopening:
            task.cancel()
        for connection in self._connections:
            connection.give_up()

    def _lost(self) -> None:
        if not self._closed:
            task = asyncio.get_running_loop().create_task(self._reopen())
            self._reopening.add(task)
            task.add_done_callback(self._reopening.discard)

    async def _reopen(self) -> None:
        # if the server is gone, the loop goes on without connections
        with contextlib.suppress(OSError):
            await self.open(1)


async def closed_loop(target: Target, *, connections: int, seconds: float, warm_up: float) -> Load:
    """Load with one request at a time on each connection; answers of the first `warm_up` seconds do not count."""
    outcomes: list[Outcome] = []
    end = time.perf_counter() + warm_up + seconds
    turn = 0

    def send_next(connection: Connection) -> None:
        nonlocal turn
        now = time.perf_counter()
        if now >= end or not connection.open:
            return
        outcome = Outcome(turn % len(target.requests), due=now)
        turn += 1
        outcomes.append(outcome)
        connection.send(target.requests[outcome.question], outcome)

    pool = Pool(target, send_next)
    await pool.open(connections)
    await _finish(outcomes, end, pool)
    return _judge(target, outcomes, seconds, end)


async def open_loop(
    target: Target, *, rate: float, connections: int, seconds: float, warm_up: float
) -> tuple[Load, float]:
    """Load of requests at random (Poisson) times, `rate` a second on average, independent of answers.

    What happens in the first `warm_up` seconds does not count. Time that a request waits for a free connection counts; those
    that wait at the end are still sent. Also returns the p99 in milliseconds of the generator's own delay: between the due
    time and the sending of requests that found a connection free.
    """
    outcomes: list[Outcome] = []
    free: deque[Connection] = deque()
    waiting: deque[Outcome] = deque()
    late: list[float] = []

    def idle(connection: Connection) -> None:
        if not connection.open:
            return
        if waiting:
            outcome = waiting.popleft()
            connection.send(target.requests[outcome.question], outcome)
        else:
            free.append(connection)

    pool = Pool(target, idle)
    await pool.open(connections)
    due = time.perf_counter() + _CONNECT_SECONDS
    end = due + warm_up + seconds
    while (due := due + random.expovariate(rate)) < end:
        await _until(due)
        outcome = Outcome(len(outcomes) % len(target.requests), due=due)
        outcomes.append(outcome)
        while free and not free[0].open:
            free.popleft()
        if free:
            if due >= end - seconds:
                late.append(time.perf_counter() - due)
            free.popleft().send(target.requests[outcome.question], outcome)
        else:
            waiting.append(outcome)
        if len(outcomes) % 8 == 0:
            # Above the server's capacity the generator is always late and never sleeps; let it read answers.
            await asyncio.sleep(0)
    await _finish(outcomes, end, pool)
    for outcome in waiting:
        outcome.done, outcome.status = time.perf_counter(), NEVER_SENT
    lateness = sorted(late)[int(0.99 * len(late))] * 1e3 if late else 0.0
    return _judge(target, outcomes, seconds, end), lateness


async def _until(due: float) -> None:
    if (ahead := due - time.perf_counter()) > _SPIN_SECONDS:
        await asyncio.sleep(ahead - _SPIN_SECONDS)
    while time.perf_counter() < due:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


async def _finish(outcomes: list[Outcome], end: float, pool: Pool) -> None:
    while time.perf_counter() < end + GRACE_SECONDS:
        if time.perf_counter() >= end and all(outcome.done for outcome in reversed(outcomes)):
            break
        await asyncio.sleep(0.01)
    pool.close()
    await asyncio.sleep(0)


def _judge(target: Target, outcomes: list[Outcome], seconds: float, end: float) -> Load:
    answered = sum(outcome.status == HTTPStatus.OK for outcome in outcomes)
    counted = [o for o in outcomes if o.done >= end - seconds or not o.status]
    load = Load(seconds, offered=len(counted), answered=answered)
    for outcome in counted:
        if outcome.status == 0:
            load.errors["connection lost" if outcome.done else "no answer in time"] += 1
        elif outcome.status == NEVER_SENT:
            load.errors["never sent"] += 1
        elif outcome.status != HTTPStatus.OK:
            load.errors[f"HTTP {outcome.status}"] += 1
        elif not target.is_right(outcome.question, outcome.body):
            load.errors["wrong answer"] += 1
        else:
            load.latencies.append(outcome.done - outcome.due)
            load.right_in_time += outcome.done <= end
    return load
