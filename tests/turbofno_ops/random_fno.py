"""Random networks over all features that a chain supports, and inputs for them."""

from __future__ import annotations

import copy
import math
import random
from statistics import fmean

import torch

from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.architecture import (
    BlockStep,
    ChannelMLP,
    DomainPadding,
    FNOArchitecture,
    Norm,
    Skip,
)
from turbofno.models.core.config import Normalization
from turbofno.models.core.fno import FNO
from turbofno_ops import ACTIVATIONS

_PERTURBATION = 1e-5
_PERTURBED = 16


def draw_architecture(rng: random.Random, n_dim: int) -> FNOArchitecture:
    """Draw from all skips, channel MLPs, norms, step orders, positions, paddings, liftings and projections."""
    modes = tuple(rng.randint(1, 9 if n_dim < 3 else 5) for _ in range(n_dim))
    amounts = tuple(rng.randint(0, 6) for _ in range(n_dim))
    sides = rng.choice(["end", "both"])
    mode = rng.choice(["zeros", "zeros", "replicate", "reflect", "circular"])
    skips = ["linear", "linear", "soft-gating", "identity", "none"]
    skip, mlp_skip = rng.choice(skips), rng.choice(skips)
    norm = rng.choice(["none", "none", "instance_norm", "group_norm", "affine"])
    has_mlp = rng.random() < 0.6
    block, last_block = _drawn_steps(rng, skip, mlp_skip if has_mlp else None, norm)
    width = rng.choice([1, 6, 8, 20, 32])
    paddings = [
        None,
        None,
        DomainPadding(points=amounts, sides=sides, mode=mode),
        DomainPadding(fraction=tuple(amount / 30 for amount in amounts), sides=sides, mode=mode),
    ]
    return FNOArchitecture(
        in_channels=rng.randint(1, 4),
        out_channels=rng.randint(1, 3),
        hidden_channels=width,
        n_layers=rng.randint(1, 4),
        modes=modes,
        activation=rng.choice(ACTIVATIONS),
        lifting_activation=rng.choice([None, *ACTIVATIONS]),
        projection_activation=rng.choice([None, *ACTIVATIONS]),
        lifting_channels=rng.choice([(), (), (12,), (7, 9), (300,)]),
        projection_channels=rng.choice([(), (16,), (40,), (12, 10), (300,)]),
        skip=skip,
        skip_bias=rng.random() < 0.5,
        spectral_bias=rng.random() < 0.5,
        channel_mlp=_drawn_mlp(rng, mlp_skip) if has_mlp else None,
        norm=norm,
        norm_groups=rng.choice([n for n in (1, 2, 4) if width % n == 0]),
        positional_grid=rng.choice(["none", "endpoint_excluded", "endpoint_included"]),
        domain_padding=rng.choice(paddings),
        block=block,
        last_block=last_block,
    )


def _drawn_mlp(rng: random.Random, skip: Skip) -> ChannelMLP:
    return ChannelMLP(
        hidden_channels=rng.choice([1, 4, 16, 40]),
        skip=skip,
        activation=rng.choice([None, *ACTIVATIONS]),
    )


def _drawn_steps(
    rng: random.Random, skip: Skip, mlp_skip: Skip | None, norm: Norm
) -> tuple[tuple[BlockStep, ...], tuple[BlockStep, ...]]:
    """Draw the usual step order, neuraloperator's preactivation or stabiliser, or one with late norms."""
    kind = rng.choice(["usual", "usual", "usual", "preactivation", "stabilised", "late"])
    if kind == "usual":
        return (), ()
    norms: list[BlockStep] = [] if norm == "none" else ["norm"]
    skips: list[BlockStep] = [] if skip == "none" else ["skip"]
    mlp: list[BlockStep] = [] if mlp_skip is None else ["mlp"]
    mlp += [] if mlp_skip in (None, "none") else ["mlp_skip"]
    if kind == "preactivation":
        block: list[BlockStep] = ["activation", *norms, "spectral", *skips, *norms, "activation"]
        return (*block, *mlp), (*block[:-1], *mlp)
    if kind == "stabilised":
        first: list[BlockStep] = ["tanh", "spectral", *norms, *skips]
        return (*first, "activation", *mlp, *norms, "activation"), (*first, *mlp, *norms)
    late: list[BlockStep] = ["spectral", *skips, *norms, "activation", "branch", *mlp]
    return (*late, "activation", "activation"), tuple(late)


def draw_normalization(rng: random.Random, arch: FNOArchitecture) -> Normalization | None:
    """Draw None, or a normalisation with means large against their standard deviations, in units of any size."""
    if rng.random() < 0.3:
        return None
    units = [10.0 ** rng.uniform(-6, 8) for _ in range(arch.in_channels)]
    return Normalization(
        input_mean=tuple(rng.uniform(-300, 300) * unit for unit in units),
        input_std=tuple(rng.uniform(0.5, 2) * unit for unit in units),
        output_mean=tuple(rng.uniform(-9, 9) for _ in range(arch.out_channels)),
        output_std=tuple(10.0 ** rng.uniform(-3, 3) for _ in range(arch.out_channels)),
    )


def network(arch: FNOArchitecture, normalization: Normalization | None = None) -> FNO:
    """Return a float32 network with random parameters that preserve the magnitude of activations."""
    module = FNO(arch, normalization)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            fan_in = parameter.shape[0] if "spectral_weight" in name else parameter.shape[-1]
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(fan_in))
    return module.eval().requires_grad_(False)


def draw_size(rng: random.Random, arch: FNOArchitecture) -> tuple[int, ...]:
    """Draw a grid that holds the modes and is longer than any padding."""
    more = 30 if arch.n_dim < 3 else 9
    return tuple(max(7, least) + rng.randint(0, more) for least in arch.smallest_grid)


def field(module: FNO, batch: int, size: tuple[int, ...]) -> torch.Tensor:
    """Return random float32 input in the network's physical units."""
    x = torch.randn(batch, module.arch.in_channels, *size)
    if not module.normalized:
        return x
    shape = (-1, *[1] * len(size))
    return x * module.input_std.cpu().view(shape) + module.input_mean.cpu().view(shape)


def truth(module: FNO, x: torch.Tensor) -> torch.Tensor:
    """Return the network's output in float64; the network is converted back to float32."""
    with torch.inference_mode():
        expected = module.double()(x.double())
    module.float()
    return expected


def amplification(module: FNO, x: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative error of the float64 output when parameters have a small one, divided by that one.

    Low precision rounds weights and activations, so its error grows with this number.

    Args:
        module: The network.
        x: An input.
        expected: Its output in float64.
    """
    draws, squares = torch.Generator().manual_seed(0), []
    for _ in range(_PERTURBED):
        changed = copy.deepcopy(module).double()
        for parameter in changed.parameters():
            errors = torch.randn(parameter.shape, dtype=parameter.dtype, generator=draws)
            parameter *= 1 + _PERTURBATION * errors
        squares.append((relative_l2(truth(changed, x), expected) / _PERTURBATION) ** 2)
    return math.sqrt(fmean(squares))
