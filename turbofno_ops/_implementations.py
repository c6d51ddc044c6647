"""The Python implementations of our registered ops, which `Replay` records instead of the ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

_runs: dict[str, Callable[..., Any]] = {}


def add_implementation(name: str, run: Callable[..., Any]) -> None:
    """Note the implementation of an op, `turbofno::name`."""
    _runs[name] = run


def implementation_of(op: OpOverload | OpOverloadPacket) -> Callable[..., Any] | None:
    """Return the Python implementation of one of our ops, or None for any other op."""
    packet = op.overloadpacket if isinstance(op, OpOverload) else op
    return _runs.get(packet._qualified_op_name)


def owned(result: torch.Tensor) -> torch.Tensor:
    """Return the result of an op as a tensor that is no view: autograd forbids to write to views that an op returns."""
    if not result._is_view():
        return result
    found: torch.Tensor = torch.ops.aten._unsafe_view(result, result.shape)
    return found
