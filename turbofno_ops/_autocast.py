"""Computation in the dtype of the arguments, also inside of torch.autocast, which would cast the products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which torch.autocast does not apply to tensors on `device`."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def uncast(
    run: Callable[Concatenate[torch.Tensor, P], T],
) -> Callable[Concatenate[torch.Tensor, P], T]:
    """Return a function of a tensor and more that runs without autocast."""

    @wraps(run)
    def inside(first: torch.Tensor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with without_autocast(first.device):
            return run(first, *args, **kwargs)

    return inside
