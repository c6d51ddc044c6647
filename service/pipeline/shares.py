"""Whose turn it is: device time in fair shares among models, more of it to a higher priority.

Start-time fair queueing. Every flow has a clock of the device time it was given, scaled by its weight; the flow that
waits with the lowest clock is next. A flow that was idle starts at the clock of the flow served last, so it is served
soon but has saved up nothing.
"""

from __future__ import annotations

from typing import NamedTuple

PRIORITIES = range(11)
"""Priorities that a request may ask for: 1 is the highest, 10 the lowest, 0 the protocol's default."""
DEFAULT_LEVEL = 5
"""What priority 0, the protocol's default, stands for: in the middle, so that batch work can step back by itself."""
_STEP = 2.0
"""While both have work waiting, a level gets this many times the device time of the level below it."""
_LEAST_SECONDS = 1e-6
"""So that work too short to be measured cannot keep its turn for ever."""


def level_of(priority: int) -> int:
    """The level of an Open Inference Protocol priority; what is beyond the range counts as the lowest."""
    return min(priority, PRIORITIES[-1]) if priority > 0 else DEFAULT_LEVEL


class Flow(NamedTuple):
    """What shares are given to."""

    model: str
    level: int


class Shares:
    """The clocks: as many as models times levels in use."""

    def __init__(self) -> None:
        self._now = 0.0
        self._clocks: dict[Flow, float] = {}

    def clock(self, flow: Flow) -> float:
        """The lowest is next."""
        return max(self._clocks.get(flow, 0.0), self._now)

    def serve(self, flow: Flow) -> None:
        """Note that it is this flow's turn."""
        self._now = self.clock(flow)

    def charge(self, flow: Flow, seconds: float) -> None:
        """Note device time that it used."""
        scaled = max(seconds, _LEAST_SECONDS) * _STEP ** (flow.level - DEFAULT_LEVEL)
        self._clocks[flow] = self.clock(flow) + scaled
