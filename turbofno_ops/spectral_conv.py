"""The spectral convolution of a Fourier neural operator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from turbofno_ops import _library  # noqa: F401  registers torch.ops.turbofno
from turbofno_ops._choice import Choice
from turbofno_ops._validation import (
    check_backend,
    check_differentiation,
    check_field_and_weight,
    check_modes_fit,
    check_precision,
    plain_integers,
)
from turbofno_ops.dispatch import choose_for


def spectral_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    out_size: Sequence[int] | None = None,
    backend: str = "auto",
    precision: str = "fp32",
) -> torch.Tensor:
    """Multiply the kept Fourier coefficients of a field by one complex matrix per mode.

    `F^-1 (R . F x)` of Li et al. 2020 (arXiv 2010.08895, equation 4) for real fields: a truncated real DFT over the grid,
    a [c_in, c_out] matrix for every kept mode, and the inverse DFT. Differentiable in x and weight.

    The inverse is that of `irfftn`: the imaginary part of the DC and Nyquist columns of the last axis is ignored.
    Coefficients are scaled by 1 / grid points, so a weight has the same meaning on every grid. With equal input and
    output grids the result does not depend on the scaling, and equals that of every `norm=` of torch.fft.

    Args:
        x: Real field [batch, c_in, *grid], float32 or float64, 1 to 3 grid axes of any size.
        weight: [c_in, c_out, *modes], complex64 or complex128, any strides. On the last axis K modes are the frequencies
            0 .. K-1, on every other axis 0 .. (K+1)//2 - 1, then -(K//2) .. -1 (FFT order: `weights1` and
            `weights2` of the original code, concatenated). Memory order [*modes, c_in, c_out] avoids a copy.
        out_size: Output grid if it differs from the grid of x (zero-shot super-resolution).
        backend: 'auto', 'reference' (torch.fft), 'gemm' (truncated DFT by matrix products) or 'cuda' (the CUDA kernels:
            float32 on a GPU).
        precision: 'fp32' (the error of float32 arithmetic), 'tf32' (operands of products rounded to 11 significant bits)
            or 'bf16' (x and the result also rounded to bfloat16, 8 bits). Only the cuda backend rounds; the others
            compute in the dtype of x.

    Returns:
        Real field [batch, c_out, *out_size], dtype and device of x.

    Raises:
        TypeError: Unsupported or mismatched dtypes.
        ValueError: Shapes or devices that do not fit, a grid too small for the kept modes, an unknown backend or
            precision, or 'cuda' for a layer that the kernels do not support.
        NotImplementedError: x or weight has a tangent of forward-mode differentiation, or is
            differentiated by torch.func.

    Example:
        >>> x = torch.randn(4, 8, 85, 64)
        >>> weight = torch.randn(8, 16, 24, 12, dtype=torch.complex64)
        >>> spectral_conv(x, weight).shape
        torch.Size([4, 16, 85, 64])
    """
    op = "spectral_conv"
    target = _checked(op, x, weight, out_size, backend, precision)
    check_differentiation(op, x, weight)
    result: torch.Tensor = torch.ops.turbofno.spectral_conv(x, weight, target, backend, precision)
    return result


def explain(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    out_size: Sequence[int] | None = None,
    backend: str = "auto",
    precision: str = "fp32",
) -> Choice:
    """Return the backend that `spectral_conv` would choose for these arguments, and the reason. Runs nothing.

    Args:
        x: As in `spectral_conv`.
        weight: As in `spectral_conv`.
        out_size: As in `spectral_conv`.
        backend: As in `spectral_conv`.
        precision: As in `spectral_conv`.

    Raises:
        TypeError: As in `spectral_conv`.
        ValueError: As in `spectral_conv`.

    Example:
        >>> x, weight = torch.randn(4, 8, 64, 64), torch.randn(8, 8, 12, 12, dtype=torch.complex64)
        >>> explain(x, weight).backend
        'gemm'
    """
    target = _checked("explain", x, weight, out_size, backend, precision)
    return choose_for(x, weight, target, requested=backend, precision=precision)


def _checked(
    op: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    out_size: Sequence[int] | None,
    backend: str,
    precision: str,
) -> Sequence[int]:
    """Return the output grid; raise TypeError or ValueError for arguments that do not fit."""
    check_backend(op, backend)
    check_precision(op, precision)
    check_field_and_weight(op, x, weight)
    size = x.shape[2:]
    target = plain_integers(size if out_size is None else out_size)
    if target is None or len(target) != len(size):
        raise ValueError(
            f"{op}: out_size must have {len(size)} entries, integers, one per grid axis, got {out_size}"
        )
    check_modes_fit(op, weight.shape[2:], size, "the input grid")
    check_modes_fit(op, weight.shape[2:], target, "the output grid")
    return target
