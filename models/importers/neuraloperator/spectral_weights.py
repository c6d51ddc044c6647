"""Spectral weights of neuraloperator, dense or factorised, as our dense [c_in, c_out, *modes] in FFT order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from models.importers.layout import as_complex
from models.importers.refusal import ImportRefused

# In double precision, per layer. A few numbers can stand for far more than a machine holds.
_MAX_DENSE_BYTES = 4 << 30
_KINDS = "a dense tensor, Tucker, CP and TT"


def dense(parts: dict[str, torch.Tensor], where: str) -> torch.Tensor:
    """The tensor that a tltorch factorisation stands for, complex; 0.3.0 stores real and imaginary parts.

    Args:
        parts: Its tensors by name: `tensor`; `core` and `factors.factor_k`; `weights` and
            `factors.factor_k`; or `factors.factor_k` of a tensor train.
        where: The key before these names, for the message.

    Returns:
        complex64 if dense; complex128 if it had to be multiplied out.

    Raises:
        ImportRefused: another factorisation.
    """
    parts = {name: as_complex(tensor, f"{where}.{name}") for name, tensor in parts.items()}
    if set(parts) == {"tensor"}:
        return parts["tensor"]
    parts = {name: tensor.to(torch.complex128) for name, tensor in parts.items()}
    core, weights = parts.pop("core", None), parts.pop("weights", None)
    factors = [parts.pop(f"factors.factor_{k}", None) for k in range(len(parts))]
    if parts or not factors or any(factor is None for factor in factors):
        raise ImportRefused(
            f"{where} holds {sorted(parts) or 'no tensors'}, which is none of {_KINDS}"
        )
    known = [factor for factor in factors if factor is not None]
    _refuse_giant([f.shape[f.ndim // 3] for f in known], where)
    try:
        if core is not None:
            return _tucker(core, known)
        if weights is not None:
            return _cp(weights, known)
        return _tensor_train(known)
    except RuntimeError as error:
        raise ImportRefused(f"{where}: the shapes of the factors do not fit: {error}") from None


def _refuse_giant(shape: Sequence[int], where: str) -> None:
    needed = math.prod(shape) * torch.complex128.itemsize
    if needed > _MAX_DENSE_BYTES:
        raise ImportRefused(
            f"{where} multiplied out, {' x '.join(map(str, shape))}, takes {needed:,} bytes, more than the "
            f"{_MAX_DENSE_BYTES:,} supported"
        )


def _tucker(core: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
    for factor in factors:
        # contracts the first axis and appends the new one: after all of them the order is as before
        core = torch.tensordot(core, factor, dims=([0], [1]))
    return core


def _cp(weights: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
    *others, last = factors
    product = weights
    for factor in others:
        product = product.unsqueeze(-2) * factor
    return torch.tensordot(product, last, dims=([-1], [1]))


def _tensor_train(factors: Sequence[torch.Tensor]) -> torch.Tensor:
    product = factors[0]
    for factor in factors[1:]:
        product = torch.tensordot(product, factor, dims=([-1], [0]))
    return product.squeeze(-1).squeeze(0)


def ours(weight: torch.Tensor, modes: Sequence[int], width: int) -> torch.Tensor:
    """The window of kept modes, in FFT order, channels in full.

    Args:
        weight: [c_in, c_out, *max_modes], or [channels, *max_modes] if it is separable; frequencies
            count from the most negative one up, on the last axis from 0.
        modes: How many are kept on each axis, at most as many as there are.
        width: Channels, for a separable weight.

    Returns:
        [c_in, c_out, *modes].
    """
    n_dim = len(modes)
    for axis, (kept, stored) in enumerate(zip(modes, weight.shape[-n_dim:], strict=True)):
        first = 0 if axis == n_dim - 1 else (stored - kept) // 2
        weight = weight.narrow(axis - n_dim, first, kept)
    if n_dim > 1:
        weight = torch.fft.ifftshift(weight, dim=tuple(range(-n_dim, -1)))
    if weight.ndim == n_dim + 1:
        full = weight.new_zeros(width, *weight.shape)
        full.diagonal(dim1=0, dim2=1).copy_(weight.movedim(0, -1))
        return full
    return weight
