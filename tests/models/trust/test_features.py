"""Features of waves with known energy, and the distance of similar and different fields."""

from __future__ import annotations

import math

import pytest
import torch

from turbofno.models.trust.calibrate import distribution_of
from turbofno.models.trust.features import FLOOR, distance, features, linear_features, octaves

GRIDS = [(32,), (27,), (16, 24), (21, 21), (8, 10, 9)]


def waves(
    grid: tuple[int, ...], k: tuple[int, ...], amplitude: float, phase: float
) -> torch.Tensor:
    """amplitude cos(2 pi k.x + phase) at x_i = j / n_i, float64."""
    axes = [torch.arange(n, dtype=torch.float64) / n for n in grid]
    mesh = torch.meshgrid(*axes, indexing="ij")
    angle = sum((2 * math.pi * ki * x for ki, x in zip(k, mesh, strict=True)), torch.zeros(()))
    return amplitude * torch.cos(angle + phase)


@pytest.mark.parametrize("grid", GRIDS)
def test_features_of_a_sum_of_waves(grid: tuple[int, ...]) -> None:
    seed = int(torch.randint(1 << 30, ()))
    generator = torch.Generator().manual_seed(seed)

    def draw() -> float:
        return 0.5 + torch.rand((), generator=generator).item()

    long, short = (1,) * len(grid), (-2,) + (1,) * (len(grid) - 1)
    mean, a, b, phase = draw(), draw(), draw(), draw()
    field = mean + waves(grid, long, a, phase) + waves(grid, short, b, draw())
    scale = torch.tensor([draw()], dtype=torch.float64)
    found = features(field[None, None], scale)[0, 0]
    linear = linear_features(len(grid))
    floor = FLOOR * scale.item() ** 2
    assert found[0].item() == pytest.approx(mean), seed
    # one wave of those with all |k_i| <= 1: its coefficient, and nothing in the others
    size = found[1:linear].square().sum().sqrt().item()
    if len(grid) > 1 or short != (-2,):
        assert size == pytest.approx(a / 2), seed
    energies = (found[linear:].exp() - floor).tolist()
    assert energies[0] == pytest.approx(a**2 / 2 + b**2 / 2, abs=1e-9), seed
    assert energies[1] == pytest.approx(a**2 / 2, abs=1e-9), seed
    assert energies[2:] == pytest.approx([b**2 / 2] + [0] * (len(energies) - 3), abs=1e-9), seed
    assert len(energies) == 1 + octaves(grid)


def test_the_variance_feature_on_odd_and_even_grids() -> None:
    for grid in GRIDS:
        field = torch.randn(3, 2, *grid, dtype=torch.float64)
        found = features(field, torch.ones(2, dtype=torch.float64))
        axes = tuple(range(2, field.ndim))
        variance = field.var(axes, correction=0)
        torch.testing.assert_close(found[..., linear_features(len(grid))].exp() - FLOOR, variance)
        torch.testing.assert_close(found[..., 0], field.mean(axes))


def smooth_fields(count: int, n: int) -> torch.Tensor:
    """Random sums of the first six waves, the same functions on every grid, [count, 1, n]."""
    generator = torch.Generator().manual_seed(7)
    k = torch.arange(1, 7)
    x = torch.arange(n) / n
    angles = 2 * math.pi * torch.outer(k.float(), x)
    sine, cosine = torch.randn(2, count, 6, generator=generator) / k
    return (sine @ angles.sin() + cosine @ angles.cos()).unsqueeze(1)


def test_one_in_a_hundred_training_fields_is_beyond_the_edge_on_any_grid() -> None:
    fields = smooth_fields(2000, 64)
    known = distribution_of(fields, fields.std().view(1))
    mean, deviation = (torch.tensor([v]) for v in (known.inputs[0].mean, known.inputs[0].std))
    for n in (32, 64, 300, 20_000):
        found = features(smooth_fields(2000, n), fields.std().view(1))
        share = (distance(found, mean, deviation) > known.edge).float().mean().item()
        assert share == pytest.approx(0.01, abs=0.01), n


@pytest.mark.parametrize("what", ["larger", "offset", "noisy", "shorter"])
def test_fields_unlike_the_training_data_are_far(what: str) -> None:
    fields = smooth_fields(1000, 64)
    known = distribution_of(fields, fields.std().view(1))
    mean, deviation = (torch.tensor([v]) for v in (known.inputs[0].mean, known.inputs[0].std))
    other = {
        "larger": 5 * fields,
        "offset": fields + 0.5 * fields.std(),
        "noisy": fields + 0.2 * fields.std() * torch.randn(fields.shape),
        "shorter": torch.cat([fields, fields], dim=-1),
    }[what]
    far = distance(features(other, fields.std().view(1)), mean, deviation) / known.edge
    assert far.median() > 1.2, far.median()
