"""Tiny untrained models in the native format, for tests of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.checkpoint import save_model
from turbofno.models.core.config import (
    PDE,
    BurgersResidual,
    Channel,
    GridSpec,
    Metric,
    ModelConfig,
)
from turbofno.models.core.fno import FNO
from turbofno.models.core.statistics import (
    ChannelStatistics,
    GridThresholds,
    Statistics,
    Thresholds,
)
from turbofno.models.trust.calibrate import distribution_of

if TYPE_CHECKING:
    from pathlib import Path


def tiny_config(name: str = "tiny-1d", *, version: str = "1", n_dim: int = 1) -> ModelConfig:
    """A config with one layer, 4 modes on each axis, training grid 16, and grids of 8 to 64 points."""
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
    """Write the model to root/name (root/name/version unless it is 1); return its module."""
    torch.manual_seed(seed)
    config = tiny_config(name, version=version, n_dim=n_dim)
    module = FNO(config.architecture).eval()
    folder = root / name if version == "1" else root / name / version
    save_model(folder, config, module)
    return module


def save_judged(
    root: Path,
    name: str = "tiny-judged",
    *,
    limits: tuple[float, float] | None = None,
    steps: int | None = None,
) -> ModelConfig:
    """Write root/name: one channel in and out, as if trained on white noise of deviation 1 to solve Burgers' equation.

    `limits` are the thresholds of input_distance and residual on 32 points. With `steps`, the model is autoregressive and
    evaluated up to that step on 16 and 32 points.
    """
    config = rollable_config().model_copy(
        update={"name": name, "time_step": None if steps is None else 0.1}
    )
    if steps is not None:
        evaluation = tuple(
            Metric(name="rollout", value=0.1, n_samples=1, grid=(n,), steps=steps) for n in (16, 32)
        )
        config = config.model_copy(update={"evaluation": evaluation})
    channel = ChannelStatistics(mean=0.0, std=1.0, minimum=-5.0, maximum=5.0)
    known = distribution_of(torch.randn(400, 1, *config.grid.training), torch.ones(1))
    pde = PDE(
        name="burgers",
        equation="u_t + u u_x = nu u_xx",
        domain="[0, 1)",
        input_distribution="white noise",
        residual=BurgersResidual(nu=0.1, time=0.1),
    )
    thresholds = None
    if limits is not None:
        here = GridThresholds(grid=(32,), n_fields=1, input_distance=limits[0], residual=limits[1])
        thresholds = Thresholds(exceeded_by=0.001, grids=(here,))
    statistics = Statistics(
        n_samples=400,
        inputs=(channel,),
        outputs=(channel,),
        distribution=known,
        thresholds=thresholds,
    )
    config = config.model_copy(update={"statistics": statistics, "pde": pde})
    return save_model(root / name, config, FNO(config.architecture).eval())


def rollable_config(reach: float | None = None) -> ModelConfig:
    """tiny-flow: one channel in and out, step 0.5; trained, if `reach` is given, on values of at most that."""
    config = tiny_config("tiny-flow")
    channel = ChannelStatistics(mean=0.0, std=1.0, minimum=-(reach or 0.0), maximum=reach or 0.0)
    statistics = Statistics(n_samples=1, inputs=(channel,), outputs=(channel,))
    return config.model_copy(
        update={
            "architecture": config.architecture.model_copy(update={"out_channels": 1}),
            "inputs": (Channel(name="w", units="1/s"),),
            "outputs": (Channel(name="w", units="1/s"),),
            "time_step": 0.5,
            "statistics": None if reach is None else statistics,
        }
    )


def rollable_module(gain: float = 0.9) -> FNO:
    """A random network that, run on its own output, changes large fields by at most that factor in a step."""
    module = FNO(rollable_config().architecture).eval()
    with torch.no_grad():
        largest = max(_growth(module, points) for points in (16, 24, 64))
        for parameter in list(module.projection.parameters())[-2:]:
            parameter.mul_(gain / largest)
    return module


def _growth(module: FNO, points: int) -> float:
    """The largest growth factor in a step of some fields, after a few steps.

    The fields are large, because the activation is almost linear there, and steepest.
    """
    large, seen = 1e3, []
    x = large * torch.randn(4, 1, points)
    for _ in range(40):
        y = module(x)
        factor = y.square().mean(dim=(1, 2), keepdim=True).sqrt() / large
        seen.append(float(factor.max()))
        x = y / factor
    return max(seen[20:])


def save_rollable(root: Path, module: FNO, *, reach: float | None = None) -> None:
    """Write root/tiny-flow."""
    save_model(root / "tiny-flow", rollable_config(reach), module)
