"""A layer through the CUDA kernels: which layers they take, and the call with its tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from turbofno_ops._gemm import _angles, _last_axis_analysis, _last_axis_synthesis, _tables
from turbofno_ops._native import native_status, unsupported

# in the order of turbofno_activation in csrc/api/turbofno.h
_ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "tanh")
_ALIGNMENT = 16


def refusal(x: torch.Tensor, weight: torch.Tensor, out_size: Sequence[int]) -> str | None:
    """Why the CUDA kernels do not take this layer, in words, or None if they do."""
    if not x.is_cuda:
        return f"x is on {x.device}"
    status = native_status()
    if not status.loaded:
        return status.detail
    if x.dtype != torch.float32:
        return f"they compute in float32, x is {x.dtype}"
    if x.ndim > 4:
        return "they serve one and two grid axes, x has three"
    return unsupported(
        x.shape[0],
        (weight.shape[0], weight.shape[1]),
        tuple(x.shape[2:]),
        tuple(out_size),
        tuple(weight.shape[2:]),
    )


@_tables.cached
def _column_sums(size: int, count: int, device: torch.device, *, analysis: bool) -> torch.Tensor:
    """cos and sin of |k| = 0 .. half, interleaved: float32 [half + 1, size, 2], over size in an analysis."""
    with torch.inference_mode(False):
        at = _angles(count // 2 + 1, size)
        table = torch.stack([at.cos(), at.sin()], dim=-1)
        return (table / size if analysis else table).to(device, torch.float32)


def _ready(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as kernels read them: contiguous, aligned, nothing left to negate or conjugate."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def layer(
    x: torch.Tensor,
    weight: torch.Tensor,
    skip_weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
    out_size: Sequence[int],
) -> torch.Tensor:
    """activation(spectral_conv(x, weight) + skip_weight x + bias) for a layer that `refusal` lets pass."""
    batch, c_in, *size = x.shape
    rows_in, rows_out = (1, *size)[-2], (1, *out_size)[-2]
    modes_h, modes_w = (1, *weight.shape[2:])[-2:]
    by_mode = weight.permute(*range(2, weight.ndim), 0, 1).reshape(
        modes_h, modes_w, *weight.shape[:2]
    )
    device = x.device
    one_row = rows_in == rows_out == modes_h == 1
    result: torch.Tensor = torch.ops.turbofno.cuda_layer(
        _ready(x).view(batch, c_in, rows_in, size[-1]),
        _ready(by_mode),
        None if skip_weight is None else _ready(skip_weight),
        None if bias is None else _ready(bias),
        _last_axis_analysis(size[-1], modes_w, torch.float32, device),
        _last_axis_synthesis(out_size[-1], modes_w, torch.float32, device),
        None if one_row else _column_sums(rows_in, modes_h, device, analysis=True),
        None if one_row else _column_sums(rows_out, modes_h, device, analysis=False),
        _ACTIVATIONS.index(activation),
        rows_out,
        out_size[-1],
    )
    return result.view(batch, weight.shape[1], *out_size)
