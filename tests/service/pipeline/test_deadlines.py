"""Deadlines of waiting tickets, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from turbofno.service.pipeline import deadlines
from turbofno.service.pipeline.deadlines import Deadlines


class Clock:
    """Stands in for the event loop and its time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: dict[Mock, tuple[float, Callable[[], None]]] = {}

    def call_later(self, delay: float, search: Callable[[], None]) -> Mock:
        assert delay >= 0.005
        handle = Mock()
        handle.cancel = lambda: self.timers.pop(handle)
        self.timers[handle] = self.now + delay, search
        return handle

    def run(self, until: float) -> None:
        while self.timers and min(at for at, _ in self.timers.values()) <= until:
            assert len(self.timers) == 1, "one timer for all"
            _, (self.now, search) = self.timers.popitem()
            search()
        self.now = until


def ticket(deadline: float | None, *, dispatched: int = 0, settled: bool = False) -> Mock:
    return Mock(request=SimpleNamespace(deadline=deadline), dispatched=dispatched, settled=settled)


@pytest.mark.parametrize("order", [(101.0, 105.0, 103.0), (105.0, 101.0, 103.0)], ids=str)
def test_each_ticket_expires_at_its_deadline_whichever_comes_first(
    order: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    monkeypatch.setattr(deadlines, "time", Mock(monotonic=lambda: clock.now))
    live = {ticket(None), ticket(101.0, dispatched=1), ticket(101.0, settled=True)}
    expired = []

    def expire(late: Mock, now: float) -> None:
        live.remove(late)
        expired.append((late.request.deadline, now))

    watched = Deadlines(live, expire)
    watched.watch(list(live))

    def add(*times: float) -> None:
        for deadline in times:
            one = ticket(deadline)
            live.add(one)
            watched.watch([one, ticket(None)])

    add(*order)
    clock.run(104.0)
    assert expired == [(101.0, 101.0), (103.0, 103.0)]
    add(103.5)
    clock.run(110.0)
    assert expired[2:] == [(103.5, 104.005), (105.0, 105.0)]
    assert not clock.timers
