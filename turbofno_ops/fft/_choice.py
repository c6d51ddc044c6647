"""Choice between the CUDA kernels and torch.fft, and of the kernel for one axis."""

from __future__ import annotations

import logging

import torch

from turbofno_ops._choice import Choice
from turbofno_ops._support import gpu_refusal
from turbofno_ops.fft import _plan
from turbofno_ops.fft._rule import torch_is_as_fast
from turbofno_ops.fft._transform import Transform, real_of

BACKENDS = ("kernels", "torch")

_log = logging.getLogger("turbofno_ops")
_REFUSED = "the CUDA kernels do not run this transform: "
_logged: set[str] = set()


def refusal(x: torch.Tensor, transform: Transform) -> str | None:
    """Return the reason why the CUDA kernels do not support the transform of x, or None if they do."""
    if not x.is_cuda:
        return f"x is on {x.device}"
    refused = gpu_refusal(x.device)
    if refused is not None:
        return refused
    if real_of(x.dtype) == torch.float64:
        return f"they compute in float32 and float16, x is {x.dtype}"
    return _plan.refusal(x, transform)


def choose(x: torch.Tensor, transform: Transform, requested: str) -> Choice:
    """Choose the backend of a transform.

    Raises:
        ValueError: 'kernels' for a transform that they do not support.
    """
    if requested == "torch":
        return Choice("torch", "requested by the caller")
    refused = refusal(x, transform)
    if requested == "kernels":
        if refused is not None:
            raise ValueError(f"backend 'kernels' cannot run this transform: {refused}")
        return Choice("kernels", "requested by the caller")
    if refused is not None:
        return Choice("torch", f"{_REFUSED}{refused}")
    preferred = torch_is_as_fast(transform, x.dtype)
    if preferred is not None and not _plan.takes_whole_planes(x, transform):
        return Choice("torch", preferred)
    return Choice("kernels", "x is on a GPU and the CUDA kernels support this transform")


def log_fallback(x: torch.Tensor, choice: Choice) -> None:
    """Log a float32 or float16 transform on a GPU that the kernels do not support, once per reason."""
    expected = x.is_cuda and real_of(x.dtype) != torch.float64
    if expected and choice.reason.startswith(_REFUSED) and choice.reason not in _logged:
        _logged.add(choice.reason)
        _log.warning("%s; torch.fft runs instead", choice.reason)
