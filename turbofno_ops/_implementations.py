"""The Python implementations of our registered ops, which `Replay` records instead of the ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload, OpOverloadPacket

try:
    from torch._C._dynamo.eval_frame import (
        _FrameAction,
        _FrameExecStrategy,
        set_code_exec_strategy,
    )

    _SKIP: _FrameExecStrategy | None = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
except ImportError:  # private names, which a later torch may not have
    _SKIP = None

Run = TypeVar("Run", bound=Callable[..., Any])

_runs: dict[str, Callable[..., Any]] = {}


def add_implementation(name: str, run: Run) -> Run:
    """Note the implementation of an op, `turbofno::name`, and return what to register."""
    run = _runs[name] = untraced(run)
    return run


def untraced(run: Run) -> Run:
    """Return the function, which torch.compile now runs as it is, with all that it calls, instead of tracing it.

    Where torch.compile gives up on a caller, it would trace our Python, and fails there. `torch.compiler.disable` does the
    same, but imports the compiler, which takes seconds.
    """
    if _SKIP is None:
        return torch.compiler.disable(run)
    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    set_code_exec_strategy(run.__code__, _SKIP)
    return run


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
