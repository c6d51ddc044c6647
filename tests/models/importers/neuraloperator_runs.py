"""Results of neuraloperator networks in float32 and in true float64, and reading of their checkpoints."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.models.importers.comparison import our_module, rounding
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.fno import to_precision
from turbofno.models.importers.neuraloperator import read_exactly
from turbofno.models.importers.result import Imported, Options
from turbofno.models.importers.torch_file import read_torch_file


def random_source() -> random.Random:
    """A random generator that depends on the test's seed."""
    return random.Random(torch.initial_seed())


def spread(network: torch.nn.Module) -> torch.nn.Module:
    """Change every parameter from its initial value, which may be one or zero."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return network.eval()


@contextmanager
def true_float64() -> Iterator[None]:
    """Make neuraloperator compute in float64 throughout.

    Its positional grids follow torch's default dtype, its spectra are `torch.cfloat` and its spectral
    resampling calls `.float()`, whatever the field's dtype.
    """
    torch.set_default_dtype(torch.float64)
    try:
        with (
            mock.patch.object(torch, "cfloat", torch.complex128),
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
        ):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@torch.no_grad()
def outputs(network: torch.nn.Module, fields: list[torch.Tensor]) -> list[torch.Tensor]:
    """The network's results in float32 and in float64; the network is float64 afterwards."""
    single = [network(x) for x in fields]
    to_precision(network, torch.float64)
    with true_float64():
        embedding = getattr(network, "positional_embedding", None)
        if embedding is not None:
            embedding._grid = None  # the cached grid is float32
        return single + [network(x.double()) for x in fields]


def read_saved(folder: Path, name: str, *, pair: bool = True) -> tuple[dict[str, Any], Any]:
    """Tensors and metadata of `save_checkpoint`'s files, or of a single file."""
    state = read_torch_file(folder / f"{name}_state_dict.pt")
    metadata = state.pop("_metadata", None)
    return state, read_torch_file(folder / f"{name}_metadata.pkl") if pair else metadata


@torch.no_grad()
def deviations(
    imported: Imported, fields: list[torch.Tensor], expected: list[torch.Tensor]
) -> tuple[list[float], list[float]]:
    """Relative L2 of ours against theirs (as `outputs` gives them), in float32 and in float64."""

    def against(theirs: list[torch.Tensor], dtype: torch.dtype) -> list[float]:
        ours = our_module(imported, dtype)
        return [relative_l2(ours(x.to(dtype)), y) for x, y in zip(fields, theirs, strict=True)]

    half = len(fields)
    return against(expected[:half], torch.float32), against(expected[half:], torch.float64)


def assert_parity(
    imported: Imported, fields: list[torch.Tensor], expected: list[torch.Tensor]
) -> None:
    """1e-5 in float32 and 1e-10 in float64.

    A few random networks amplify rounding (two norms of a field that is nearly constant, an answer near zero), so that
    the library's own float32 answer is far from its float64 one, or noise of float32's size in a network in float64
    makes as much of a difference: there, a small multiple of that, and a millionth of it.
    """
    half = len(fields)
    single, double = deviations(imported, fields, expected)
    for i in range(half):
        own = rounding(imported, fields[i], expected[i], expected[half + i])
        assert single[i] < max(1e-5, 3 * own), imported
        assert double[i] < max(1e-10, 1e-6 * own), imported


def imported_exactly(tensors: dict[str, torch.Tensor], metadata: Any, **options: str) -> Imported:
    """`read_exactly` with options as on the command line."""
    return read_exactly(tensors, metadata, Options(dict(options)))
