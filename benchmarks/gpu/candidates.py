"""Candidates that are timed side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.device import Call, each, in_graph, relative_l2, strict_float32


def checked_error(what: str, error: float, limit: float) -> float:
    """Return the error; raise RuntimeError if it is above the limit or NaN."""
    if not error <= limit:
        raise RuntimeError(f"{what}: wrong result, relative L2 error {error:.1e} over {limit:.0e}")
    return error


@dataclass(frozen=True, slots=True)
class Candidate:
    """An implementation of a layer or network, with its error.

    `run` makes one call on each field, or runs `layers_each` layers. The time of `less` is subtracted from that of `run`.
    """

    name: str
    backend: str
    precision: str
    error: float
    run: Callable[[], object]
    bytes_each: int = 4
    layers_each: int | None = None
    less: Callable[[], object] | None = None

    @property
    def runs(self) -> list[Callable[[], object]]:
        """The calls to time: `run`, and `less` if there is one."""
        return [self.run] if self.less is None else [self.run, self.less]


def published_candidates(
    default: Call,
    fields: list[torch.Tensor],
    expected: torch.Tensor,
    *,
    convolution: str,
    compiled: bool,
) -> Iterator[Candidate]:
    """PyTorch eager by default and in strict float32, and torch.compile if asked; each by calls and as a CUDA graph."""
    strict = strict_float32(default)
    convolves = f"fp32, {convolution} TF32" if torch.backends.cudnn.allow_tf32 else "fp32"
    for call, precision in ((default, convolves), (strict, "fp32")):
        error = relative_l2(call(fields[0]), expected)
        for name, run in (("call", each(call, fields)), ("graph", in_graph(call, fields))):
            yield Candidate(f"eager, {name}", "torch.fft", precision, error, run)
    if compiled:
        torch._dynamo.reset()
        call = torch.compile(default, dynamic=False)
        error = relative_l2(call(fields[0]), expected)
        for name, run in (("call", each(call, fields)), ("graph", in_graph(call, fields))):
            yield Candidate(f"torch.compile, {name}", "torch.fft", convolves, error, run)
