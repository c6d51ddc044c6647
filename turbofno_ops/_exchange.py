"""Exchanges of whole parts of a field between slabs: another cut axis, another arrangement of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import torch

from turbofno_ops._copy_engines import copy_engines
from turbofno_ops._modes import Rows
from turbofno_ops._slab import Slab
from turbofno_ops.description import Size

_IN_FLIGHT = 2
"""Pieces whose exchange may be under way while the next one is transformed."""
LATE_SHARE = 1 / 4
"""Share of the columns that is exchanged last, while the others are transformed."""
ROW_AXIS = 2
"""Axis of the rows in [batch, channels, *grid]."""

Pack = Callable[[Rows, torch.Tensor], None]
"""Writes columns to a view."""


class _Arrival(Protocol):
    def wait(self) -> object:
        """Let the current stream wait until this process has sent its parts and has those of the others."""


class _Transport(Protocol):
    """How parts reach the tensors of the other processes."""

    def tensors(self, shapes: Sequence[Sequence[Size]], dtype: torch.dtype) -> list[torch.Tensor]:
        """Return this process's tensors; `shapes` are those of each process."""

    def swap(
        self, which: int, sends: Sequence[torch.Tensor], spans: Sequence[range]
    ) -> Sequence[_Arrival]:
        """Begin to send a part to each process: to the elements `spans` of this process, of its tensor number `which`."""

    def end(self) -> None:
        """Let the tensors go, once the current stream has used them."""


class _Messages:
    """Parts are messages of the group's backend, NCCL or gloo, to tensors that the caller may keep."""

    def __init__(self, slab: Slab, x: torch.Tensor) -> None:
        self._slab, self._x = slab, x
        self._tensors: list[torch.Tensor] = []

    def tensors(self, shapes: Sequence[Sequence[Size]], dtype: torch.dtype) -> list[torch.Tensor]:
        own = shapes[self._slab.rank]
        self._tensors = [self._x.new_empty(shape, dtype=dtype) for shape in own]
        return self._tensors

    def swap(
        self, which: int, sends: Sequence[torch.Tensor], spans: Sequence[range]
    ) -> Sequence[_Arrival]:
        whole = self._tensors[which]
        return self._slab.swap(sends, [whole[span.start : span.stop] for span in spans])

    def end(self) -> None:
        self._tensors = []


_Exchange = tuple[Sequence[_Arrival], list[torch.Tensor]]
"""An exchange that is under way, and what is sent, whose memory must live until then."""


def recut(slab: Slab, x: torch.Tensor, *, cut: int, to: int, points: int) -> torch.Tensor:
    """Return a tensor that is cut along axis `cut` cut along axis `to` instead: whole there, this process's rows here.

    Args:
        slab: The processes.
        x: This process's rows of axis `cut`, the whole of axis `to`.
        cut: The axis that is cut; not negative.
        to: The axis to cut; not negative.
        points: Length of the whole axis `cut`.

    Returns:
        The tensor, with axis `cut` outermost in memory.
    """

    def copied(piece: torch.Tensor) -> Pack:
        def pack(columns: Rows, packed: torch.Tensor) -> None:
            packed.copy_(columns.of(piece, to))

        return pack

    ((_, whole),) = exchanged(
        slab, x, cut=cut, to=to, points=points, shape=x.shape, dtype=x.dtype, begin=copied
    )
    return whole


