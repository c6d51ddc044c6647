"""Networks drawn at random over everything that a chain serves, with inputs to match."""

from __future__ import annotations

import math
import random

import torch

from models.config import DomainPadding, FNOArchitecture, Normalization
from models.fno import FNO
from turbofno_ops import ACTIVATIONS


def draw_architecture(rng: random.Random, n_dim: int) -> FNOArchitecture:
    """One or two axes; every skip, positions, padding, lifting and projection that a chain serves."""
    modes = tuple(rng.randint(1, 9) for _ in range(n_dim))
    amounts = tuple(rng.randint(0, 6) for _ in range(n_dim))
    sides = rng.choice(["end", "both"])
    paddings = [
        None,
        DomainPadding(points=amounts, sides=sides),
        DomainPadding(fraction=tuple(amount / 30 for amount in amounts), sides=sides),
    ]
    return FNOArchitecture(
        in_channels=rng.randint(1, 4),
        out_channels=rng.randint(1, 3),
        hidden_channels=rng.choice([1, 6, 8, 20, 32]),
        n_layers=rng.randint(1, 4),
        modes=modes,
        activation=rng.choice(ACTIVATIONS),
        lifting_activation=rng.choice([None, *ACTIVATIONS]),
        projection_activation=rng.choice([None, *ACTIVATIONS]),
        lifting_channels=rng.choice([(), (), (12,), (7, 9)]),
        projection_channels=rng.choice([(), (16,), (40,), (12, 10), (300,)]),
        skip=rng.choice(["linear", "linear", "soft-gating", "identity", "none"]),
        skip_bias=rng.random() < 0.5,
        spectral_bias=rng.random() < 0.5,
        positional_grid=rng.choice(["none", "endpoint_excluded", "endpoint_included"]),
        domain_padding=rng.choice(paddings),
    )


def draw_normalization(rng: random.Random, arch: FNOArchitecture) -> Normalization | None:
    """None, or one with means that are large for their standard deviations, and units of any size."""
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
    """A float32 network, all of whose parameters are random and keep the size of what passes through."""
    module = FNO(arch, normalization)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            fan_in = parameter.shape[0] if "spectral_weight" in name else parameter.shape[-1]
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(fan_in))
    return module.eval().requires_grad_(False)


def draw_size(rng: random.Random, arch: FNOArchitecture) -> tuple[int, ...]:
    """A grid that holds the modes, odd and prime sizes as likely as any."""
    return tuple(least + rng.randint(0, 30) for least in arch.smallest_grid)


def field(module: FNO, batch: int, size: tuple[int, ...]) -> torch.Tensor:
    """Random input in the network's physical units, float32."""
    x = torch.randn(batch, module.arch.in_channels, *size)
    if not module.normalized:
        return x
    shape = (-1, *[1] * len(size))
    return x * module.input_std.cpu().view(shape) + module.input_mean.cpu().view(shape)


def truth(module: FNO, x: torch.Tensor) -> torch.Tensor:
    """The network's output in float64; the network comes back in float32."""
    with torch.inference_mode():
        expected = module.double()(x.double())
    module.float()
    return expected
