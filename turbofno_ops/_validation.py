"""Argument checks of the public functions."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.autograd import forward_ad

from turbofno_ops._modes import axis_limits
from turbofno_ops.description import PRECISIONS, Size
from turbofno_ops.dispatch import BACKENDS

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def check_backend(op: str, backend: str) -> None:
    """Raise ValueError unless `backend` is 'auto' or a known backend."""
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"{op}: backend must be 'auto' or one of {BACKENDS}, got {backend!r}")


def check_precision(op: str, precision: str) -> None:
    """Raise ValueError unless `precision` is one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise ValueError(f"{op}: precision must be one of {PRECISIONS}, got {precision!r}")


def check_field_and_weight(op: str, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Check dtypes, devices, ranks and channels of a field and its spectral weight.

    Raises:
        TypeError: Unsupported or mismatched dtypes.
        ValueError: Wrong rank, channels or device.
    """
    check_tensor(op, "x", x)
    check_tensor(op, "weight", weight)
    if x.dtype not in _COMPLEX:
        # conversion would drop the imaginary part
        advice = (
            "pass x.real and x.imag as channels" if x.is_complex() else "convert with x.float()"
        )
        raise TypeError(f"{op}: x must be float32 or float64, got {x.dtype}; {advice}")
    if weight.dtype != _COMPLEX[x.dtype]:
        raise TypeError(
            f"{op}: weight must be {_COMPLEX[x.dtype]} for x of {x.dtype}, got {weight.dtype}; "
            f"convert with weight.to({_COMPLEX[x.dtype]})"
        )
    if not 3 <= x.ndim <= 5:
        raise ValueError(
            f"{op}: x must be [batch, channels, *grid] with 1 to 3 grid axes, got shape {list(x.shape)}"
        )
    if weight.ndim != x.ndim:
        raise ValueError(
            f"{op}: weight must be [c_in, c_out, *modes] with {x.ndim - 2} mode axes, one per grid axis of x, "
            f"got shape {list(weight.shape)}"
        )
    if weight.shape[0] != x.shape[1]:
        raise ValueError(
            f"{op}: x has {x.shape[1]} channels but weight expects {weight.shape[0]} (its first axis)"
        )
    if min(weight.shape) < 1:
        raise ValueError(f"{op}: weight has an empty axis, shape {list(weight.shape)}")
    if x.device != weight.device:
        raise ValueError(
            f"{op}: x is on {x.device} but weight on {weight.device}; move one of them"
        )


def grid_of(op: str, size: Sequence[int]) -> Size:
    """Return a grid as plain integers; raise TypeError if it is none."""
    grid = plain_integers(size)
    if grid is None:
        raise TypeError(
            f"{op}: size must be the points along each axis of the whole field, got {size!r}"
        )
    return grid


def plain_integers(values: Sequence[int]) -> Size | None:
    """Return integers of any kind as plain ones, but symbolic ones of a trace as they are; None for anything else.

    Tables are computed from them, and tensors of one number would round them.
    """
    try:
        return tuple(n if isinstance(n, int | torch.SymInt) else operator.index(n) for n in values)
    except TypeError:
        return None


def check_modes_fit(op: str, modes: Sequence[int], size: Sequence[int], what: str) -> None:
    """Raise ValueError if a grid is too small to hold the kept modes."""
    for axis, (count, limit) in enumerate(zip(modes, axis_limits(size), strict=True)):
        if count > limit:
            raise ValueError(
                f"{op}: the weight keeps {count} modes on axis {axis}, but {what} {tuple(size)} holds "
                f"at most {limit} there; use a finer grid or slice the weight"
            )


def check_skip_and_bias(
    op: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    skip_weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> None:
    """Check shapes, dtypes and devices of a layer's skip and bias.

    Raises:
        TypeError: Not a tensor, or another dtype than that of x.
        ValueError: Wrong shape or device.
    """
    c_in, c_out = weight.shape[:2]
    for name, tensor, shape in (
        ("skip_weight", skip_weight, (c_out, c_in)),
        ("bias", bias, (c_out,)),
    ):
        if tensor is None:
            continue
        check_tensor(op, name, tensor)
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{op}: {name} must have shape {shape}, got {tuple(tensor.shape)}")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{op}: {name} must be {x.dtype} like x, got {tensor.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"{op}: {name} is on {tensor.device} but x on {x.device}; move it")


def check_tensor(op: str, name: str, value: torch.Tensor) -> None:
    """Raise TypeError unless the argument `name` is a tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{op}: {name} must be a tensor, got {type(value).__name__}; pass torch.as_tensor({name})"
        )


def has_tangent(tensor: torch.Tensor) -> bool:
    """True if forward-mode differentiation is along this tensor."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def check_differentiation(op: str, *tensors: torch.Tensor | None) -> None:
    """Refuse the kinds of differentiation that registered ops do not support.

    Raises:
        NotImplementedError: A tensor has a forward-mode tangent, which the op would drop silently, or is differentiated by
            torch.func, whose own error does not say what to do.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    if any(map(has_tangent, given)):
        raise NotImplementedError(
            f"{op} has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad); use backward mode, "
            "as in torch.autograd.grad"
        )
    if torch._C._are_functorch_transforms_active() and any(
        torch._C._functorch.is_gradtrackingtensor(tensor) and tensor.requires_grad
        for tensor in given
    ):
        raise NotImplementedError(
            f"{op} cannot be differentiated by torch.func (grad, vjp, jacrev); use torch.autograd.grad, or "
            "torch.autograd.functional.jacobian"
        )
