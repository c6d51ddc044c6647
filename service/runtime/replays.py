"""A function of batches on a CPU, replayed where that pays, rather than run call by call (turbofno_ops/replay.py)."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import torch

from turbofno_ops import Replay, Unrecordable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Tensors = tuple[torch.Tensor, ...]
    Grid = tuple[torch.Size, ...]
    """The shapes of the inputs, without their batch axis."""

logger = logging.getLogger(__name__)

_OFTEN = 8
"""Runs on a grid before it is recorded: that takes as long as some dozens of them."""
_LONG_SECONDS = 0.02
"""Where one field takes longer, nearly all of it is arithmetic, and there is little to gain."""
_MOST_GRIDS = 8
"""Known at a time, those used last: callers choose their grids. A grid's recordings take some ten megabytes."""


class Replays:
    """For one thread, in inference mode.

    Batches are recorded in sizes of powers of two, of which any other is put together: every size would be a recording
    that somebody waits for.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Tensors],
        *,
        at_once: Callable[[torch.Size], int],
    ) -> None:
        """`function` takes and gives tensors [n, ...]; no more fields than `at_once` of the first input's shape without
        its batch axis are run together. `name` is for the log.
        """
        self._name = name
        self._function = function
        self._at_once = at_once
        self._known: OrderedDict[Grid, _Recordings] = OrderedDict()

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """What the function gives."""
        grid = tuple(one.shape[1:] for one in inputs)
        known = self._recordings(grid)
        if not known.tried:
            known.runs += 1
            if known.runs == _OFTEN:
                self._record(known, grid)
        most = self._at_once(grid[0])
        if known.replays:
            sizes = list(_powers_of_two(len(inputs[0]), most))
            parts = zip(*(one.split(sizes) for one in inputs), strict=True)
            return _joined([known.replays[len(part[0])](*part) for part in parts])
        parts = zip(*(one.split(most) for one in inputs), strict=True)
        return _joined([self._function(*part) for part in parts])

    def prepare(self, *grid: torch.Size) -> None:
        """Record what is done to inputs of these shapes, which are without their batch axis, if that pays."""
        known = self._recordings(grid)
        if not known.tried:
            self._record(known, grid)

    def clear(self) -> None:
        """Forget all recordings."""
        self._known.clear()

    def _recordings(self, grid: Grid) -> _Recordings:
        known = self._known.setdefault(grid, _Recordings())
        self._known.move_to_end(grid)
        if len(self._known) > _MOST_GRIDS:
            self._known.popitem(last=False)
        return known

    def _record(self, known: _Recordings, grid: Grid) -> None:
        known.tried = True
        inputs = [torch.zeros(1, *shape) for shape in grid]
        self._function(*inputs)
        started = time.perf_counter()
        self._function(*inputs)
        if time.perf_counter() - started > _LONG_SECONDS:
            return
        replays = {}
        try:
            for exponent in range(self._at_once(grid[0]).bit_length()):
                size = 1 << exponent
                examples = [torch.zeros(size, *shape) for shape in grid]
                replays[size] = Replay(self._function, examples)
        except (Unrecordable, RuntimeError, AttributeError, TypeError) as error:
            # PyTorch may do away with TorchScript; call by call everything is as right, and slower.
            logger.info("%s runs call by call on %s: %s", self._name, list(grid[0]), error)
        else:
            known.replays = replays


class _Recordings:
    """Of one grid."""

    def __init__(self) -> None:
        self.runs = 0
        self.tried = False
        self.replays: dict[int, Replay] = {}
        """By size of batch; all or none."""


def _powers_of_two(count: int, most: int) -> Iterator[int]:
    """The fewest that are `count` in all, none larger than `most`."""
    size = 1 << (most.bit_length() - 1)
    while count:
        if size <= count:
            yield size
            count -= size
        else:
            size >>= 1


def _joined(parts: list[Tensors]) -> Tensors:
    if len(parts) == 1:
        return parts[0]
    return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))
