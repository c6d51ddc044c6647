"""Tiny untrained models in the native format, for tests of everything around the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from models.checkpoint import save_model
from models.config import Channel, FNOArchitecture, GridSpec, ModelConfig
from models.fno import FNO

if TYPE_CHECKING:
    from pathlib import Path


def tiny_config(name: str = "tiny-1d", *, version: str = "1", n_dim: int = 1) -> ModelConfig:
    """One layer, 4 modes an axis, grids of 8 to 64 points, trained on 16."""
    modes = (4,) * n_dim
    return ModelConfig(
        name=name,
        version=version,
        description="a tiny untrained model",
        architecture=FNOArchitecture(
            in_channels=1, out_channels=2, hidden_channels=4, n_layers=1, modes=modes,
            projection_channels=(4,),
        ),
        inputs=(Channel(name="u0"),),
        outputs=(Channel(name="u"), Channel(name="v", units="m/s")),
        grid=GridSpec(
            training=(16,) * n_dim, minimum=(8,) * n_dim, maximum=(64,) * n_dim,
            extent=(1.0,) * n_dim, boundary="periodic",
        ),
        sha256="0" * 64,
    )  # fmt: skip


def save_tiny(
    root: Path, name: str = "tiny-1d", *, version: str = "1", n_dim: int = 1, seed: int = 0
) -> FNO:
    """Write root/name (root/name/version unless it is 1) and return the module that it holds."""
    torch.manual_seed(seed)
    config = tiny_config(name, version=version, n_dim=n_dim)
    module = FNO(config.architecture).eval()
    folder = root / name if version == "1" else root / name / version
    save_model(folder, config, module)
    return module
