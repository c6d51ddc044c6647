"""Activations by name: out of place, in place, and their gradients.

Two activations take a parameter: `leaky_relu(0.2)`, the slope of negative values (default 0.01), and `elu(0.5)`,
alpha (default 1). Softplus has beta 1 and threshold 20, hardtanh the bounds -1 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

_aten = torch.ops.aten
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


class Activation(NamedTuple):
    """An activation: name, parameter (0 if it takes none), number in csrc/api/turbofno.h."""

    name: str
    parameter: float
    number: int


class _Forms(NamedTuple):
    """of(x, parameter), the same in place where torch supports it, and gradient(grad of the result, x, parameter)."""

    of: Callable[[torch.Tensor, float], torch.Tensor]
    in_place: Callable[[torch.Tensor, float], torch.Tensor]
    gradient: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


# in the order of turbofno_activation in csrc/api/turbofno.h
_FORMS = {
    "none": _Forms(lambda x, _: x, lambda x, _: x, lambda g, _x, _: g),
    "relu": _Forms(
        lambda x, _: torch.relu(x),
        lambda x, _: torch.relu_(x),
        lambda g, x, _: g * (x > 0),
    ),
    "gelu": _Forms(
        lambda x, _: F.gelu(x),
        lambda x, _: _aten.gelu_(x),
        lambda g, x, _: _aten.gelu_backward(g, x),
    ),
    "gelu_tanh": _Forms(
        lambda x, _: F.gelu(x, approximate="tanh"),
        lambda x, _: _aten.gelu_(x, approximate="tanh"),
        lambda g, x, _: _aten.gelu_backward(g, x, approximate="tanh"),
    ),
    "silu": _Forms(
        lambda x, _: F.silu(x),
        lambda x, _: F.silu(x, inplace=True),
        lambda g, x, _: _aten.silu_backward(g, x),
    ),
    "tanh": _Forms(
        lambda x, _: torch.tanh(x),
        lambda x, _: torch.tanh_(x),
        lambda g, x, _: g * (1 - x.tanh().square()),
    ),
    "leaky_relu": _Forms(
        lambda x, slope: F.leaky_relu(x, slope),
        lambda x, slope: F.leaky_relu_(x, slope),
        lambda g, x, slope: _aten.leaky_relu_backward(g, x, slope, False),
    ),
    "elu": _Forms(
        lambda x, alpha: F.elu(x, alpha),
        lambda x, alpha: F.elu_(x, alpha),
        lambda g, x, alpha: _aten.elu_backward(g, alpha, 1.0, 1.0, False, x),
    ),
    "selu": _Forms(
        lambda x, _: torch.selu(x),
        lambda x, _: torch.selu_(x),
        lambda g, x, _: _aten.elu_backward(g, _SELU_ALPHA, _SELU_SCALE, 1.0, False, x),
    ),
    "mish": _Forms(
        lambda x, _: F.mish(x),
        lambda x, _: F.mish(x, inplace=True),
        lambda g, x, _: _aten.mish_backward(g, x),
    ),
    "sin": _Forms(
        lambda x, _: torch.sin(x),
        lambda x, _: torch.sin_(x),
        lambda g, x, _: g * x.cos(),
    ),
    "softplus": _Forms(
        lambda x, _: F.softplus(x),
        lambda x, _: F.softplus(x),
        lambda g, x, _: _aten.softplus_backward(g, x, 1.0, 20.0),
    ),
    "hardtanh": _Forms(
        lambda x, _: F.hardtanh(x),
        lambda x, _: F.hardtanh_(x),
        lambda g, x, _: _aten.hardtanh_backward(g, x, -1.0, 1.0),
    ),
    "hardswish": _Forms(
        lambda x, _: F.hardswish(x),
        lambda x, _: F.hardswish(x, inplace=True),
        lambda g, x, _: _aten.hardswish_backward(g, x),
    ),
    "hardsigmoid": _Forms(
        lambda x, _: F.hardsigmoid(x),
        lambda x, _: F.hardsigmoid(x, inplace=True),
        lambda g, x, _: _aten.hardsigmoid_backward(g, x),
    ),
}
_DEFAULTS = {"leaky_relu": 0.01, "elu": 1.0}

ACTIVATIONS = tuple(_FORMS)


def parse_activation(written: str) -> Activation:
    """Parse `name` or `name(parameter)`.

    Raises:
        ValueError: Unknown name, such as a function or a module, or a parameter that is not a finite number.
    """
    name, bracket, rest = str(written).partition("(")
    if name not in _FORMS or (bracket and (not rest.endswith(")") or name not in _DEFAULTS)):
        raise ValueError(
            f"activation must be one of {ACTIVATIONS}, leaky_relu and elu also with a parameter "
            f"as in 'leaky_relu(0.2)', got {written!r}"
        )
    try:
        parameter = float(rest[:-1]) if bracket else _DEFAULTS.get(name, 0.0)
    except ValueError:
        parameter = math.nan
    if not math.isfinite(parameter):
        raise ValueError(f"activation {written!r} needs a finite number as its parameter")
    return Activation(name, parameter, ACTIVATIONS.index(name))


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return activation(x); for 'none' x itself."""
    name, parameter, _ = parse_activation(activation)
    return _FORMS[name].of(x, parameter)


def activate_in_place(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return activation(x), in the memory of x where torch supports it. x must not be used afterwards."""
    name, parameter, _ = parse_activation(activation)
    return _FORMS[name].in_place(x, parameter)


def activation_gradient(grad: torch.Tensor, x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return the gradient with respect to x of activation(x), given the gradient of the result."""
    if x.requires_grad:
        # a gradient of the gradient is wanted, which not all of the forms have
        (found,) = torch.autograd.grad(activate(x, activation), x, grad, create_graph=True)
        return found
    name, parameter, _ = parse_activation(activation)
    return _FORMS[name].gradient(grad, x, parameter)
