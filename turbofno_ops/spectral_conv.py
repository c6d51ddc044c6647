"""The spectral convolution of a Fourier neural operator, as a function."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from turbofno_ops import _library  # noqa: F401  registers torch.ops.turbofno
from turbofno_ops._validation import (
    check_backend,
    check_field_and_weight,
    check_modes_fit,
    check_precision,
)


def spectral_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    out_size: Sequence[int] | None = None,
    backend: str = "auto",
    precision: str = "fp32",
) -> torch.Tensor:
    """Multiply the kept Fourier coefficients of a field by one complex matrix a mode.

    `(F^-1 (R . F x))` of Li et al. 2020 (arXiv 2010.08895, equation 4), for real fields: a truncated
    real DFT over the grid, for every kept mode its own [c_in, c_out] matrix, and the inverse. The
    result is what `irfftn` gives for the spectrum so filled; in particular the imaginary part of the
    DC and Nyquist columns of the last axis is ignored. Coefficients are scaled by 1 / grid points,
    so weights mean the same on every grid; on one grid this equals every `norm=` of torch.fft.

    Args:
        x: Real field, float32 or float64 [batch, c_in, *grid], 1 to 3 grid axes of any size.
        weight: complex64 or complex128 [c_in, c_out, *modes], any strides. On every axis but the last,
            `K` modes are the frequencies 0 .. (K+1)//2 - 1, then -(K//2) .. -1 (FFT order; the two
            corners `weights1`, `weights2` of the original code, concatenated). On the last axis they
            are 0 .. K-1. A weight whose memory is ordered [*modes, c_in, c_out] avoids a copy.
        out_size: Grid of the result if it differs from x's (zero-shot super-resolution).
        backend: 'auto', 'reference' (torch.fft), 'gemm' (truncated DFT as matrix products) or 'cuda' (our
            kernels: float32 on a GPU, 1 or 2 grid axes).
        precision: 'fp32' (the error of float32 arithmetic), 'tf32' (products of operands rounded to 11
            significant bits) or 'bf16' (x and the result also rounded to bfloat16, 8 bits). Only the cuda
            backend rounds; the others compute in x's dtype, so never coarser than asked for.

    Returns:
        Real field [batch, c_out, *out_size], dtype and device of x.

    Raises:
        TypeError: unsupported or mismatched dtypes.
        ValueError: shapes that do not fit, a grid too small for the kept modes, an unknown backend.

    Example:
        >>> x = torch.randn(4, 8, 85, 64)
        >>> weight = torch.randn(8, 16, 24, 12, dtype=torch.complex64)
        >>> spectral_conv(x, weight).shape
        torch.Size([4, 16, 85, 64])
    """
    check_backend("spectral_conv", backend)
    check_precision("spectral_conv", precision)
    check_field_and_weight("spectral_conv", x, weight)
    size = x.shape[2:]
    target = size if out_size is None else out_size
    if len(target) != len(size):
        raise ValueError(
            f"spectral_conv: out_size {tuple(target)} must have an entry for each of {len(size)} axes"
        )
    check_modes_fit("spectral_conv", weight.shape[2:], size, "the input grid")
    check_modes_fit("spectral_conv", weight.shape[2:], target, "the output grid")
    result: torch.Tensor = torch.ops.turbofno.spectral_conv(x, weight, target, backend, precision)
    return result
