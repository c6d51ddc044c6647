"""Facts that a pickled network of an original script shows besides its state dict."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor

from turbofno.models.importers.activations import activation_of
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.safe_pickle import Named, Stub
from turbofno.models.importers.torch_file import submodules

Norm = Literal["none", "batch", "instance"]

NORM_EPS = 1e-5
_FUNCTIONS = {name.lower() for name in torch.nn.modules.activation.__all__} | {"sin", "cos"}


@dataclass(frozen=True, slots=True)
class Pickled:
    """Facts that a module, which may be a wrapper, shows of the network that it is or holds.

    `padding` is the network's attribute, None without it. `activations` are held as modules or functions, by dotted path.
    `norms` are the eps of its norms, by kind. `of_pdebench`: it is a network of the package pdebench. `unread` are the
    paths of normalisers and numbers outside of its state dict, which its code may use.
    """

    padding: Any
    activations: dict[str, str]
    norms: dict[Norm, set[float]]
    of_pdebench: bool
    unread: tuple[str, ...]


def shown_by(module: Stub) -> Pickled:
    """The facts that a pickled module shows."""
    activations: dict[str, str] = {}
    norms: dict[Norm, set[float]] = {"batch": set(), "instance": set()}
    paddings = []
    unread: list[str] = []
    parts = submodules(module)
    for path, part in parts.items():
        activations |= _activations(path, part)
        unread += (
            f"{path}.{name}".removeprefix(".")
            for name, value in part.attributes.items()
            if isinstance(value, Tensor)
            or (isinstance(value, Stub) and value.cls.name.endswith("Normalizer"))
            or re.fullmatch("(.+_)?(mean|std)", name)
        )
        norm = re.fullmatch(r"(Batch|Instance)Norm[123]d", part.cls.name)
        if norm is not None and part.cls.module.startswith("torch."):
            kind: Norm = "batch" if norm[1] == "Batch" else "instance"
            norms[kind].add(part.attributes.get("eps", NORM_EPS))
        if {"fc0", "p"} & set(part.attributes.get("_modules") or ()):
            paddings.append(part.attributes.get("padding"))
    of_pdebench = any(part.cls.module.startswith("pdebench.") for part in parts.values())
    return Pickled(
        paddings[0] if paddings else None, activations, norms, of_pdebench, tuple(unread)
    )


def _activations(path: str, part: Stub) -> dict[str, str]:
    found = {}
    if part.cls.module == "torch.nn.modules.activation":
        found[path] = _described(part, part.cls.name)
    for name, value in part.attributes.items():
        where = f"{path}.{name}".removeprefix(".")
        if _is_activation(value):
            found[where] = value.name
        elif isinstance(value, Stub) and value.cls.qualified == "functools.partial":
            function, *_ = value.attributes.get("__state__") or (None,)
            if _is_activation(function):
                found[where] = _described(value, function.name)
    return found


def _described(value: Stub, name: str) -> str:
    """Our name of an activation with arguments, or one that is refused, if no setting replaces it."""
    try:
        return activation_of(value, "activation")
    except ImportRefused:
        return f"{name}(..)"


def _is_activation(value: Any) -> TypeGuard[Named]:
    """True for a function of torch that has a module of the same name, unlike losses and the like."""
    torchs = isinstance(value, Named) and value.module.startswith("torch.")
    return torchs and value.name.lower().replace("_", "") in _FUNCTIONS
