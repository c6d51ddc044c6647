"""Random neuraloperator 2.0 networks: the library on the GPU against the same network imported and run as the service runs it.

The networks are those of `benchmarks.chains`: every argument that changes the result varies. The library runs by calls with
PyTorch's defaults, where cuDNN convolves in TF32; both sides are checked against the library in float64 on the CPU.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import torch

from benchmarks.chains import Network, built, drawn
from benchmarks.gpu.device import ends, milliseconds, relative_l2
from benchmarks.gpu.imported import forget_positions, in_float64, network_of
from turbofno.models.importers.refusal import ImportRefused
from turbofno.service.runtime.forward import Forward

COUNT, SEED = 48, 1
_DEVICE = torch.device("cuda", 0)


class Batch(NamedTuple):
    """A batch size and a grid."""

    size: int
    grid: tuple[int, ...]


BATCHES = {1: Batch(64, (1024,)), 2: Batch(16, (128, 128)), 3: Batch(8, (32, 32, 32))}
"""Number of axes -> batch."""


def networks(count: int, seed: int = SEED) -> Iterator[tuple[str, Network]]:
    """`count` random networks that import, with their labels."""
    rng = random.Random(seed)
    found = 0
    while found < count:
        # the library sometimes rounds the rank of a small factorisation to zero and fails
        with suppress(ZeroDivisionError, RuntimeError):
            network = built("drawn", "FNO", drawn(rng))
            if not isinstance(network.imported, ImportRefused):
                found += 1
                yield f"{network.n_dim}D, number {found}", network


def measure(label: str, network: Network, *, seconds: float) -> Iterator[dict[str, object]]:
    """The row of one network."""
    theirs, imported = network.theirs, network.imported
    assert theirs is not None
    assert not isinstance(imported, ImportRefused)
    ours = network_of(imported)
    batch, grid = BATCHES[network.n_dim]
    x = torch.randn(batch, imported.architecture.in_channels, *grid, device=_DEVICE)
    checked = ends(x).cpu()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected = in_float64(theirs, checked)
        float32_error = relative_l2(theirs(checked), expected)
        forward = Forward(label, ours.to(_DEVICE), _DEVICE, precision="fp32", max_batch=batch)
        y, ran = forward(x)
        forget_positions(theirs)
        theirs = theirs.to(_DEVICE)
        own, other = milliseconds([lambda: forward(x), lambda: theirs(x)], seconds=seconds)
    yield {
        "network": label,
        "axes": network.n_dim,
        "hidden channels": imported.architecture.hidden_channels,
        "batch": batch,
        "execution": ran.execution,
        "backend": ran.backend,
        "ms": own,
        "library ms": other,
        "speed-up": other / own,
        "relative L2 error": relative_l2(y, expected),
        "float32 error on the CPU": float32_error,
    }
