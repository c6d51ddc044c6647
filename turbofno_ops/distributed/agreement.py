"""What the processes of a group compare at their first call of a kind, so that a difference is an error and no wrong field."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from turbofno_ops._slab import Slab

_MOST_KINDS = 4096
"""Kinds of calls that a group remembers."""
_known: WeakKeyDictionary[dist.ProcessGroup, set[tuple[object, ...]]] = WeakKeyDictionary()

_SLOTS = 16
"""Numbers that each process sends, whatever it calls: or two that call different functions would not meet."""
_PIECE = 2**22
"""Elements of a weight that are added up at once."""
_SAME = 1e-5
"""Relative difference of two sums of weights that are the same but for rounding."""


def agree(
    op: str,
    slab: Slab,
    device: torch.device,
    check: Callable[[], object],
    *,
    sums: Callable[[], Sequence[float]] = tuple,
    of: object = None,
    **call: object,
) -> None:
    """Run `check`, and compare a group's first call of a kind: all processes raise if they differ, or if one's check fails.

    Later calls of a kind are only checked, because the comparison takes collectives and waits for the device. So are calls in
    a CUDA graph's capture.

    Args:
        op: Begins the messages of errors.
        slab: This process in its group.
        device: The device of the group's collectives.
        check: Raises an error if this process's arguments are wrong.
        sums: Returns `weight_sums`.
        of: What is called, if that is not told by `op`.
        call: What must be the same in all processes.

    Raises:
        Exception: From `check`.
        ValueError: `check` failed in another process, or the processes differ.
    """
    known, kind = _known.setdefault(slab.group, set()), (op, of, *call.items())
    if kind in known or _captures(device):
        check()
        return
    try:
        check()
        own_sums = sums()
    except Exception:
        # else the others would wait
        _gathered(slab, device, [1], _SLOTS)
        raise
    numbers = [0, _number(f"{op} {[*call]}"), *map(_number, call.values())]
    failed, *given = zip(*_gathered(slab, device, numbers, _SLOTS), strict=True)
    if any(failed):
        raise ValueError(f"{op}: rank {failed.index(1)} of {slab.count} failed; its error says why")
    differing = [
        name for name, one in zip(("function", *call), given, strict=False) if len({*one}) > 1
    ]
    if differing:
        own = ", ".join(f"{name} {value}" for name, value in call.items())
        raise ValueError(
            f"{op}: all processes of the group must call it alike, and they differ in {', '.join(differing)}; rank "
            f"{slab.rank} of {slab.count} gives {own}"
        )
    first, *others = _gathered(slab, device, own_sums) if own_sums else [own_sums]
    for rank, found in enumerate(others, 1):
        if not all(map(_same, first, found)):
            raise ValueError(
                f"{op}: the weights of rank {rank} are not those of rank 0; load the same ones in all processes"
            )
    if len(known) >= _MOST_KINDS:
        known.clear()
    known.add(kind)


def structure(value: object) -> str:
    """Return a digest of types, numbers, dtypes and shapes: what tells two networks apart but for their weights."""
    return f"{_number([_outline(one) for one in _parts(value)]):08x}"


def weight_sums(*values: object) -> list[float]:
    """Return the sum of absolute values of each tensor in nested dataclasses and sequences."""
    tensors = [one for value in values for one in _parts(value) if isinstance(one, torch.Tensor)]
    return [_sum(one.detach()) for one in tensors]


def _sum(weight: torch.Tensor) -> float:
    # in pieces, because each is copied in double precision
    dtype = torch.promote_types(weight.dtype, torch.float64)
    pieces = weight.reshape(-1).split(_PIECE)
    return sum(float(torch.linalg.vector_norm(piece, 1, dtype=dtype)) for piece in pieces)


def _parts(value: object) -> Iterator[object]:
    if is_dataclass(value):
        yield type(value)
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, list | tuple):
        for one in value:
            yield from _parts(one)
    else:
        yield value


def _outline(part: object) -> object:
    if isinstance(part, torch.Tensor):
        return part.dtype, tuple(part.shape)
    return getattr(part, "__qualname__", "function") if callable(part) else part


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME) or (math.isnan(one) and math.isnan(other))


def _number(value: object) -> int:
    return zlib.crc32(str(value).encode())


def _gathered(
    slab: Slab, device: torch.device, numbers: Sequence[float], slots: int = 0
) -> list[list[float]]:
    """Return the numbers of all processes by rank, each followed by zeros to `slots`. Waits for all of them."""
    row = [*numbers, *[0] * (slots - len(numbers))]
    own = torch.tensor([row], dtype=torch.float64, device=device)
    found: list[list[float]] = slab.gather(own).tolist()
    return found


def _captures(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
