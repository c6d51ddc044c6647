"""Kept frequencies of a layer, rows of a grid axis, and column weights of the last axis of a real transform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rows:
    """Neighbouring rows of a grid axis: `count` from `first` on, of `points`."""

    first: int
    count: int
    points: int

    @property
    def stop(self) -> int:
        """The row after the last."""
        return self.first + self.count

    @classmethod
    def whole(cls, points: int) -> Rows:
        """Return all rows of an axis."""
        return cls(0, points, points)

    def of(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        """Return the view of these rows of a tensor that has all of them."""
        return x.narrow(axis, self.first, self.count)


def frequencies(count: int, *, both_signs: bool) -> range | list[int]:
    """Return the kept integer frequencies of one axis, in FFT order.

    With both signs: 0, 1, .., (count+1)//2 - 1, then -(count//2), .., -1. Otherwise 0 .. count-1.
    """
    if not both_signs:
        return range(count)
    return [*range((count + 1) // 2), *range(-(count // 2), 0)]


def column_weights(
    count: int, size: int, *, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the multiplicity [count] of each kept column of the last axis in the full spectrum of `size` real points.

    It is 2, for a column and its mirror image, but 1 for the DC column and, for even sizes, the Nyquist column.
    """
    weights = torch.full((count,), 2.0, dtype=dtype, device=device)
    # on a GPU an assignment would copy the number from the CPU, which a CUDA graph refuses
    weights[0].fill_(1.0)
    if size % 2 == 0 and count == size // 2 + 1:
        weights[-1].fill_(1.0)
    return weights


def axis_limits(size: Sequence[int]) -> tuple[int, ...]:
    """Return the most frequencies per axis that a grid holds: its size, but size//2 + 1 on the last axis."""
    *others, last = size
    # an axis without points holds none
    return (*others, min(last, last // 2 + 1))
