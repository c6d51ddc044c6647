"""Whole models: ours through `compile_fno` at each precision, PyTorch eager, in a CUDA graph, and torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.candidates import Candidate, checked_error, published_candidates
from benchmarks.gpu.device import (
    Call,
    each,
    ends,
    milliseconds,
    relative_l2,
    rotating,
)
from benchmarks.gpu.published import published
from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.fno import FNO
from turbofno.models.zoo import TRAINED
from turbofno_ops import PRECISIONS, compile_fno

BATCHES = (1, 8, 32, 128)
_LEAST_CALLS, _LEAST_FIELDS = 8, 32
"""Of a run."""
_LARGEST_ERROR = {"fp32": 1e-5, "tf32": 1e-2, "bf16": 1e-1}


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its grid."""

    name: str
    model: FNO
    size: tuple[int, ...]


def _random(size: tuple[int, ...], hidden: int, modes: tuple[int, ...]) -> Case:
    arch = FNOArchitecture(
        in_channels=1, out_channels=1, hidden_channels=hidden, n_layers=4, modes=modes
    )
    grid, kept = "x".join(map(str, size)), "x".join(map(str, modes))
    return Case(f"{len(size)}D C{hidden} {grid} m{kept}", FNO(arch), size)


def cases() -> Iterator[Case]:
    """Three 4-layer networks with random weights, then the zoo on its training grids."""
    yield _random((64, 64), 32, (24, 12))
    yield _random((128, 128), 64, (24, 12))
    yield _random((1024,), 64, (16,))
    for folder in sorted(TRAINED.iterdir()):
        loaded = load_model(folder)
        yield Case(loaded.config.name, loaded.module, loaded.config.grid.training)


def _own(
    case: Case, model: FNO, fields: list[torch.Tensor], expected: torch.Tensor
) -> Iterator[Candidate]:
    batch = len(fields[0])
    for precision in PRECISIONS:
        call = compile_fno(model.description(), device="cuda", precision=precision, max_batch=batch)
        error = checked_error(
            f"{case.name} B{batch} {precision}",
            relative_l2(call(fields[0]), expected),
            _LARGEST_ERROR[precision],
        )
        yield Candidate("turbofno", "cuda", precision, error, each(call, fields))


def measure(case: Case, *, compiled: bool, seconds: float) -> Iterator[dict[str, object]]:
    """The rows of one model at every batch. Raises RuntimeError if our result is wrong."""
    in_float64: Call = published(case.model).double()
    model = case.model.eval().requires_grad_(False).cuda()
    for batch in BATCHES:
        # few fields: the activations of a model evict its input from the cache; but so many that a run is long beside
        # the launch of its first call
        shape = (batch, case.model.arch.in_channels, *case.size)
        fields = rotating(shape, most=max(_LEAST_CALLS, _LEAST_FIELDS // batch))
        expected = in_float64(ends(fields[0]).cpu().double())
        candidates = [
            *_own(case, model, fields, expected),
            *published_candidates(
                published(model),
                fields,
                expected,
                convolution="1x1 convolutions",
                compiled=compiled,
            ),
        ]
        times = milliseconds([c.run for c in candidates], seconds=seconds)
        for c, taken in zip(candidates, times, strict=True):
            ms = taken / len(fields)
            yield {
                "model": case.name,
                "batch": batch,
                "what": c.name,
                "backend": c.backend,
                "precision": c.precision,
                "ms": ms,
                "fields/s": batch / ms * 1e3,
                "relative L2 error": c.error,
            }
