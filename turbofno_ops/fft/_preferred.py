"""Choice between this package and torch.fft for code that also runs on CPUs."""

from __future__ import annotations

from types import ModuleType

import torch

from turbofno_ops._support import gpu_refusal
from turbofno_ops.fft._rule import LEAST_VALUES

_SERVED = (torch.float32, torch.complex64)


def is_preferred(x: torch.Tensor, *, in_graph: bool = False) -> bool:
    """True for float32 and complex64 on a GPU that the kernels run on: there the functions of this package are faster.

    Elsewhere they call torch.fft, at the cost of a registered op.

    Args:
        x: The tensor to transform.
        in_graph: The calls are captured in a CUDA graph, so that their cost on the host does not count. Otherwise small
            tensors are left to torch.fft.

    Example:
        >>> is_preferred(torch.randn(8, 421))
        False
    """
    served = x.is_cuda and x.dtype in _SERVED and (in_graph or x.numel() >= LEAST_VALUES)
    return served and _kernels_run(x.device)


def _kernels_run(device: torch.device) -> bool:
    return gpu_refusal(device) is None


# as torch.compiler.assume_constant_result sets it, which would import the compiler here
_kernels_run._dynamo_marked_constant = True  # type: ignore[attr-defined]


def transforms_for(x: torch.Tensor, *, in_graph: bool = False) -> ModuleType:
    """Return this package if it `is_preferred` for x, else torch.fft.

    Both have the functions `NAMES`, which take a tensor first, then n or s, dim and norm.

    Args:
        x: As in `is_preferred`.
        in_graph: As in `is_preferred`.

    Example:
        >>> x = torch.randn(8, 421)
        >>> transforms_for(x).rfft(x, norm="forward").shape
        torch.Size([8, 211])
    """
    if is_preferred(x, in_graph=in_graph):
        # here, since the package imports this module; torch.compile follows this, but not importlib
        from turbofno_ops import fft

        return fft
    return torch.fft
