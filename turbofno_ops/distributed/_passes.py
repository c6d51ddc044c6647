"""Transforms of a slab's whole axes on one card, packed for an exchange: by the CUDA kernels, or by torch.fft."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from turbofno_ops._exchange import Pack
from turbofno_ops._modes import Rows
from turbofno_ops._support import gpu_refusal
from turbofno_ops.fft import _kernels, _plan, _torch
from turbofno_ops.fft._rule import kernels_are_faster_at_strides
from turbofno_ops.fft._transform import Transform, real_of

Begin = Callable[[Transform, torch.Tensor, int], Pack]
"""Begins a transform of a tensor, whose columns are then written: along the last argument. No axes: a copy."""

_MOST_LINES = 1024
"""Kinds of lines whose choice is kept."""
_ORDER = ("real_to_complex", "complex", "complex_to_real")


def passes_of(x: torch.Tensor, transform: Transform) -> Begin:
    """Return the function that begins parts of the transform of a field, whose axes are dimensions of x.

    The kernels run them if they support every axis and are not slower, else torch.fft. All processes choose alike, from
    what they all know.
    """
    on_kernels = real_of(x.dtype) == torch.float32 and _has_kernels(x.device)
    lines = [transform.along([axis.dim]) for axis in transform.axes]
    return _by_kernels if on_kernels and all(map(_runs_on_kernels, lines)) else _by_torch


def _has_kernels(device: torch.device) -> bool:
    return device.type == "cuda" and gpu_refusal(device) is None


@lru_cache(_MOST_LINES)
def _runs_on_kernels(line: Transform) -> bool:
    (axis,) = line.axes
    dtype = torch.float32 if line.kind == "real_to_complex" else torch.complex64
    # neighbouring lines
    example = torch.empty(axis.given, 2, dtype=dtype, device="meta")
    return (
        kernels_are_faster_at_strides(line)
        and _plan.refusal(example, line._replace(axes=(axis._replace(dim=0),))) is None
    )


def _by_kernels(transform: Transform, x: torch.Tensor, to: int) -> Pack:
    """One pass over memory an axis. The last one packs, unless it is along the columns."""
    # an axis of the columns first, so that another one is the last
    passes = sorted(transform.passes, key=lambda of: (_ORDER.index(of[1]), of[0].dim != to))
    dims = [axis.dim for axis, _ in passes]
    last = transform.along([dims.pop()]) if dims and dims[-1] != to else None
    y = _kernels.run(x, transform.along(dims)) if dims else x

    def pack(columns: Rows, out: torch.Tensor) -> None:
        given = columns.of(y, to)
        if last is None:
            out.copy_(given)
        else:
            _kernels.run(given, last, out)

    return pack


def _by_torch(transform: Transform, x: torch.Tensor, to: int) -> Pack:
    """All axes in one call, without the factor, which costs nothing where columns are copied."""
    y = _torch.run(x, transform._replace(scaling="none")) if transform.axes else x

    def pack(columns: Rows, out: torch.Tensor) -> None:
        torch.mul(columns.of(y, to), transform.scale(transform.total), out=out)

    return pack
