"""Transforms of a slab's whole axes on one card, packed for an exchange: by the CUDA kernels, or by torch.fft."""

from __future__ import annotations

from collections.abc import Callable

import torch

from turbofno_ops._exchange import Targets
from turbofno_ops._support import gpu_refusal
from turbofno_ops.fft import _kernels, _plan, _torch
from turbofno_ops.fft._rule import kernels_are_faster_at_strides
from turbofno_ops.fft._transform import Transform, real_of

Write = Callable[[Transform, torch.Tensor, Targets, int], None]
"""Writes columns of a transform of a tensor; the last argument is their dimension. No axes: a copy."""

_ORDER = ("real_to_complex", "complex", "complex_to_real")


def writer_of(x: torch.Tensor, transform: Transform) -> Write:
    """Return the function that writes parts of the transform of a field, whose axes are dimensions of x.

    The kernels run them if they support every axis and are not slower, else torch.fft. All processes choose alike, from
    what they all know.
    """
    on_kernels = real_of(x.dtype) == torch.float32 and _has_kernels(x.device)
    lines = [transform.along([axis.dim]) for axis in transform.axes]
    return _by_kernels if on_kernels and all(map(_runs_on_kernels, lines)) else _by_torch


def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and gpu_refusal(device) is None


def _runs_on_kernels(line: Transform) -> bool:
    (axis,) = line.axes
    dtype = torch.float32 if line.kind == "real_to_complex" else torch.complex64
    # neighbouring lines
    example = torch.empty(axis.given, 2, dtype=dtype, device="meta")
    return (
        kernels_are_faster_at_strides(line)
        and _plan.refusal(example, line._replace(axes=(axis._replace(dim=0),))) is None
    )


def _by_kernels(transform: Transform, x: torch.Tensor, targets: Targets, to: int) -> None:
    """One pass over memory an axis. The last one packs, unless it is along the columns."""
    # an axis of the columns first, so that another one is the last
    passes = sorted(transform.passes, key=lambda of: (_ORDER.index(of[1]), of[0].dim != to))
    dims = [axis.dim for axis, _ in passes]
    packing = [dims.pop()] if dims and dims[-1] != to else []
    if dims:
        x = _kernels.run(x, transform.along(dims))
    for columns, out in targets:
        given = columns.of(x, to)
        if packing:
            _kernels.run(given, transform.along(packing), out)
        else:
            out.copy_(given)


def _by_torch(transform: Transform, x: torch.Tensor, targets: Targets, to: int) -> None:
    """All axes in one call, without the factor, which costs nothing where columns are copied."""
    y = _torch.run(x, transform._replace(scaling="none")) if transform.axes else x
    for columns, out in targets:
        torch.mul(columns.of(y, to), transform.scale(transform.total), out=out)
