"""Registration of the ops with PyTorch: schemas, implementations, fake tensors and gradients.

Arguments are checked before (spectral_conv.py, fourier_layer.py). The backend is chosen inside the op, at run time, so
that a compiled or exported graph does not freeze the choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.library import Library

from turbofno_ops import _cuda_layer, _gemm, _reference
from turbofno_ops._activations import activate_in_place, activation_gradient
from turbofno_ops._autocast import uncast, without_autocast
from turbofno_ops._channels import mix, mode_major, skip_and_bias
from turbofno_ops._choice import Choice
from turbofno_ops._implementations import add_implementation, owned
from turbofno_ops._modes import column_weights
from turbofno_ops._validation import check_differentiation
from turbofno_ops.dispatch import choose, choose_for, log_fallback, record

_IMPLEMENTATIONS: dict[str, ModuleType] = {"reference": _reference, "gemm": _gemm}

_library = Library("turbofno", "DEF")
_library.define(
    "spectral_conv(Tensor x, Tensor weight, SymInt[] out_size, str backend, "
    "str precision='fp32') -> Tensor"
)
_library.define(
    "spectral_conv_backward(Tensor grad, Tensor x, Tensor weight, str backend) -> (Tensor, Tensor)"
)
_library.define(
    "spectral_conv_backward_input(Tensor grad, Tensor weight, SymInt[] size, str backend) -> Tensor"
)
_library.define(
    "fourier_layer(Tensor x, Tensor weight, Tensor? skip_weight, Tensor? bias, "
    "str activation, str backend, str precision='fp32') -> Tensor"
)


def _select(
    x: torch.Tensor, weight: torch.Tensor, out_size: Sequence[int], backend: str, precision: str
) -> Choice:
    choice = choose_for(x, weight, out_size, requested=backend, precision=precision)
    record(choice)
    log_fallback(choice)
    return choice


def _spectral_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    out_size: Sequence[int],
    backend: str,
    precision: str = "fp32",
) -> torch.Tensor:
    if x.shape[0] == 0:
        return _fake_spectral_conv(x, weight, out_size, backend, precision)
    choice = _select(x, weight, out_size, backend, precision)
    if choice.backend == "cuda":
        return owned(_cuda_layer.layer(x, weight, None, None, "none", out_size, precision))
    run = _IMPLEMENTATIONS[choice.backend]
    field: torch.Tensor = run.synthesize(
        mix(run.analyze(x, weight.shape[2:]), mode_major(weight)), out_size
    )
    return owned(field)


def _spectral_conv_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, backend: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of spectral_conv with respect to x and weight."""
    if x.shape[0] == 0:
        return torch.zeros_like(x), weight.new_zeros(weight.shape)
    modes, size = weight.shape[2:], x.shape[2:]
    run, g_out = _spectral_gradient(grad, weight, size, backend)
    z_in = run.analyze(x, modes)
    batch, c_in, c_out = x.shape[0], *weight.shape[:2]
    g_weight = torch.bmm(z_in.reshape(-1, batch, c_in).mH, g_out.reshape(-1, batch, c_out))
    g_weight = g_weight.view(*modes, c_in, c_out).movedim((-2, -1), (0, 1))
    return _input_gradient(run, g_out, weight, size), g_weight.contiguous()


def _spectral_conv_backward_input(
    grad: torch.Tensor, weight: torch.Tensor, size: Sequence[int], backend: str
) -> torch.Tensor:
    """Return the gradient with respect to x only; x has the grid `size`."""
    if grad.shape[0] == 0:
        return _fake_spectral_conv_backward_input(grad, weight, size, backend)
    return _input_gradient(*_spectral_gradient(grad, weight, size, backend), weight, size)


def _spectral_gradient(
    grad: torch.Tensor, weight: torch.Tensor, size: Sequence[int], backend: str
) -> tuple[ModuleType, torch.Tensor]:
    """Return the backend that runs, and the gradient of the output's spectrum, [*modes, batch, c_out].

    The adjoint of a synthesis is an analysis and vice versa, up to the column weights of the last axis and the factor
    1/N of an analysis.
    """
    modes, out_size = weight.shape[2:], grad.shape[2:]
    # the CUDA kernels compute no gradients
    requested = "auto" if backend == "cuda" else backend
    choice = choose(modes, size, out_size, requested=requested)
    record(choice)
    run = _IMPLEMENTATIONS[choice.backend]
    return run, run.analyze(grad, modes) * _column_factors(grad, modes[-1], out_size)


