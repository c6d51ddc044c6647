"""One Fourier layer: spectral convolution, pointwise skip, bias and activation in one op."""

from __future__ import annotations

import torch

from turbofno_ops import _library  # noqa: F401  registers torch.ops.turbofno
from turbofno_ops._activations import parse_activation
from turbofno_ops._validation import (
    check_backend,
    check_field_and_weight,
    check_modes_fit,
    check_precision,
)


def fourier_layer(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    skip_weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    backend: str = "auto",
    precision: str = "fp32",
) -> torch.Tensor:
    """activation(spectral_conv(x, weight) + skip_weight x + bias), on x's own grid.

    Equation 2 of Li et al. 2020 (arXiv 2010.08895).

    Args:
        x: Real field, float32 or float64 [batch, c_in, *grid], 1 to 3 grid axes of any size.
        weight: complex64 or complex128 [c_in, c_out, *modes], as `spectral_conv` takes it.
        skip_weight: The 1x1 convolution beside it, x's dtype [c_out, c_in], or None.
        bias: x's dtype [c_out], or None.
        activation: One of `ACTIVATIONS`, or one with its parameter: 'leaky_relu(0.2)', 'elu(0.5)'. 'gelu' is the
            exact one (erf).
        backend: 'auto', 'reference', 'gemm' or 'cuda', as `spectral_conv` takes it.
        precision: 'fp32' (the error of float32 arithmetic), 'tf32' (products of operands rounded to 11
            significant bits) or 'bf16' (x and the result also rounded to bfloat16, 8 bits). Only the cuda
            backend rounds; the others compute in x's dtype, so never coarser than asked for.

    Returns:
        Real field [batch, c_out, *grid], dtype and device of x.

    Raises:
        TypeError: unsupported or mismatched dtypes.
        ValueError: shapes that do not fit, a grid too small for the kept modes, an unknown name.

    Example:
        >>> x = torch.randn(2, 32, 64, 64)
        >>> weight = torch.randn(32, 32, 24, 12, dtype=torch.complex64) / 32
        >>> skip = torch.randn(32, 32) / 32
        >>> fourier_layer(x, weight, skip_weight=skip, activation="gelu").shape
        torch.Size([2, 32, 64, 64])
    """
    op = "fourier_layer"
    check_backend(op, backend)
    check_precision(op, precision)
    check_field_and_weight(op, x, weight)
    check_modes_fit(op, weight.shape[2:], x.shape[2:], "the grid")
    try:
        parse_activation(activation)
    except ValueError as error:
        raise ValueError(f"{op}: {error}") from None
    c_in, c_out = weight.shape[:2]
    for name, tensor, shape in (
        ("skip_weight", skip_weight, (c_out, c_in)),
        ("bias", bias, (c_out,)),
    ):
        if tensor is None:
            continue
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{op}: {name} must have shape {shape}, got {tuple(tensor.shape)}")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{op}: {name} must be {x.dtype} as x is, got {tensor.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"{op}: {name} is on {tensor.device} but x on {x.device}; move it")
    result: torch.Tensor = torch.ops.turbofno.fourier_layer(
        x, weight, skip_weight, bias, activation, backend, precision
    )
    return result