def exchanged(
    slab: Slab,
    x: torch.Tensor,
    *,
    cut: int,
    to: int,
    points: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    begin: Callable[[torch.Tensor], Pack],
    pieces: int = 1,
    late: bool = False,
    kept: bool = True,
) -> Generator[tuple[int, torch.Tensor]]:
    """Exchange a function of a tensor as `recut` does, and yield parts of the result as they arrive.

    Pieces of `cut` are exchanged one after the other. While one travels, this process packs its own and the late columns of it,
    and begins the next one.

    Args:
        slab: The processes.
        x: As in `recut`.
        cut: As in `recut`.
        to: As in `recut`.
        points: As in `recut`.
        shape: Shape of the function of x.
        dtype: Its dtype.
        begin: Begins the function of a piece of x, of the elements along `cut` each by itself, and returns what packs columns
            `to` of it.
        pieces: As many exchanges; the same number on all processes.
        late: True to exchange a share of the columns after the pieces, and yield the others before it has arrived.
        kept: False if the parts are not used any more when the iterator ends. Then they may lie in memory that the next
            exchange uses again.

    Yields:
        The first column of a part, counted from this process's first one, and the part: axis `cut` is outermost in memory. The
        iterator must be closed if not all are taken.
    """
    rows, rank = slab.all_rows(points), slab.rank
    own, columns = rows[rank], [_parts(of, late) for of in slab.all_rows(shape[to])]

    def begun(number: int) -> Pack | None:
        span = _piece(own, number, pieces)
        piece = x.narrow(cut, span.start - own.first, len(span))
        return begin(piece) if piece.numel() else None

    # so that a GPU computes while the host prepares the exchange
    pack = begun(0)

    def sizes(count: int, width: int) -> Size:
        whole = list(shape)
        whole[to] = width
        del whole[cut]
        return (count, *whole)

    def new(count: int, width: int) -> torch.Tensor:
        return x.new_empty(sizes(count, width), dtype=dtype)

    shapes = [[sizes(points, part.count) for part in parts] for parts in columns]
    engines = None if kept else copy_engines(slab, shapes, dtype, x.device)
    transport: _Transport = engines or _Messages(slab, x)
    whole = transport.tensors(shapes, dtype)

    def new_sends(which: int, span: range) -> list[torch.Tensor]:
        # what this process keeps goes to its place at once
        return [
            whole[which][span.start : span.stop]
            if peer == rank
            else new(len(span), parts[which].count)
            for peer, parts in enumerate(columns)
        ]

    late_sends = new_sends(1, range(own.first, own.stop)) if late else []
    under_way: deque[_Exchange] = deque()

    def send(number: int, pack_piece: Pack | None) -> None:
        spans = [_piece(of, number, pieces) for of in rows]
        sends = new_sends(0, spans[rank])
        first, stop = spans[rank].start - own.first, spans[rank].stop - own.first
        packed = sends, [of[first:stop] for of in late_sends]

        def write(which: int, peer: int) -> None:
            view = packed[which][peer].movedim(0, cut)
            if pack_piece is not None and view.numel():
                pack_piece(columns[peer][which], view)

        for peer in range(slab.count):
            if peer != rank:
                write(0, peer)
        under_way.append((transport.swap(0, sends, spans), sends))
        # no other process waits for these yet
        write(0, rank)
        for peer in range(slab.count if late else 0):
            write(1, peer)

    try:
        for number in range(pieces):
            # from here on the stream waits for older pieces, and their memory is free again
            while len(under_way) >= _IN_FLIGHT:
                _finish(under_way.popleft())
            send(number, pack)
            pack = None  # lets its memory go before the next one begins
            pack = begun(number + 1) if number + 1 < pieces else None
        if late:
            spans = [range(of.first, of.stop) for of in rows]
            under_way.append((transport.swap(1, late_sends, spans), late_sends))
        first = 0
        for which, part in enumerate(columns[rank]):
            # the late columns may still be under way while the others are used
            left = 1 if late and which == 0 else 0
            while len(under_way) > left:
                _finish(under_way.popleft())
            yield first, whole[which].movedim(0, cut)
            first += part.count
    finally:
        # what is under way uses memory, also after an error
        try:
            while under_way:
                _finish(under_way.popleft())
        finally:
            transport.end()


def _parts(columns: Rows, late: bool) -> list[Rows]:
    """Return the columns of a process that are exchanged in pieces and, with `late`, those after them."""
    if not late:
        return [columns]
    early = columns.count - int(columns.count * LATE_SHARE)
    first, points = columns.first, columns.points
    return [Rows(first, early, points), Rows(first + early, columns.count - early, points)]


def _piece(rows: Rows, number: int, pieces: int) -> range:
    """Return one of `pieces` nearly equal pieces of some rows."""
    first, stop = (rows.first + rows.count * i // pieces for i in (number, number + 1))
    return range(first, stop)


def _finish(exchange: _Exchange) -> None:
    for arrival in exchange[0]:
        arrival.wait()


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
