"""Comparison of an imported network with the module that it was imported from."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import torch

from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.blocks import FourierBlock
from turbofno.models.core.fno import FNO, to_precision
from turbofno.models.importers.result import Imported

NOISE = 4 * torch.finfo(torch.float32).eps
"""Approximate relative rounding error of a Fourier layer in float32."""


def our_module(imported: Imported, dtype: torch.dtype) -> FNO:
    """The imported network in one precision."""
    module = to_precision(FNO(imported.architecture, imported.normalization), dtype)
    module.load_state_dict(imported.state)
    return module.eval()


def assert_equal_functions(
    imported: Imported,
    original: Callable[[torch.Tensor], torch.Tensor],
    cast: Callable[[torch.dtype], None],
    size: tuple[int, ...],
) -> None:
    """Compare both networks on random fields [batch, channels, *size]: 1e-10 in float64, 1e-5 in float32.

    Results near zero amplify rounding; there the float32 bound is three times the error that float32 causes in the
    original, or that noise of that size causes in ours.
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
    """The rounding error of this result: of the original (`exact` is its float64 result), or of ours with noise."""
    return max(relative_l2(theirs, exact), _amplified(imported, x))


@torch.no_grad()
def _amplified(imported: Imported, x: torch.Tensor) -> float:
    """The change of our float64 result by noise of float32's size on the outputs of the Fourier layers."""
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
