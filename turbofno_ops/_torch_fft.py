"""Functions of torch.fft, which on a GPU run in the default stream.

PyTorch makes a plan of cuFFT at the first call of a shape and runs it at once, but what the plan writes to the GPU is ordered
with the default stream alone. In another stream the first kernel may come before it: where several processes shared a GPU,
it failed with an illegal memory access.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def _ordered(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(function)
    def call(x: torch.Tensor, **arguments: Any) -> torch.Tensor:
        if not x.is_cuda or torch.compiler.is_compiling():
            return function(x, **arguments)
        here, default = torch.cuda.current_stream(x.device), torch.cuda.default_stream(x.device)
        # a capture runs only what has a plan
        if here == default or torch.cuda.is_current_stream_capturing():
            return function(x, **arguments)
        default.wait_stream(here)
        with torch.cuda.stream(default):
            y = function(x, **arguments)
        here.wait_stream(default)
        y.record_stream(here)
        return y

    return call


fft, ifft, rfft, irfft = map(
    _ordered, (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.irfft)
)
fftn, ifftn = map(_ordered, (torch.fft.fftn, torch.fft.ifftn))
rfftn, irfftn = map(_ordered, (torch.fft.rfftn, torch.fft.irfftn))
