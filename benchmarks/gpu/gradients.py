"""Gradients on a GPU: vector-Jacobian products of the trained networks, as the service computes them and in plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.candidates import Candidate, checked_error
from benchmarks.gpu.device import Call, each, ends, milliseconds, relative_l2, strict_float32
from benchmarks.gpu.published import published
from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import TRAINED
from turbofno.service.engine.vjp import VjpShapes
from turbofno.service.runtime.forward import Forward
from turbofno.service.runtime.gradient import vjp_of_fields

NAMES = tuple(sorted(folder.name for folder in TRAINED.iterdir() if folder.is_dir()))
BATCHES = (1, 8, 32)
_CALLS = 4
"""Of a timed run."""
_LARGEST_ERROR = 1e-4


def measure(name: str, *, seconds: float, device: str = "cuda:0") -> Iterator[dict[str, object]]:
    """The rows of one network at every batch. Raises RuntimeError if our result is wrong."""
    # gradients need weights that were made outside of inference mode
    with torch.inference_mode(mode=False):
        loaded = load_model(TRAINED / name)
        arch, grid = loaded.config.architecture, loaded.config.grid.training
        reference = published(loaded.module).double()
        module = loaded.module.to(device)
        forward = Forward(
            name, module, torch.device(device), precision="fp32", max_batch=max(BATCHES)
        )
        peer = published(module)
    shapes = VjpShapes((arch.in_channels, *grid), (arch.out_channels, *grid))

    def ours(x: torch.Tensor) -> torch.Tensor:
        return forward.vjp(x.flatten(1), shapes)[0].view_as(x)

    in_float64: Call = partial(vjp_of_fields, reference, arch.in_channels)
    theirs = strict_float32(partial(vjp_of_fields, peer, arch.in_channels))
    for batch in BATCHES:
        x = torch.randn(batch, arch.in_channels + arch.out_channels, *grid, device=device)
        truth = in_float64(ends(x).cpu().double())
        candidates = []
        for what, call in (("turbofno", ours), ("eager", theirs)):
            error = relative_l2(call(x), truth)
            candidates.append(Candidate(what, "", "fp32", error, each(call, [x] * _CALLS)))
        checked_error(f"{name} B{batch}", candidates[0].error, _LARGEST_ERROR)
        times = milliseconds([c.run for c in candidates], seconds=seconds)
        for c, taken in zip(candidates, times, strict=True):
            yield {
                "model": name,
                "batch": batch,
                "what": c.name,
                "precision": c.precision,
                "ms": taken / _CALLS,
                "relative L2 error": c.error,
            }
