"""Description of a discrete Fourier transform over axes of a tensor: what is given, what is computed, and its adjoint."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

KINDS = ("complex", "real_to_complex", "complex_to_real")
"""In the order of `turbofno_transform_kind`."""
SCALINGS = ("none", "root", "whole")
"""The result is divided by 1, by the root of the number of points, or by their number."""

_ADJOINT = dict(zip(KINDS, (KINDS[0], KINDS[2], KINDS[1]), strict=True))
_EXPONENT = dict(zip(SCALINGS, (0.0, -0.5, -1.0), strict=True))
_COMPLEX_OF = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
_REAL_OF = {complex_dtype: real for real, complex_dtype in _COMPLEX_OF.items()}


class Axis(NamedTuple):
    """One transformed axis.

    Of the line of `points` values the tensor has the first `in_head` and, behind them, the last `in_tail`; all others are
    zero. The result has the first `out_head` and the last `out_tail`. A half spectrum has a head only.
    """

    dim: int
    points: int
    in_head: int
    in_tail: int
    out_head: int
    out_tail: int

    @property
    def given(self) -> int:
        """Values of the axis in the tensor."""
        return self.in_head + self.in_tail

    @property
    def kept(self) -> int:
        """Values of the axis in the result."""
        return self.out_head + self.out_tail

    @property
    def adjoint(self) -> Axis:
        """The axis of the adjoint transform."""
        return Axis(self.dim, self.points, self.out_head, self.out_tail, self.in_head, self.in_tail)


class Transform(NamedTuple):
    """A transform over `axes`; of a real kind, the last of them has the half spectrum.

    Attributes:
        kind: One of `KINDS`.
        inverse: True if the exponent is positive.
        axes: The transformed axes, in the order of the caller.
        scaling: One of `SCALINGS`.
    """

    kind: str
    inverse: bool
    axes: tuple[Axis, ...]
    scaling: str

    @property
    def passes(self) -> tuple[tuple[Axis, str], ...]:
        """Axes and their kinds in the order of execution: the last axis first, but last of an inverse."""
        found = [(axis, self.along([axis.dim]).kind) for axis in self.axes]
        return tuple(found if self.inverse else reversed(found))

    def along(self, dims: Collection[int]) -> Transform:
        """Return the transform along some of the dimensions, with their share of the factor."""
        axes = tuple(axis for axis in self.axes if axis.dim in dims)
        kind = self.kind if axes[-1:] == self.axes[-1:] else KINDS[0]
        return self._replace(kind=kind, axes=axes)

    @property
    def adjoint(self) -> Transform:
        """The adjoint, up to the column weights of a half spectrum."""
        axes = tuple(axis.adjoint for axis in self.axes)
        return Transform(_ADJOINT[self.kind], not self.inverse, axes, self.scaling)

    def scale(self, points: int) -> float:
        """Return the factor of the result for an axis of `points`."""
        return float(points ** _EXPONENT[self.scaling])

    @property
    def total(self) -> int:
        """Points of all axes together."""
        return math.prod(axis.points for axis in self.axes)

    def shape(self, given: Sequence[int]) -> list[int]:
        """Return the shape of the result."""
        shape = list(given)
        for axis in self.axes:
            shape[axis.dim] = axis.kept
        return shape

    def dtype(self, given: torch.dtype) -> torch.dtype:
        """Return the dtype of the result."""
        if self.kind == "complex":
            return given
        return complex_of(given) if self.kind == "real_to_complex" else real_of(given)


def complex_of(dtype: torch.dtype) -> torch.dtype:
    """Return the complex dtype of a precision."""
    return _COMPLEX_OF.get(dtype, dtype)


def real_of(dtype: torch.dtype) -> torch.dtype:
    """Return the real dtype of a precision."""
    return _REAL_OF.get(dtype, dtype)


def memory_order(x: torch.Tensor) -> list[int]:
    """Return the dimensions of x in the order of memory; their own order if x is contiguous or expanded.

    The result of a transform has the same order, so that the other axes of a field stored channels last stay neighbours.
    """
    own = list(range(x.ndim))
    strides = x.stride()
    if x.is_contiguous() or any(s == 0 and n > 1 for n, s in zip(x.shape, strides, strict=True)):
        return own
    return sorted(own, key=lambda dim: -strides[dim])


def new_result(x: torch.Tensor, transform: Transform) -> torch.Tensor:
    """Return an empty tensor for the result, with the dimensions of x in the same order of memory."""
    shape, dtype = transform.shape(x.shape), transform.dtype(x.dtype)
    if x.is_contiguous():
        return x.new_empty(shape, dtype=dtype)
    order = memory_order(x)
    return permuted_back(x.new_empty([shape[dim] for dim in order], dtype=dtype), order)


def permuted_back(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return y of which x is `y.permute(order)`."""
    return x.permute(sorted(range(len(order)), key=order.__getitem__))