def _input_gradient(
    run: ModuleType, g_out: torch.Tensor, weight: torch.Tensor, size: Sequence[int]
) -> torch.Tensor:
    modes = weight.shape[2:]
    batch, c_in, c_out = g_out.shape[-2], *weight.shape[:2]
    g_in = torch.bmm(
        g_out.reshape(-1, batch, c_out), mode_major(weight).reshape(-1, c_in, c_out).mH
    ).view(*modes, batch, c_in)
    factors = _column_factors(g_out.real, modes[-1], size)
    g_x: torch.Tensor = run.synthesize(g_in / factors, size)
    return g_x


def _column_factors(like: torch.Tensor, count: int, size: Sequence[int]) -> torch.Tensor:
    per_column = column_weights(count, size[-1], dtype=like.dtype, device=like.device)
    return (math.prod(size) * per_column)[:, None, None]


def _fourier_layer(
    x: torch.Tensor,
    weight: torch.Tensor,
    skip_weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
    backend: str,
    precision: str = "fp32",
) -> torch.Tensor:
    if x.shape[0] == 0:
        return _fake_fourier_layer(x, weight, skip_weight, bias, activation, backend, precision)
    size = x.shape[2:]
    choice = _select(x, weight, size, backend, precision)
    if choice.backend == "cuda":
        return owned(_cuda_layer.layer(x, weight, skip_weight, bias, activation, size, precision))
    run = _IMPLEMENTATIONS[choice.backend]
    z = mix(run.analyze(x, weight.shape[2:]), mode_major(weight))
    y = skip_and_bias(x, skip_weight, bias, (x.shape[0], weight.shape[1], *size))
    y = run.synthesize(z, size) if y is None else run.synthesize(z, size, onto=y)
    return owned(activate_in_place(y, activation))


def _fake_spectral_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    out_size: Sequence[int],
    backend: str,
    precision: str = "fp32",
) -> torch.Tensor:
    del backend, precision
    return x.new_empty((x.shape[0], weight.shape[1], *out_size))


def _fake_spectral_conv_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, backend: str
) -> tuple[torch.Tensor, torch.Tensor]:
    del grad, backend
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


def _fake_spectral_conv_backward_input(
    grad: torch.Tensor, weight: torch.Tensor, size: Sequence[int], backend: str
) -> torch.Tensor:
    del backend
    return grad.new_empty((grad.shape[0], weight.shape[0], *size))


def _fake_fourier_layer(
    x: torch.Tensor,
    weight: torch.Tensor,
    skip_weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
    backend: str,
    precision: str = "fp32",
) -> torch.Tensor:
    del skip_weight, bias, activation, backend, precision
    return x.new_empty((x.shape[0], weight.shape[1], *x.shape[2:]))


for _name, _run, _fake in (
    ("spectral_conv", _spectral_conv, _fake_spectral_conv),
    ("spectral_conv_backward", _spectral_conv_backward, _fake_spectral_conv_backward),
    (
        "spectral_conv_backward_input",
        _spectral_conv_backward_input,
        _fake_spectral_conv_backward_input,
    ),
    ("fourier_layer", _fourier_layer, _fake_fourier_layer),
):
    _plain = add_implementation(f"turbofno::{_name}", uncast(_run))
    _library.impl(_name, _plain, "CompositeExplicitAutograd")
    torch.library.register_fake(f"turbofno::{_name}", _fake, lib=_library)


