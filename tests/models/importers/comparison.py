"""How close an imported network comes to the module that it was imported from."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch

from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.blocks import FourierBlock
from turbofno.models.core.fno import FNO, to_precision
from turbofno.models.importers.result import Imported

NOISE = 4 * torch.finfo(torch.float32).eps
"""About what a Fourier layer in float32 adds: each value is a sum of many."""


def our_module(imported: Imported, dtype: torch.dtype) -> FNO:
    """The network that was imported, in one precision."""
    module = to_precision(FNO(imported.architecture, imported.normalization), dtype)
    module.load_state_dict(imported.state)
    return module.eval()


def assert_equal_functions(
    imported: Imported,
    original: Callable[[torch.Tensor], torch.Tensor],
    cast: Callable[[torch.dtype], None],
    size: tuple[int, ...],
) -> None:
    """Both networks on random fields [batch, channels, *size]: 1e-10 in float64, 1e-5 in float32.

    Where the original's own float32 is further from its float64 than a third of that, or noise of float32's size brings
    ours as far away (an answer near zero), three times as far.
    """
    x = torch.randn(2, imported.architecture.in_channels, *size)
    cast(torch.float64)
    with torch.inference_mode():
        ours, exact = our_module(imported, torch.float64)(x.double()), original(x.double())
    assert ours.shape == exact.shape
    assert relative_l2(ours, exact) < 1e-10, imported.architecture
    cast(torch.float32)
    with torch.inference_mode():
        ours, theirs = our_module(imported, torch.float32)(x), original(x)
    assert ours.shape == theirs.shape
    bound = max(1e-5, 3 * rounding(imported, x, theirs, exact))
    assert relative_l2(ours, theirs) < bound, imported.architecture


def rounding(
    imported: Imported, x: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor
) -> float:
    """What float32 makes of this answer: of the original's (`exact` is its float64 one), or of ours by noise."""
    return max(relative_l2(theirs, exact), _amplified(imported, x))


@torch.no_grad()
def _amplified(imported: Imported, x: torch.Tensor) -> float:
    """How far apart ours are in float64 with and without noise of float32's size on what the Fourier layers give."""
    ours = our_module(imported, torch.float64)
    exact = ours(x.double())

    def noisy(layer: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(block: FourierBlock, x: torch.Tensor) -> torch.Tensor:
            y = layer(block, x)
            return y * (1 + NOISE * torch.randn_like(y))

        return run

    with (
        mock.patch.object(FourierBlock, "_spectral", noisy(FourierBlock._spectral)),
        mock.patch.object(FourierBlock, "_fourier_layer", noisy(FourierBlock._fourier_layer)),
    ):
        return relative_l2(ours(x.double()), exact)
