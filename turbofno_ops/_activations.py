"""The activations by name, as new tensors and in place."""

from __future__ import annotations

from collections.abc import Callable

import torch

# in the order of turbofno_activation in csrc/api/turbofno.h
ACTIVATION_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}

ACTIVATIONS = tuple(ACTIVATION_FUNCTIONS)

ACTIVATE_IN_PLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu_,
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
    "silu": lambda x: torch.nn.functional.silu(x, inplace=True),
    "tanh": torch.tanh_,
}
