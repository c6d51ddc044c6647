"""Measured rules: which transforms torch.fft does as fast as the kernels, and which kernel an axis takes first.

`python -m benchmarks.gpu fft` measures them.
"""

from __future__ import annotations

import torch

from turbofno_ops.fft._transform import Transform, real_of

LEAST_VALUES = 2**21
"""From so many values on a transform called from Python takes longer on a GPU than its call on the host, which torch.fft
does faster."""
KERNELS = ("mixed_radix_fft", "dense_dft")


def kernels(points: int, kind: int, precision: int) -> tuple[str, ...]:
    """Return the kernels in the order in which an axis of `points` takes them; the first that supports it runs."""
    del points, kind, precision
    return KERNELS


def torch_is_as_fast(transform: Transform, dtype: torch.dtype) -> str | None:
    """Return the reason why torch.fft is preferred to kernels that support the transform, or None."""
    if real_of(dtype) != torch.float32 or transform.kind != "complex" or len(transform.axes) > 1:
        return None
    (axis,) = transform.axes
    power_of_two = axis.points & (axis.points - 1) == 0
    if power_of_two and axis.given == axis.kept == axis.points:
        return "torch.fft transforms one complex axis of a power of two as fast"
    return None
