"""The order in which an exchange of pieces computes and sends, recorded without other processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
import torch

from turbofno_ops import _exchange
from turbofno_ops._exchange import Pack, exchanged
from turbofno_ops._modes import Rows
from turbofno_ops._slab import Slab
from turbofno_ops.distributed import fft
from turbofno_ops.fft._transform import Axis, Transform


class Recorded(Slab):
    """The first of two processes; the other one sends nothing."""

    events: list[str]

    def swap(self, sends: Sequence[torch.Tensor], receives: Sequence[torch.Tensor]) -> list[Any]:
        del receives
        self.events.append(f"send {sends[1].shape[1]} columns")
        return []


def test_what_others_wait_for_comes_first() -> None:
    events: list[str] = []
    slab = Recorded(cast("Any", None), 0, 2)
    object.__setattr__(slab, "events", events)

    def begin(piece: torch.Tensor) -> Pack:
        events.append(f"begin {piece.shape[0]} rows")

        def pack(columns: Rows, out: torch.Tensor) -> None:
            assert out.shape == (piece.shape[0], columns.count)
            events.append(f"pack {list(range(columns.first, columns.stop))}")

        return pack

    x = torch.zeros(4, 16)
    found = exchanged(
        slab,
        x,
        cut=0,
        to=1,
        points=8,
        shape=x.shape,
        dtype=x.dtype,
        begin=begin,
        pieces=2,
        late=True,
    )
    assert _exchange.LATE_SHARE == 1 / 4
    own, late = list(range(6)), [6, 7]
    other_own, other_late = list(range(8, 14)), [14, 15]
    piece = [
        "begin 2 rows",
        f"pack {other_own}",
        "send 6 columns",
        f"pack {own}",
        f"pack {late}",
        f"pack {other_late}",
    ]
    assert [first for first, _ in found] == [0, 6]
    assert events == [*piece, *piece, "send 2 columns"]


def test_the_first_piece_begins_before_memory_is_asked_for() -> None:
    slab = Recorded(cast("Any", None), 0, 2)
    begun: list[int] = []

    class Field(torch.Tensor):
        """A tensor whose memory may be asked for once something has begun."""

        def new_empty(self, *arguments: Any, **options: Any) -> Any:
            assert begun
            return torch.empty(*arguments, **options)

    def begin(piece: torch.Tensor) -> Pack:
        begun.append(len(piece))
        return lambda _columns, _out: None

    object.__setattr__(slab, "events", [])
    x = torch.zeros(4, 16).as_subclass(Field)
    list(exchanged(slab, x, cut=0, to=1, points=8, shape=x.shape, dtype=x.dtype, begin=begin))
    assert begun == [4]


def test_an_error_of_the_last_transform_ends_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    def arriving(*_: object, **__: object) -> Iterator[tuple[int, torch.Tensor]]:
        try:
            yield 0, torch.zeros(8, 2, dtype=torch.complex64)
        finally:
            ended.append(True)

    def begin(*_: object) -> Pack:
        raise RuntimeError("made to fail")

    monkeypatch.setattr(fft, "exchanged", arriving)
    here, there = (
        Transform("complex", False, (Axis(dim, 8, 8, 0, 8, 0),), "none") for dim in (1, 0)
    )
    x = torch.zeros(4, 8, dtype=torch.complex64)
    slab = Recorded(cast("Any", None), 0, 2)
    with pytest.raises(RuntimeError, match="made to fail") as failed:
        fft._exchanged(slab, begin, x, cut=0, to=1, points=8, here=here, there=there)
    # although the error keeps the frame that used it
    assert failed.tb is not None
    assert ended
