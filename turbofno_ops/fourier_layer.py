"""One Fourier layer: spectral convolution, pointwise skip, bias and activation in one op."""

from __future__ import annotations

import torch

from turbofno_ops import _library  # noqa: F401  registers torch.ops.turbofno
from turbofno_ops._activations import parse_activation
from turbofno_ops._validation import (
    check_backend,
    check_differentiation,
    check_field_and_weight,
    check_modes_fit,
    check_precision,
    check_skip_and_bias,
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
    """Compute activation(spectral_conv(x, weight) + skip_weight . x + bias) on the grid of x.

    One layer of a Fourier neural operator: Li et al. 2020 (arXiv 2010.08895), equation 2. Differentiable in all tensors.

    Args:
        x: Real field [batch, c_in, *grid], float32 or float64, 1 to 3 grid axes of any size.
        weight: [c_in, c_out, *modes], complex64 or complex128, as in `spectral_conv`.
        skip_weight: Weight of a parallel 1x1 convolution [c_out, c_in], dtype of x, or None.
        bias: [c_out], dtype of x, or None.
        activation: A name of `ACTIVATIONS`, with its parameter if it has one: 'leaky_relu(0.2)', 'elu(0.5)'. 'gelu' is
            the exact one (erf).
        backend: 'auto', 'reference', 'gemm' or 'cuda', as in `spectral_conv`.
        precision: 'fp32', 'tf32' or 'bf16', as in `spectral_conv`.

    Returns:
        Real field [batch, c_out, *grid], dtype and device of x.

    Raises:
        TypeError: Unsupported or mismatched dtypes.
        ValueError: Shapes or devices that do not fit, a grid too small for the kept modes, an unknown name, or 'cuda' for
            a layer that the kernels do not support.
        NotImplementedError: A tensor has a tangent of forward-mode differentiation, or is
            differentiated by torch.func.

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
    check_skip_and_bias(op, x, weight, skip_weight, bias)
    check_differentiation(op, x, weight, skip_weight, bias)
    result: torch.Tensor = torch.ops.turbofno.fourier_layer(
        x, weight, skip_weight, bias, activation, backend, precision
    )
    return result
