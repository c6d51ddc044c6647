"""Mode placement on small, odd and changing grids, against the rules written with torch.fft."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.architecture import FNOArchitecture, ModePlacement
from turbofno.models.core.fno import FNO
from turbofno.models.core.spectrum import is_plain, spectral
from turbofno_ops import spectral_conv

PLACEMENTS: tuple[ModePlacement, ...] = (
    "exact",
    "centred",
    "floor_window",
    "corners_overwrite",
    "corners_add",
)


def architecture(
    modes: tuple[int, ...],
    placement: ModePlacement,
    *,
    rolled: bool = False,
    scaling: tuple[tuple[float, ...], ...] = (),
) -> FNOArchitecture:
    return FNOArchitecture(
        in_channels=1,
        out_channels=1,
        hidden_channels=3,
        n_layers=1,
        modes=modes,
        mode_placement=placement,
        odd_axes_rolled=rolled,
        resolution_scaling=scaling,
    )


def random_weight(modes: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(3, 3, *modes, dtype=torch.complex128)


def by_corners(x: torch.Tensor, weight: torch.Tensor, *, add: bool) -> torch.Tensor:
    """The original scripts: multiply each corner of the spectrum by its weights; assign or add the results."""
    *others, columns = weight.shape[2:]
    axes = tuple(range(2, x.ndim))
    spectrum = torch.fft.rfftn(x, dim=axes)
    out = torch.zeros_like(spectrum)
    # ++, -+, +-, --: the sign of the first axis changes fastest
    for signs in itertools.product((False, True), repeat=len(others)):
        halves = [m // 2 for m in others]
        pairs = list(zip(reversed(signs), halves, strict=True))
        place = (..., *(slice(-h, None) if neg else slice(h) for neg, h in pairs), slice(columns))
        part = (..., *(slice(h, None) if neg else slice(h) for neg, h in pairs), slice(None))
        product = torch.einsum("bi...,io...->bo...", spectrum[place], weight[part])
        out[place] = out[place] + product if add else product
    return torch.fft.irfftn(out, s=x.shape[2:], dim=axes)


@pytest.mark.parametrize("placement", ["corners_overwrite", "corners_add"])
@pytest.mark.parametrize(
    ("modes", "size"),
    [
        ((5,), (9,)),
        ((8, 4), (5, 7)),
        ((8, 4), (6, 8)),
        ((8, 4), (11, 9)),
        ((6, 8, 4), (5, 5, 9)),
        ((6, 8, 3), (4, 11, 8)),
    ],
)
def test_overlapping_corners(
    placement: ModePlacement, modes: tuple[int, ...], size: tuple[int, ...]
) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    weight = random_weight(modes)
    ours = spectral(x, weight, architecture(modes, placement))
    theirs = by_corners(x, weight, add=placement == "corners_add")
    assert relative_l2(ours, theirs) < 1e-12


def test_rolled_axes_shift_frequencies() -> None:
    size = (7, 9, 6)
    weight = random_weight((4, 5, 3))
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    ours = spectral(x, weight, architecture((4, 5, 3), "exact", rolled=True))
    spectrum = torch.fft.rfftn(x, dim=(2, 3, 4))
    out = torch.zeros_like(spectrum)
    rows = [[0, 1, -2, -1], [0, 1, 2, -2, -1]]
    for i, j in itertools.product(range(4), range(5)):
        kept = spectrum[:, :, rows[0][i], rows[1][j], :3]
        product = torch.einsum("bik,iok->bok", kept, weight[:, :, i, j])
        out[:, :, rows[0][i] - 1, rows[1][j] - 1, :3] = product
    theirs = torch.fft.irfftn(out, s=size, dim=(2, 3, 4))
    assert relative_l2(ours, theirs) < 1e-12


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_on_plain_grids_the_op_alone_computes_the_layer(placement: ModePlacement) -> None:
    rng = random.Random(torch.initial_seed())
    seen = set()
    for _ in range(60):
        even = placement.startswith("corners")
        modes = (rng.choice((4, 6)) if even else rng.randint(3, 7), rng.randint(2, 5))
        size = (rng.randint(4, 9), rng.randint(9, 12))
        arch = architecture(modes, placement, rolled=rng.random() < 0.3)
        x = torch.randn(1, 3, *size, dtype=torch.float64)
        weight = random_weight(modes)
        plain = is_plain(arch, size)
        seen.add(plain)
        if modes[0] > size[0]:
            assert not plain or placement == "exact"
            continue
        same = relative_l2(spectral(x, weight, arch), spectral_conv(x, weight)) < 1e-12
        assert same == plain, (arch, size)
    assert seen == {True, False}


def test_a_truncated_spectrum_loses_its_negative_frequencies() -> None:
    """Halving 12 rows keeps bins 0 .. 5, of which 0 .. 3 are filled, on any output grid."""
    arch = architecture((8, 3), "centred", scaling=((0.5, 1.0),))
    x = torch.randn(2, 3, 12, 10, dtype=torch.float64)
    weight = random_weight((8, 3))
    ours = spectral(x, weight, arch, out_size=(6, 10))
    spectrum = torch.fft.rfftn(x, dim=(2, 3), norm="forward")
    out = torch.zeros_like(spectrum)
    out[:, :, :4, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :4, :3], weight[:, :, :4])
    theirs = torch.fft.irfftn(out, s=(6, 10), dim=(2, 3), norm="forward")
    assert relative_l2(ours, theirs) < 1e-12


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_an_unusual_network_compiles_and_exports() -> None:
    arch = FNOArchitecture(
        in_channels=1,
        out_channels=1,
        hidden_channels=4,
        n_layers=2,
        modes=(5, 3),
        norm="instance_norm",
        mode_placement="floor_window",
        odd_axes_rolled=True,
        resolution_scaling=((1.5, 1.0), (1.0, 0.5)),
        block=("activation", "branch", "tanh", "spectral", "skip", "norm"),
        last_block=("spectral", "norm", "skip"),
    )
    module = FNO(arch).eval().requires_grad_(False)
    x = torch.randn(2, 1, 9, 12)
    expected = module(x)
    assert expected.shape == (2, 1, 14, 6)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(exported.module()(x), expected, rtol=1e-4, atol=1e-5)
