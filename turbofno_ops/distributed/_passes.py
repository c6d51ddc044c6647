"""Transforms of a slab's whole axes on one card: by the CUDA kernels, or by torch.fft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial

import torch

from turbofno_ops._exchange import Pack
from turbofno_ops._support import gpu_refusal
from turbofno_ops.fft import _kernels, _plan
from turbofno_ops.fft._rule import kernels_are_faster_at_strides
from turbofno_ops.fft._transform import Axis, Transform, real_of


class Passes(ABC):
    """Transforms of some axes of a part of a slab, listed in the order of execution."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform
        self._axes = {axis.dim: axis for axis in transform.axes}
        self._last = transform.axes[-1].dim

    def shape(self, given: Sequence[int], dims: Sequence[int]) -> list[int]:
        """Return the shape of a transform of some dimensions."""
        shape = list(given)
        for dim in dims:
            shape[dim] = self._axes[dim].kept
        return shape

    def dtype(self, given: torch.dtype, dims: Sequence[int]) -> torch.dtype:
        """Return the dtype of a transform of some dimensions."""
        return self._transform.dtype(given) if self._last in dims else given

    @abstractmethod
    def split(self, dims: Sequence[int], to: int) -> tuple[list[int], list[int]]:
        """Split the dimensions before an exchange: those before packing, and those that packing can transform.

        Packing sees parts of dimension `to`, which is whole before.
        """

    @abstractmethod
    def run(self, x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        """Return the transform of some dimensions, or x itself if there are none."""

    @abstractmethod
    def into(self, dims: Sequence[int], x: torch.Tensor, out: torch.Tensor) -> None:
        """Write the transform of some dimensions, or a copy, to a view."""

    @abstractmethod
    def packing(self, dims: Sequence[int]) -> Pack:
        """Return the function that packs for the next exchange, and transforms some dimensions."""


def passes_of(x: torch.Tensor, transform: Transform) -> Passes:
    """Return the passes of the transform of a whole field, whose axes are dimensions of x.

    The kernels run them if they support every axis and are not slower, else torch.fft. All processes choose alike, from
    what they all know.
    """
    lines = [_line(transform, axis) for axis in transform.axes]
    on_kernels = real_of(x.dtype) == torch.float32 and _has_kernels(x.device)
    if on_kernels and all(_runs_on_kernels(line) for line in lines if not _is_copy(line)):
        return _OnKernels(transform)
    return _InTorch(transform)


def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and gpu_refusal(device) is None


def _runs_on_kernels(line: Transform) -> bool:
    if not kernels_are_faster_at_strides(line):
        return False
    given = line.axes[0].given
    dtype = torch.float32 if line.kind == "real_to_complex" else torch.complex64
    # neighbouring lines
    example = torch.empty(given, 2, dtype=dtype, device="meta")
    return _plan.refusal(example, line._replace(axes=(line.axes[0]._replace(dim=0),))) is None


def _line(transform: Transform, axis: Axis) -> Transform:
    """Return the transform of one axis, with its share of the factor."""
    kind = transform.kind if axis is transform.axes[-1] else "complex"
    return Transform(kind, transform.inverse, (axis,), transform.scaling)


def _is_copy(line: Transform) -> bool:
    return line.kind == "complex" and line.axes[0].points == 1


class _OnKernels(Passes):
    """One pass over memory an axis, at any strides, with the axis's factor."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform)
        lines = {axis.dim: _line(transform, axis) for axis in transform.axes}
        self._lines = {dim: line for dim, line in lines.items() if not _is_copy(line)}

    def split(self, dims: Sequence[int], to: int) -> tuple[list[int], list[int]]:
        dims = self._transformed(dims)
        return (dims[:-1], dims[-1:]) if dims and dims[-1] != to else (dims, [])

    def run(self, x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        for dim in self._transformed(dims):
            x = _kernels.run(x, self._lines[dim])
        return x

    def into(self, dims: Sequence[int], x: torch.Tensor, out: torch.Tensor) -> None:
        dims = self._transformed(dims)
        if dims:
            _kernels.run(self.run(x, dims[:-1]), self._lines[dims[-1]], out)
        else:
            out.copy_(x)

    def packing(self, dims: Sequence[int]) -> Pack:
        return partial(self.into, dims)

    def _transformed(self, dims: Sequence[int]) -> list[int]:
        return [dim for dim in dims if dim in self._lines]


class _InTorch(Passes):
    """All axes in one call of torch.fft. The whole factor is multiplied while the field is packed: there it costs nothing."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform)
        self._scale = transform.scale(transform.total)

    def split(self, dims: Sequence[int], to: int) -> tuple[list[int], list[int]]:
        del to
        return list(dims), []

    def run(self, x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        if not dims:
            return x
        dims = sorted(dims)
        y: torch.Tensor
        if self._last not in dims or self._transform.kind == "complex":
            inverse = self._transform.inverse
            fft, norm = (torch.fft.ifftn, "forward") if inverse else (torch.fft.fftn, "backward")
            y = fft(x, dim=dims, norm=norm)
        elif self._transform.kind == "real_to_complex":
            y = torch.fft.rfftn(x, dim=dims)
        else:
            sizes = [self._axes[dim].points for dim in dims]
            y = torch.fft.irfftn(x, s=sizes, dim=dims, norm="forward")
        return y

    def into(self, dims: Sequence[int], x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(self.run(x, dims))

    def packing(self, dims: Sequence[int]) -> Pack:
        scale, self._scale = self._scale, 1.0
        return lambda given, packed: torch.mul(self.run(given, dims), scale, out=packed)
