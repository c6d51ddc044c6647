"""How close an imported network comes to the module that it was imported from."""

from __future__ import annotations

from collections.abc import Callable

import torch

from models.fno import FNO, to_precision
from models.importers.result import Imported
from tests.turbofno_ops.fourier_truth import relative_l2


def our_module(imported: Imported, dtype: torch.dtype) -> FNO:
    """The network that was imported, in one precision."""
    module = to_precision(FNO(imported.architecture), dtype)
    module.load_state_dict(imported.state)
    return module.eval()


def assert_equal_functions(
    imported: Imported,
    original: Callable[[torch.Tensor], torch.Tensor],
    cast: Callable[[torch.dtype], None],
    size: tuple[int, ...],
) -> None:
    """Both networks on random fields [batch, channels, *size]: 1e-10 in float64, 1e-5 in float32."""
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        x = torch.randn(2, imported.architecture.in_channels, *size, dtype=dtype)
        cast(dtype)
        with torch.inference_mode():
            ours, theirs = our_module(imported, dtype)(x), original(x)
        assert ours.shape == theirs.shape
        assert relative_l2(ours, theirs) < bound, (dtype, imported.architecture)
