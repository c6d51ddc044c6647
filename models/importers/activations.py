"""Translation of activations: names, functions and modules of torch and its libraries to our names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbofno.models.core.architecture import ACTIVATION_NAMES, Activation
from turbofno.models.importers.allowed_names import is_allowed
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.safe_pickle import Named, Stub

# Class and function names of torch in lower case, underscores left out.
_OURS = {
    "gelu": "gelu", "gelutanh": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu", "tanh": "tanh",
    "identity": "none", "none": "none", "leakyrelu": "leaky_relu", "elu": "elu", "celu": "elu", "selu": "selu", "mish": "mish",
    "sin": "sin", "softplus": "softplus", "hardtanh": "hardtanh", "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid",
}  # fmt: skip

# torch's argument for the parameter in brackets, and its default.
_PARAMETER = {"leaky_relu": ("negative_slope", 0.01), "elu": ("alpha", 1.0)}

# Arguments for which only one value is supported; celu with alpha 1 is elu.
_FIXED: dict[str, dict[str, float]] = {
    "celu": {"alpha": 1},
    "softplus": {"beta": 1, "threshold": 20},
    "hardtanh": {"min_val": -1, "max_val": 1},
}


def activation_of(value: Any, argument: str) -> Activation:
    """Our name for an activation.

    Args:
        value: A function or module that a file names, a functools.partial of a function, or a name of torch's or
            ours as text, with its parameter in brackets (`leaky_relu(0.2)`).
        argument: The library's argument name, for error messages.

    Raises:
        ImportRefused: the activation, or its arguments, are not supported.
    """
    if isinstance(value, Stub) and value.cls.qualified == "functools.partial":
        return _of_partial(value, argument)
    named = value.cls if isinstance(value, Stub) else value
    if isinstance(named, Named) and not is_allowed(named.module, named.name):
        raise ImportRefused(
            f"{argument}={named.qualified} is not supported, and nothing of it was run. If it computes the same as a "
            f"supported activation, name that one, such as --set {argument}=silu; {_supported()}"
        )
    if isinstance(value, Stub):
        return _of_name(value.cls.name, value.attributes, argument)
    if isinstance(value, Named):
        return _of_name(value.name, {}, argument)
    if isinstance(value, str):
        return _of_text(value, argument)
    raise ImportRefused(f"{argument}={value!r} is not an activation: {_supported()}")


def _of_text(text: str, argument: str) -> Activation:
    name, bracket, rest = text.strip().partition("(")
    if not bracket:
        return _of_name(name, {}, argument)
    keyword, _ = _PARAMETER.get(_OURS.get(_plain(name), ""), ("", 0.0))
    try:
        parameter = float(rest.removesuffix(")"))
    except ValueError:
        keyword = ""
    if not keyword or not rest.endswith(")"):
        raise ImportRefused(f"{argument}={text} is not supported; {_supported()}")
    return _of_name(name, {keyword: parameter}, argument)


def _of_name(name: str, arguments: Mapping[str, Any], argument: str) -> Activation:
    ours = _OURS.get(_plain(name))
    if ours is None:
        raise ImportRefused(f"{argument}={name} is not supported; {_supported()}")
    if ours == "gelu" and arguments.get("approximate", "none") == "tanh":
        return "gelu_tanh"
    for key, only in _FIXED.get(_plain(name), {}).items():
        if arguments.get(key, only) != only:
            raise ImportRefused(
                f"{argument}={name} with {key}={arguments[key]} is not supported; supported is {key}={only}"
            )
    if ours not in _PARAMETER:
        return ours
    keyword, usual = _PARAMETER[ours]
    return _with_parameter(ours, arguments.get(keyword, usual), argument)


def _with_parameter(name: str, parameter: Any, argument: str) -> Activation:
    usual = _PARAMETER[name][1]
    if isinstance(parameter, bool) or not isinstance(parameter, int | float):
        raise ImportRefused(f"{argument}={name} has the parameter {parameter!r}, expected a number")
    if not 1e-9 <= abs(parameter) < 1e9:
        if parameter == 0:
            return f"{name}(0)"
        raise ImportRefused(
            f"{argument}={name} has the parameter {parameter}; its magnitude must be 1e-9 to 1e9"
        )
    return name if parameter == usual else f"{name}({float(parameter)!r})"


def _of_partial(partial: Stub, argument: str) -> Activation:
    """functools.partial(function, keyword=value)."""
    state = partial.attributes.get("__state__")
    if isinstance(state, tuple) and len(state) == 4:
        function, positional, keywords, _ = state
        if isinstance(function, Named) and positional == () and isinstance(keywords, dict):
            return _of_name(function.name, keywords, argument)
    raise ImportRefused(
        f"{argument} is a functools.partial, but not one of a function with keyword arguments only; "
        f"{_supported()}"
    )


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _supported() -> str:
    shown = [f"{name}(..)" if name in _PARAMETER else name for name in ACTIVATION_NAMES]
    return f"supported are {', '.join(shown)}"
