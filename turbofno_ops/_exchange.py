"""Exchanges of whole parts of a field between slabs: another cut axis, another arrangement of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from turbofno_ops._modes import Rows
from turbofno_ops._slab import Slab

_IN_FLIGHT = 2
"""Pieces whose exchange may be under way while the next one is transformed."""
ROW_AXIS = 2
"""Axis of the rows in [batch, channels, *grid]."""


def _as_it_is(piece: torch.Tensor) -> torch.Tensor:
    return piece


def recut(
    slab: Slab,
    x: torch.Tensor,
    *,
    cut: int,
    to: int,
    points: int,
    before: Callable[[torch.Tensor], torch.Tensor] = _as_it_is,
    pieces: int = 1,
    inner: int | None = None,
    scale: float = 1.0,
) -> torch.Tensor:
    """Return a tensor that is cut along axis `cut` cut along axis `to` instead: whole there, this process's rows here.

    Pieces of `cut` are exchanged one after the other, each while the next one is transformed by `before`.

    Args:
        slab: The processes.
        x: This process's rows of axis `cut`, the whole of axis `to`.
        cut: The axis that is cut; not negative.
        to: The axis to cut; not negative.
        points: Length of the whole axis `cut`.
        before: Function of the elements along `cut`, each by itself. It may change the lengths of other axes.
        pieces: As many exchanges; the same number on all processes.
        inner: Innermost axis in memory of what is exchanged: where `before` leaves it there, nothing is transposed. By
            default the last axis.
        scale: A factor, multiplied while a piece is packed.

    Returns:
        The tensor, with axis `cut` outermost and axis `inner` innermost in memory.
    """
    inner = x.ndim - 1 if inner is None else inner
    # the cut axis in front, so that what each process sends is one piece of memory in the result
    order = sorted(range(x.ndim), key=lambda axis: (axis != cut, axis == inner, axis))
    at = order.index(to)
    rows = slab.all_rows(points)
    own, result = rows[slab.rank], None
    under_way: deque[tuple[list[dist.Work], list[torch.Tensor]]] = deque()
    for number in range(pieces):
        # from here on the stream waits for older pieces, and their memory is free again
        while len(under_way) >= _IN_FLIGHT:
            _finish(under_way.popleft())
        spans = [_piece(of, number, pieces) for of in rows]
        mine = spans[slab.rank]
        part = before(x.narrow(cut, mine.start - own.first, len(mine))).permute(order)
        columns = slab.all_rows(part.shape[at])
        if result is None:
            shape = list(part.shape)
            shape[0], shape[at] = points, columns[slab.rank].count
            result = part.new_empty(shape)
        receives = [result[span.start : span.stop] for span in spans]
        sends = []
        for peer, of in enumerate(columns):
            given = part.narrow(at, of.first, of.count)
            # what this process keeps goes to its place at once
            packed = receives[peer] if peer == slab.rank else part.new_empty(given.shape)
            sends.append(torch.mul(given, scale, out=packed))
        under_way.append((slab.swap(sends, receives), sends))
        del part
    while under_way:
        _finish(under_way.popleft())
    assert result is not None
    return result.permute([order.index(axis) for axis in range(x.ndim)])


def _piece(rows: Rows, number: int, pieces: int) -> range:
    """Return one of `pieces` nearly equal pieces of some rows."""
    first, stop = (rows.first + rows.count * i // pieces for i in (number, number + 1))
    return range(first, stop)


def _finish(exchange: tuple[list[dist.Work], list[torch.Tensor]]) -> None:
    for work in exchange[0]:
        work.wait()


def rearrange_rows(
    slab: Slab, x: torch.Tensor, points: int, sources: Sequence[int]
) -> torch.Tensor:
    """Return the slab of a field whose row i is row sources[i] of x, or zero where that is -1.

    Args:
        slab: The processes.
        x: [batch, channels, rows, ..], a slab of a field of `points` rows.
        points: Rows of the whole field.
        sources: A row for each row of the result.
    """
    given, wanted = slab.all_rows(points), slab.all_rows(len(sources))
    own = given[slab.rank]

    def runs(owner: int, reader: int) -> list[tuple[int, int, int]]:
        return list(_runs(given[owner], wanted[reader], sources))

    def shaped(count: int) -> tuple[int, ...]:
        return (*x.shape[:ROW_AXIS], count, *x.shape[ROW_AXIS + 1 :])

    sends, receives = [], []
    for peer in range(slab.count):
        parts = [x.narrow(ROW_AXIS, row - own.first, n) for row, _, n in runs(slab.rank, peer)]
        sends.append(torch.cat([x.new_empty(shaped(0)), *parts], dim=ROW_AXIS))
        receives.append(x.new_empty(shaped(sum(n for _, _, n in runs(peer, slab.rank)))))
    works = slab.swap(sends, receives)
    receives[slab.rank] = sends[slab.rank]
    for work in works:
        work.wait()
    result = x.new_zeros(shaped(wanted[slab.rank].count))
    for peer, received in enumerate(receives):
        done = 0
        for _, place, n in runs(peer, slab.rank):
            result.narrow(ROW_AXIS, place, n).copy_(received.narrow(ROW_AXIS, done, n))
            done += n
    return result


def _runs(owned: Rows, wanted: Rows, sources: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield what a slab `wanted` takes from one that has the rows `owned`: first row, place in the slab, count of rows."""
    taken = [
        (sources[row], row - wanted.first)
        for row in range(wanted.first, wanted.stop)
        if owned.first <= sources[row] < owned.stop
    ]
    breaks = [
        i + 1
        for i, ((a, at_a), (b, at_b)) in enumerate(pairwise(taken))
        if (b, at_b) != (a + 1, at_a + 1)
    ]
    for first, stop in pairwise([0, *breaks, len(taken)]):
        if stop > first:
            yield (*taken[first], stop - first)
