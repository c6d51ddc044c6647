"""Transforms of a slab's whole axes on one card: by the CUDA kernels, or by torch.fft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from turbofno_ops._exchange import Targets
from turbofno_ops._modes import Rows
from turbofno_ops._support import gpu_refusal
from turbofno_ops.fft import _kernels, _plan
from turbofno_ops.fft._rule import kernels_are_faster_at_strides
from turbofno_ops.fft._transform import Axis, Transform, new_result, real_of


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
    def write(
        self,
        dims: Sequence[int],
        x: torch.Tensor,
        targets: Targets,
        *,
        to: int | None,
        parts: int,
        nbytes: int,
        last: bool,
    ) -> None:
        """Write the transform of some dimensions of x.

        Args:
            dims: The dimensions.
            x: The tensor.
            targets: Columns of the result, and where they are written.
            to: The dimension of columns. None: all are written to the only target.
            parts: Another dimension, not of `dims`, that is transformed in parts.
            nbytes: Of what is between the transforms of a part, about.
            last: True for the last step of a transform of slabs.
        """


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

    def write(
        self,
        dims: Sequence[int],
        x: torch.Tensor,
        targets: Targets,
        *,
        to: int | None,
        parts: int,
        nbytes: int,
        last: bool,
    ) -> None:
        del last
        lines = [self._lines[dim] for dim in dims if dim in self._lines]
        # the last transform writes to the targets, unless it is along columns: then these are copied
        packing = lines.pop() if lines and lines[-1].axes[0].dim != to else None
        with torch.cuda.device(x.device):
            step = _at_once(x, parts, nbytes // max(1, len(lines)))
            # the last part may be smaller
            rest = x.shape[parts] % step
            for first, count, most in (
                (0, x.shape[parts] - rest, step),
                (x.shape[parts] - rest, rest, rest),
            ):
                if count:
                    given = x.narrow(parts, first, count)
                    into = [(rows, out.narrow(parts, first, count)) for rows, out in targets]
                    _write_parts(lines, packing, given, into, to, parts, most)


def _write_parts(
    lines: Sequence[Transform],
    packing: Transform | None,
    x: torch.Tensor,
    targets: Targets,
    to: int | None,
    parts: int,
    step: int,
) -> None:
    """Write equal parts, of `step` elements of the dimension `parts` each."""
    given, apart = x.narrow(parts, 0, step), step * x.stride(parts)
    calls: list[Callable[[int], object]] = []
    for line in lines:
        # one for all parts, which therefore stays in the cache
        between = new_result(given, line)
        calls.append(_kernels.Repeated(given, line, between, (apart, 0)))
        given, apart = between, 0
    for rows, out in targets:
        columns, place = _columns(given, to, rows), out.narrow(parts, 0, step)
        distances = apart, step * out.stride(parts)
        calls.append(
            _copied(columns, place, distances)
            if packing is None
            else _kernels.Repeated(columns, packing, place, distances)
        )
    for number in range(x.shape[parts] // step):
        for call in calls:
            call(number)


def _copied(x: torch.Tensor, out: torch.Tensor, apart: tuple[int, int]) -> Callable[[int], object]:
    return lambda number: _kernels.part(out, number * apart[1]).copy_(
        _kernels.part(x, number * apart[0])
    )


def _columns(x: torch.Tensor, dim: int | None, rows: Rows) -> torch.Tensor:
    return x if dim is None else x.narrow(dim, rows.first, rows.count)


def _at_once(x: torch.Tensor, dim: int, nbytes: int) -> int:
    """Return how many elements of a dimension have so many bytes: at least 1, at most all."""
    one = x.nbytes // x.shape[dim]
    return min(max(1, nbytes // one), x.shape[dim])


class _InTorch(Passes):
    """All axes in one call of torch.fft. The last step multiplies by the whole factor while it writes."""

    def __init__(self, transform: Transform) -> None:
        super().__init__(transform)
        self._scale = transform.scale(transform.total)

    def write(
        self,
        dims: Sequence[int],
        x: torch.Tensor,
        targets: Targets,
        *,
        to: int | None,
        parts: int,
        nbytes: int,
        last: bool,
    ) -> None:
        scale, step = self._scale if last else 1.0, _at_once(x, parts, nbytes)
        for first in range(0, x.shape[parts], step):
            count = min(step, x.shape[parts] - first)
            y = self._run(x.narrow(parts, first, count), sorted(dims))
            for rows, out in targets:
                torch.mul(_columns(y, to, rows), scale, out=out.narrow(parts, first, count))

    def _run(self, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        y: torch.Tensor
        if not dims:
            y = x
        elif self._last not in dims or self._transform.kind == "complex":
            inverse = self._transform.inverse
            fft, norm = (torch.fft.ifftn, "forward") if inverse else (torch.fft.fftn, "backward")
            y = fft(x, dim=dims, norm=norm)
        elif self._transform.kind == "real_to_complex":
            y = torch.fft.rfftn(x, dim=dims)
        else:
            sizes = [self._axes[dim].points for dim in dims]
            y = torch.fft.irfftn(x, s=sizes, dim=dims, norm="forward")
        return y
