"""Replays of a network on a CPU, which skip the overhead of Python (turbofno_ops/replay.py)."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import torch

from turbofno_ops import Replay, Unrecordable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

_RUNS_BEFORE_RECORDING = 8
"""Runs on a grid before it is recorded: a recording takes as long as some dozens of runs."""
_RECORDING_COOLDOWN = 50
"""After recording a caller-chosen grid, do not record another for this many times as long: recording blocks the device
thread."""
_MAX_SECONDS = 0.02
"""Do not record if one field takes longer: then arithmetic dominates and there is little to gain."""
_MAX_GRIDS = 8
"""Most recorded grids, the last used: their recordings take about ten megabytes each."""
_MAX_TRACKED_GRIDS = 64
"""Most recorded or counted grids: more than are recorded, so that rare grids do not evict frequent ones."""


class Replays:
    """Runs a network, recorded if that is faster. For one thread, in inference mode.

    Only batch sizes that are powers of two are recorded; other batches are composed of them.
    """

    def __init__(
        self,
        name: str,
        network: Callable[[torch.Tensor], torch.Tensor],
        *,
        chunk_size: Callable[[torch.Size], int],
    ) -> None:
        """`network` takes [n, channels, *grid]; at most `chunk_size(shape of a field)` fields run together.

        `name` is for the log.
        """
        self._name = name
        self._network = network
        self._chunk_size = chunk_size
        self._known: OrderedDict[torch.Size, _Recordings] = OrderedDict()
        self._cooldown_until = 0.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The network's output."""
        field = x.shape[1:]
        known = self._recordings(field)
        if not known.tried:
            known.runs += 1
            if known.runs >= _RUNS_BEFORE_RECORDING and time.monotonic() >= self._cooldown_until:
                started = time.monotonic()
                self._record(known, field)
                self._cooldown_until = started + (1 + _RECORDING_COOLDOWN) * (
                    time.monotonic() - started
                )
        if (whole := known.replays.get(x.shape[0])) is not None:
            return whole(x)[0]
        most = self._chunk_size(field)
        if not known.replays:
            return _concatenate([self._network(part) for part in x.split(most)])
        parts = x.split(list(_powers_of_two(len(x), most)))
        return _concatenate([known.replays[len(part)](part)[0] for part in parts])

    def prepare(self, field: torch.Size) -> None:
        """Record runs of such fields, if that is faster."""
        known = self._recordings(field)
        if not known.tried:
            self._record(known, field)

    def recorded(self, field: torch.Size) -> bool:
        """True if such fields are replayed."""
        known = self._known.get(field)
        return known is not None and bool(known.replays)

    def clear(self) -> None:
        """Drop all recordings."""
        self._known.clear()

    def _recordings(self, field: torch.Size) -> _Recordings:
        known = self._known.get(field)
        if known is None:
            known = self._known[field] = _Recordings()
            if len(self._known) > _MAX_TRACKED_GRIDS:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(field)
        return known

    def _record(self, known: _Recordings, field: torch.Size) -> None:
        known.tried = True
        x = torch.zeros(1, *field)
        with torch.inference_mode():
            self._network(x)
            started = time.perf_counter()
            self._network(x)
        if time.perf_counter() - started > _MAX_SECONDS:
            return
        replays = {}
        try:
            for exponent in range(self._chunk_size(field).bit_length()):
                size = 1 << exponent
                replays[size] = Replay(self._run, [torch.zeros(size, *field)])
        except (Unrecordable, RuntimeError, AttributeError, TypeError) as error:
            # Also if PyTorch removes TorchScript: unrecorded runs give the same result, slower.
            logger.info("%s runs call by call on %s: %s", self._name, list(field), error)
        else:
            known.replays = replays
            recorded = [field for field, known in self._known.items() if known.replays]
            if len(recorded) > _MAX_GRIDS:
                del self._known[recorded[0]]

    def _run(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self._network(x),)


class _Recordings:
    """The recordings for one field shape."""

    def __init__(self) -> None:
        self.runs = 0
        self.tried = False
        self.replays: dict[int, Replay] = {}
        """By batch size; all or none."""


def _powers_of_two(count: int, most: int) -> Iterator[int]:
    """The fewest powers of two with the sum `count`, none larger than `most`."""
    size = 1 << (most.bit_length() - 1)
    while count:
        if size <= count:
            yield size
            count -= size
        else:
            size >>= 1


def _concatenate(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