def _save_spectral_conv(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    del output
    x, weight, _, ctx.backend, _ = inputs
    ctx.save_for_backward(x, weight)


def _differentiate_spectral_conv(ctx, grad):  # type: ignore[no-untyped-def]
    x, weight = ctx.saved_tensors
    return *_spectral_gradients(ctx, grad.contiguous(), x, weight), None, None, None


def _spectral_gradients(
    ctx: Any, grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the gradients of x and weight; None for a weight that needs no gradient."""
    g_weight: torch.Tensor | None = None
    if ctx.needs_input_grad[1]:
        g_x, g_weight = torch.ops.turbofno.spectral_conv_backward(grad, x, weight, ctx.backend)
    else:
        g_x = torch.ops.turbofno.spectral_conv_backward_input(
            grad, weight, x.shape[2:], ctx.backend
        )
    return g_x, g_weight


def _save_spectral_conv_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    del output
    grad, x, weight, ctx.backend = inputs
    ctx.save_for_backward(grad, x, weight)


def _differentiate_spectral_conv_backward(ctx, along_x, along_weight):  # type: ignore[no-untyped-def]
    # the convolution is linear in x and in the weight, so its second derivatives are convolutions and gradients again
    grad, x, weight = ctx.saved_tensors
    ops, out_size = torch.ops.turbofno, grad.shape[2:]
    g_grad = ops.spectral_conv(along_x, weight, out_size, ctx.backend)
    g_grad = g_grad + ops.spectral_conv(x, along_weight, out_size, ctx.backend)
    g_x = ops.spectral_conv_backward_input(grad, along_weight, x.shape[2:], ctx.backend)
    _, g_weight = ops.spectral_conv_backward(grad, along_x, weight, ctx.backend)
    return g_grad, g_x, g_weight, None


def _save_spectral_conv_backward_input(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    del output
    grad, weight, _, ctx.backend = inputs
    ctx.save_for_backward(grad, weight)


def _differentiate_spectral_conv_backward_input(ctx, along_x):  # type: ignore[no-untyped-def]
    grad, weight = ctx.saved_tensors
    ops = torch.ops.turbofno
    g_grad = ops.spectral_conv(along_x, weight, grad.shape[2:], ctx.backend)
    _, g_weight = ops.spectral_conv_backward(grad, along_x, weight, ctx.backend)
    return g_grad, g_weight, None, None


def _save_fourier_layer(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    del output
    x, weight, skip_weight, bias, ctx.activation, ctx.backend, _ = inputs
    ctx.save_for_backward(x, weight, skip_weight, bias)


def _differentiate_fourier_layer(ctx, grad):  # type: ignore[no-untyped-def]
    with without_autocast(grad.device):
        return _fourier_layer_gradients(ctx, grad)  # type: ignore[no-untyped-call]


def _fourier_layer_gradients(ctx, grad):  # type: ignore[no-untyped-def]
    x, weight, skip_weight, bias = ctx.saved_tensors
    grad = grad.contiguous()
    if ctx.activation != "none":
        before = torch.ops.turbofno.fourier_layer(x, weight, skip_weight, bias, "none", ctx.backend)
        grad = activation_gradient(grad, before, ctx.activation)
    g_x, g_weight = _spectral_gradients(ctx, grad, x, weight)
    g_skip = g_bias = None
    # vectorised Jacobians of torch.autograd cannot batch flatten, nor einsum, with which training is faster than with matmul
    points = math.prod(x.shape[2:])
    flat, fields = (tensor.reshape(*tensor.shape[:2], points) for tensor in (grad, x))
    if skip_weight is not None:
        g_x = g_x + torch.matmul(skip_weight.mT, flat).view_as(x)
        if ctx.needs_input_grad[2]:
            g_skip = torch.einsum("bon,bin->oi", flat, fields)
    if bias is not None and ctx.needs_input_grad[3]:
        g_bias = flat.sum((0, 2))
    return g_x, g_weight, g_skip, g_bias, None, None, None


def _checked(name: str, differentiate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a formula for gradients that refuses tangents, which the ops that it calls would drop."""

    def checked(ctx: Any, *grads: torch.Tensor) -> Any:
        check_differentiation(f"the gradient of {name}", *grads)
        return differentiate(ctx, *grads)

    return checked


for _name, _differentiate, _save in (
    ("spectral_conv", _differentiate_spectral_conv, _save_spectral_conv),
    (
        "spectral_conv_backward",
        _differentiate_spectral_conv_backward,
        _save_spectral_conv_backward,
    ),
    (
        "spectral_conv_backward_input",
        _differentiate_spectral_conv_backward_input,
        _save_spectral_conv_backward_input,
    ),
    ("fourier_layer", _differentiate_fourier_layer, _save_fourier_layer),
):
    torch.library.register_autograd(
        f"turbofno::{_name}",
        _checked(_name, _differentiate),
        setup_context=_save,
        lib=_library,
    )
