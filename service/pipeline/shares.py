"""Start-time fair queueing: device time in fair shares among models, more of it for higher priorities.

Every flow has a virtual clock: the device time it used, divided by its weight. The waiting flow with the lowest clock
runs next. An idle flow resumes at the clock of the flow served last, so it runs soon but accumulates no credit.
"""

from __future__ import annotations

from typing import NamedTuple

PRIORITIES = range(11)
"""Priorities of requests: 1 is the highest, 10 the lowest, 0 the protocol's default."""
DEFAULT_LEVEL = 5
"""The level of priority 0: in the middle, so that batch work can ask for less."""
_STEP = 2.0
"""Ratio of device time between adjacent levels while both have work waiting."""
_MIN_SECONDS = 1e-6
"""Least charge: work too short to be measured would otherwise always run next."""


def level_of(priority: int) -> int:
    """The level of an Open Inference Protocol priority; values beyond the range count as the lowest."""
    return min(priority, PRIORITIES[-1]) if priority > 0 else DEFAULT_LEVEL


class Flow(NamedTuple):
    """The unit of fair sharing."""

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
        scaled = max(seconds, _MIN_SECONDS) * _STEP ** (flow.level - DEFAULT_LEVEL)
        self._clocks[flow] = self.clock(flow) + scaled
