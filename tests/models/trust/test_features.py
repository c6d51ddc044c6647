"""Features of waves with known energy, and the distance of similar and different fields."""

from __future__ import annotations

import math

import pytest
import torch

from turbofno.models.core.statistics import InputDistribution
from turbofno.models.trust import features as module
from turbofno.models.trust.calibrate import distribution_of
from turbofno.models.trust.features import (
    FLOOR,
    distance,
    features,
    linear_features,
    octaves,
    resolved_features,
    spectrum_of,
    with_finer_octaves,
)
from turbofno_ops import fft

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
    assert len(energies) == 1 + (max(grid) // 2).bit_length()
    assert resolved_features(grid) == linear + 1 + octaves(grid)


@pytest.mark.parametrize("grid", [*GRIDS, (8, 30), (30, 8), (5, 4, 18)])
def test_every_wave_is_in_one_octave(grid: tuple[int, ...]) -> None:
    field = torch.randn(2, 1, *grid, dtype=torch.float64)
    energies = features(field, torch.ones(1, dtype=torch.float64))[
        ..., linear_features(len(grid)) :
    ]
    variance, *parts = (energies.exp() - FLOOR).unbind(-1)
    torch.testing.assert_close(torch.stack(parts).sum(0), variance)


@pytest.mark.parametrize("grid", [(32,), (27,), (16, 24), (21, 9), (8, 10, 9)])
def test_averaging_over_blocks_leaves_out_no_point(
    grid: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_POINTS", {1: 8, 2: 8, 3: 4})
    scale = torch.ones(1, dtype=torch.float64)
    for place in range(0, math.prod(grid), 7):
        field = torch.zeros(math.prod(grid), dtype=torch.float64)
        field[place] = 10.0
        found = features(field.view(1, 1, *grid), scale)[0, 0, linear_features(len(grid)) :]
        variance, *parts = found.exp() - FLOOR
        assert variance > 0.98 * field.var(correction=0), place
        torch.testing.assert_close(torch.stack(parts).sum(), variance)


def test_waves_that_averaging_removes_are_in_the_last_octave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_POINTS", {1: 8, 2: 8, 3: 4})
    scale = torch.ones(1, dtype=torch.float64)
    for grid in ((32,), (16, 24), (8, 8, 12)):
        wave = 3 * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(grid[-1] // 2).expand(grid)
        long = waves(grid, (1,) * len(grid), 1.0, 0.3)
        smooth, rough = (
            features(one[None, None], scale)[0, 0, linear_features(len(grid)) :].exp() - FLOOR
            for one in (long, long + wave)
        )
        assert smooth[0].item() == pytest.approx(0.5, rel=0.02)
        added = torch.zeros_like(smooth)
        added[[0, -1]] = 9.0
        torch.testing.assert_close(rough - smooth, added, rtol=0.01, atol=1e-12)
        # averaging damps the octave before the last: it does not count in full either
        assert resolved_features(grid) <= linear_features(len(grid)) + len(smooth) - 2


def test_the_variance_feature_on_odd_and_even_grids() -> None:
    for grid in GRIDS:
        field = torch.randn(3, 2, *grid, dtype=torch.float64)
        found = features(field, torch.ones(2, dtype=torch.float64))
        axes = tuple(range(2, field.ndim))
        variance = field.var(axes, correction=0)
        torch.testing.assert_close(found[..., linear_features(len(grid))].exp() - FLOOR, variance)
        torch.testing.assert_close(found[..., 0], field.mean(axes))


def test_features_do_not_depend_on_the_norm_of_the_transform(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for grid in GRIDS:
        field, scale = torch.randn(2, 1, *grid, dtype=torch.float64), torch.ones(1)
        with monkeypatch.context() as patch:
            expected = features(field, scale)
            patch.setattr(fft, "is_preferred", lambda *_, **__: True)
            assert spectrum_of(field).factor == 1 / math.prod(grid)
            torch.testing.assert_close(features(field, scale), expected)


@pytest.mark.parametrize(
    ("grid", "count"),
    [((1,), 0), ((3,), 0), ((4,), 1), ((7,), 1), ((8,), 2), ((5, 64), 1), ((64, 64, 5), 1)],
)
def test_an_octave_counts_if_every_axis_resolves_it(grid: tuple[int, ...], count: int) -> None:
    assert octaves(grid) == count
    assert resolved_features(grid) == linear_features(len(grid)) + 1 + count


def test_energy_that_rises_is_expected_to_rise_in_finer_octaves_too() -> None:
    known = torch.tensor([[0.0, 1.0, 3.0], [0.0, 3.0, 1.0]])
    mean, deviation = with_finer_octaves(known, torch.tensor([[1.0, 1.0, 2.0], [1.0, 1.0, 0.5]]))
    assert mean[0].tolist() == [0.0, 1.0, *(3.0 + 2.0 * octave for octave in range(17))]
    assert mean[1].tolist() == [0.0, 3.0, *[1.0] * 17]
    assert deviation.tolist() == [[1.0, 1.0, *[2.0] * 17], [1.0, 1.0, *[0.5] * 17]]


def smooth_fields(count: int, n: int) -> torch.Tensor:
    """Random sums of the first six waves, the same functions on every grid, [count, 1, n]."""
    generator = torch.Generator().manual_seed(7)
    k = torch.arange(1, 7)
    x = torch.arange(n) / n
    angles = 2 * math.pi * torch.outer(k.float(), x)
    sine, cosine = torch.randn(2, count, 6, generator=generator) / k
    return (sine @ angles.sin() + cosine @ angles.cos()).unsqueeze(1)


def apart(fields: torch.Tensor, known: InputDistribution, std: torch.Tensor) -> torch.Tensor:
    """Distance [n] of fields [n, 1, *grid] from a distribution."""
    mean, deviation = (torch.tensor([v]) for v in (known.inputs[0].mean, known.inputs[0].std))
    resolved = min(mean.shape[-1], resolved_features(tuple(fields.shape[2:])))
    found = features(fields, std.view(1))
    return distance(found, *with_finer_octaves(mean, deviation), resolved)


def test_one_in_a_hundred_training_fields_is_beyond_the_edge_on_any_grid() -> None:
    fields = smooth_fields(2000, 64)
    known = distribution_of(fields, fields.std().view(1))
    for n in (32, 45, 64, 300, 20_000, 32_768):
        far = apart(smooth_fields(2000, n), known, fields.std())
        assert (far > known.edge).float().mean().item() == pytest.approx(0.01, abs=0.01), n


def test_what_no_training_field_varies_has_a_least_deviation() -> None:
    fields = torch.randn(1, 2, 32) + 1e-5 * torch.randn(100, 2, 32)
    known = distribution_of(fields, torch.tensor([2.0, 3.0]))
    linear, others = linear_features(1), 1 + octaves((32,))
    assert [one.std for one in known.inputs] == [
        (*[least] * linear, *[0.05] * others) for least in (0.02, 0.03)
    ]


@pytest.mark.parametrize("grid", [(45,), (85, 85), (21, 21, 21)])
def test_octaves_that_the_training_grid_does_not_resolve_add_nothing_for_white_noise(
    grid: tuple[int, ...],
) -> None:
    known = distribution_of(torch.randn(200, 1, *grid), torch.ones(1))
    # On a grid twice as fine each octave has as much more energy as it has more waves.
    for sizes in (grid, tuple(2 * n for n in grid)):
        fields = torch.randn(20, 1, *sizes)
        found = features(fields, torch.ones(1))
        resolved = len(known.inputs[0].mean)
        mean, deviation = (torch.tensor([v]) for v in (known.inputs[0].mean, known.inputs[0].std))
        first = distance(found[..., :resolved], mean, deviation, resolved)
        torch.testing.assert_close(apart(fields, known, torch.ones(())), first, rtol=0.05, atol=0)


@pytest.mark.parametrize(
    ("n", "wave", "share"),
    [(64, 32, 0.1), (45, 20, 0.1), (128, 32, 0.1), (300, 140, 0.1), (20_000, 9999, 0.3)],
)
def test_waves_beyond_those_of_the_training_grid_are_far(n: int, wave: int, share: float) -> None:
    fields = smooth_fields(1000, min(n, 64))
    known = distribution_of(fields, fields.std().view(1))
    on_grid = smooth_fields(10, n)
    noise = share * fields.std() * waves((n,), (wave,), 1.0, 0.0).float()
    assert apart(on_grid, known, fields.std()).max() < 1.5 * known.edge
    assert apart(on_grid + noise, known, fields.std()).min() > 2 * known.edge


@pytest.mark.parametrize("what", ["larger", "offset", "noisy", "shorter"])
def test_fields_unlike_the_training_data_are_far(what: str) -> None:
    fields = smooth_fields(1000, 64)
    known = distribution_of(fields, fields.std().view(1))
    other = {
        "larger": 5 * fields,
        "offset": fields + 0.5 * fields.std(),
        "noisy": fields + 0.2 * fields.std() * torch.randn(fields.shape),
        "shorter": torch.cat([fields, fields], dim=-1),
    }[what]
    far = apart(other, known, fields.std()) / known.edge
    assert far.median() > 1.2, far.median()
