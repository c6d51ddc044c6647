"""Start-time fair queueing: divides device time among models and priority levels; higher priorities get larger shares.

Every flow has a virtual clock: the device time it used, divided by its weight. The waiting flow with the lowest clock
runs next. An idle flow resumes at the clock of the flow served last, so it runs soon but accumulates no credit.
"""

from __future__ import annotations

from typing import NamedTuple

PRIORITIES = range(11)
"""Priorities of requests: 1 is the highest, 10 the lowest, 0 the default of the Open Inference Protocol."""
DEFAULT_LEVEL = 5
"""The level of priority 0. Levels 1 (highest) to 10 are priorities; the middle one lets offline jobs ask for less."""
_WEIGHT_RATIO = 2.0
"""Weight of a level relative to the next lower one."""
_MIN_SECONDS = 1e-6
"""Minimum charge: a flow whose work is too short to measure would otherwise always run next."""


def level_of(priority: int) -> int:
    """The level of an Open Inference Protocol priority; values beyond the range count as the lowest."""
    return min(priority, PRIORITIES[-1]) if priority > 0 else DEFAULT_LEVEL


class Flow(NamedTuple):
    """Requests for one model at one level: each flow has its own clock."""

    model: str
    level: int


class Shares:
    """The virtual clocks of all flows."""

    def __init__(self) -> None:
        self._now = 0.0
        self._clocks: dict[Flow, float] = {}

    def clock(self, flow: Flow) -> float:
        """The flow's virtual time; the lowest runs next."""
        return max(self._clocks.get(flow, 0.0), self._now)

    def serve(self, flow: Flow) -> None:
        """Record that this flow runs now."""
        self._now = self.clock(flow)

    def charge(self, flow: Flow, seconds: float) -> None:
        """Add device time that the flow used."""
        scaled = max(seconds, _MIN_SECONDS) * _WEIGHT_RATIO ** (flow.level - DEFAULT_LEVEL)
        self._clocks[flow] = self.clock(flow) + scaled
