"""The CUDA stages' mix without a GPU: its launches computed by torch from their structures, whole and in slabs."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.turbofno_ops.computed_launches import TABLES, computed
from tests.turbofno_ops.thread_slab import slabs
from turbofno_ops import _cuda_product, _gemm, _shared_product
from turbofno_ops._channels import mix
from turbofno_ops._cuda_product import CudaProduct
from turbofno_ops._slab import Slab
from turbofno_ops._spectral_product import ProductShape, launches, mixed_channels_last
from turbofno_ops._support import A100, Device

CPU = torch.device("cpu")
H100 = Device(132, 232448, True)


def product(
    slab: Slab | None,
    size: tuple[int, ...],
    modes: tuple[int, ...],
    out_size: tuple[int, ...],
    *,
    clusters: int = 0,
    limits: Device = A100,
) -> CudaProduct:
    made = CudaProduct(
        size,
        modes,
        out_size,
        device=CPU,
        precision="fp32",
        limits=limits,
        clusters=clusters,
        settled=True,
        slab=slab,
    )
    TABLES.update({table.data_ptr(): table for table in made.tables})
    return made


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the launches, which are computed here."""
    names: list[str] = []

    def launch(name: str, arguments: Any) -> None:
        names.append(name)
        computed(name, arguments)

    monkeypatch.setattr(_cuda_product, "launch", launch)
    monkeypatch.setattr(_shared_product, "launch", launch)
    return names


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("draw", range(12))
def test_mix_whole_and_in_slabs(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    n_dim, count = rng.choice([2, 3]), rng.choice([2, 3])
    batch, c_in, c_out = (rng.randint(1, 3) for _ in range(3))
    size, out_size = (
        (*(rng.randint(7 * count, 8 * count + 3) for _ in range(n_dim - 1)), 16) for _ in range(2)
    )
    # two modes or an even number: a row has the kept modes only
    modes = (*(rng.randint(1, 5) for _ in range(n_dim - 1)), rng.choice([1, 2, 4]))
    spectra = torch.randn(batch, c_in, *size[:-1], modes[-1], dtype=torch.complex64)
    weight = torch.randn(*modes, c_in, c_out, dtype=torch.complex64)
    z = mix(_gemm.analyze_others(spectra, modes[:-1]), weight)
    expected = _gemm.synthesize_others(z, out_size[:-1])
    whole = product(None, size, modes, out_size)
    channels_last = spectra.movedim(1, -1).contiguous().movedim(-1, 1)
    for given in (spectra, channels_last):
        assert relative(whole(given, weight), expected) < 1e-5

    for sharded, reached in ((False, False), (True, False), (True, True)):
        found = mixed_in_slabs(count, spectra, weight, out_size, sharded=sharded, reached=reached)
        assert relative(found, expected) < 1e-5, (size, modes, out_size, sharded, reached)


def mixed_in_slabs(
    count: int,
    spectra: torch.Tensor,
    weight: torch.Tensor,
    out_size: tuple[int, ...],
    *,
    sharded: bool,
    reached: bool,
) -> torch.Tensor:
    """Return the mix of whole spectra that are cut over `count` threads, at its second run."""
    modes = tuple(weight.shape[:-2])
    size = (*spectra.shape[2:-1], 16)
    group = slabs(count, reached=reached)
    parts = [product(slab, size, modes, out_size) for slab in group]
    weights = [s.share_of(weight.flatten(0, -4)) if sharded else weight for s in group]

    def run(rank: int) -> torch.Tensor:
        part = group[rank].cut(spectra, 2).contiguous()
        parts[rank](part * 2, weights[rank])
        return parts[rank](part, weights[rank])

    with ThreadPoolExecutor(count) as pool:
        return torch.cat(list(pool.map(run, range(count))), dim=2)


@pytest.mark.usefixtures("served_shapes")
@pytest.mark.parametrize("draw", range(12))
def test_small_products_are_one_launch(draw: int, launched: list[str]) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    batch, c_in, c_out = rng.randint(1, 3), 2 * rng.randint(1, 5), 2 * rng.randint(1, 5)
    size, out_size = ((rng.randint(6, 30), 16) for _ in range(2))
    modes = rng.randint(1, 6), rng.choice([2, 3, 4, 5])
    made = product(None, size, modes, out_size, clusters=8)
    row = modes[1] + modes[1] % 2
    spectra = torch.randn(batch, c_in, size[0], row, dtype=torch.complex64)
    weight = torch.randn(*modes, c_in, c_out, dtype=torch.complex64)
    z = mix(_gemm.analyze_others(spectra[..., : modes[1]], modes[:1]), weight)
    found = made(spectra, weight)
    assert launched == ["spectral_product"]
    assert relative(found[..., : modes[1]], _gemm.synthesize_others(z, out_size[:1])) < 1e-6
    assert (found[..., modes[1] :] == 0).all()


@pytest.mark.usefixtures("served_shapes")
@pytest.mark.parametrize("c_in", [1, 3, 32])
@pytest.mark.parametrize("kept", [6, 16, 31])
@pytest.mark.parametrize("n_dim", [2, 3])
@pytest.mark.parametrize("last", [1, 3])
def test_products_of_many_batch_elements_are_one_launch(
    n_dim: int, kept: int, c_in: int, last: int, launched: list[str]
) -> None:
    size, out_size, modes = (32, 9, 16), (45, 8, 16), (kept, 3, last)
    size, out_size, modes = (of if n_dim == 3 else (of[0], of[2]) for of in (size, out_size, modes))
    made = product(None, size, modes, out_size, clusters=8, limits=H100)
    spectra = torch.randn(9, c_in, *size[:-1], last + last // 2, dtype=torch.complex64)
    weight = torch.randn(*modes, c_in, 32, dtype=torch.complex64)
    z = mix(_gemm.analyze_others(spectra[..., :last], modes[:-1]), weight)
    assert made.wants_channels_last(9, 32)
    if c_in == 32:
        spectra = spectra.movedim(1, -1).contiguous().movedim(-1, 1)
    found = made(spectra, weight)
    between = ["transform_axis"] * (n_dim - 2)
    first = [*between, "batched_spectral_product", *between]
    axes = ["transform_axis"] * (n_dim - 1)
    assert launched == (first if c_in == 32 else [*axes, "multiply_modes", *axes])
    assert found.movedim(1, -1).is_contiguous()
    assert relative(found[..., :last], _gemm.synthesize_others(z, out_size[:-1])) < 1e-6
    assert (found[..., last:] == 0).all()


@pytest.mark.usefixtures("served_shapes")
@pytest.mark.parametrize("channels_last", [False, True])
def test_many_modes_of_powers_of_two_are_transformed_by_ffts(
    channels_last: bool, launched: list[str]
) -> None:
    size, out_size, modes = (64, 9, 16), (128, 12, 16), (32, 5, 3)
    spectra = torch.randn(2, 4, *size[:2], 4, dtype=torch.complex64)
    weight = torch.randn(*modes, 4, 6, dtype=torch.complex64)
    z = mix(_gemm.analyze_others(spectra[..., :3], modes[:2]), weight)
    expected = _gemm.synthesize_others(z, out_size[:2])
    if channels_last:
        spectra = spectra.movedim(1, -1).contiguous().movedim(-1, 1)
    found = product(None, size, modes, out_size)(spectra, weight)
    assert launched == [
        "transform_axis", "mixed_radix_fft", "multiply_modes", "mixed_radix_fft", "transform_axis"
    ]  # fmt: skip
    assert relative(found[..., :3], expected) < 1e-6
    assert (found[..., 3:] == 0).all()
    assert found.movedim(1, -1).is_contiguous() == channels_last


@pytest.mark.usefixtures("served_shapes")
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("reached", [False, True])
@pytest.mark.parametrize(("rows", "out_rows"), [(64, 64), (64, 128), (128, 64), (80, 64)])
def test_two_slabs_that_keep_half_of_an_axis_are_transformed_by_ffts(
    rows: int, out_rows: int, sharded: bool, reached: bool, launched: list[str]
) -> None:
    count = 2
    modes = 32, 33, 4
    spectra = torch.randn(2, 3, rows, 64, 4, dtype=torch.complex64)
    weight = torch.randn(*modes, 3, 2, dtype=torch.complex64)
    z = mix(_gemm.analyze_others(spectra, modes[:2]), weight)
    found = mixed_in_slabs(
        count, spectra, weight, (out_rows, 64, 16), sharded=sharded, reached=reached
    )
    assert relative(found, _gemm.synthesize_others(z, (out_rows, 64))) < 1e-6
    dense = (rows != 64) + (out_rows != 64)
    assert launched.count("transform_axis") == 2 * count * dense
    assert launched.count("mixed_radix_fft") == 2 * count * (4 - dense)


@pytest.mark.usefixtures("served_shapes")
@pytest.mark.parametrize(
    ("batch", "channels", "modes", "last"),
    [
        (32, 64, (64, 32), True), (8, 64, (32, 16), True), (8, 64, (32, 15), True), (1024, 64, (16,), True),
        (1, 64, (64, 32), False), (32, 33, (64, 32), False), (1, 64, (16,), False),
        # modes of a row times batch elements times channels
        (64, 32, (24, 12), True), (43, 32, (24, 12), True), (42, 32, (24, 12), False), (512, 16, (24, 12), False),
        (512, 64, (12,), False),
    ],
)  # fmt: skip
def test_channels_are_last_where_that_is_faster(
    batch: int, channels: int, modes: tuple[int, ...], last: bool
) -> None:
    size = (128,) * len(modes)
    found = product(None, size, modes, size)
    assert found.wants_channels_last(batch, channels) == last
    # spectra of a network's input change to the order that is faster for the following products, but for long rows
    if modes[-1] < 15:
        shape = found._shape(batch, 3, channels, channels_last=False)
        assert mixed_channels_last(shape) == last


SEPARATE = ["transform_axis", "multiply_modes", "transform_axis"]
BATCHED = ["batched_spectral_product"]


@pytest.mark.usefixtures("served_shapes")
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["spectral_product"]),
        ({"batch": 4}, ["spectral_product"]),
        ({"batch": 8}, SEPARATE),
        ({"size": (421, 421), "out_size": (64, 64)}, ["spectral_product"]),
        ({"modes": (16, 9), "size": (16, 16), "out_size": (16, 16)}, SEPARATE),
        ({"modes": (64, 32), "size": (421, 421), "out_size": (421, 421)}, SEPARATE),
        (
            {"modes": (128, 64), "size": (256, 256), "out_size": (256, 256)},
            ["mixed_radix_fft", "multiply_modes", "mixed_radix_fft"],
        ),
        ({"channels_last": True}, SEPARATE),
        ({"batch": 9, "channels_last": True}, BATCHED),
        ({"batch": 4096, "channels_last": True}, BATCHED),
        ({"batch": 32, "channels_last": True, "modes": (24, 12)}, BATCHED),
        ({"batch": 64, "channels_last": True, "modes": (24, 12)}, SEPARATE),
        ({"batch": 9, "channels_last": True, "c_in": 96, "c_out": 96}, SEPARATE),
        ({"batch": 9, "channels_last": True, "c_out": 32}, SEPARATE),
        ({"batch": 9, "channels_last": True, "warpgroups": False}, SEPARATE),
        ({"batch": 8, "channels_last": True}, SEPARATE),
        ({"batch": 9, "channels_last": True, "size": (513, 128)}, SEPARATE),
        (
            {"batch": 9, "channels_last": True, "modes": (32, 9)},
            ["mixed_radix_fft", "multiply_modes", "mixed_radix_fft"],
        ),
        # one block fits on a multiprocessor, not two
        ({"batch": 16, "channels_last": True, "modes": (31, 12)}, BATCHED),
        ({"batch": 24, "channels_last": True, "modes": (31, 12)}, SEPARATE),
        ({"batch": 9}, SEPARATE),
        (
            {
                "modes": (64, 32),
                "size": (100, 128),
                "out_size": (100, 128),
                "cut": (256, 256),
                "clusters": 0,
            },
            SEPARATE,
        ),
        (
            {"modes": (128, 32), "size": (128, 128), "cut": (256, 421), "clusters": 0},
            ["mixed_radix_fft", "multiply_modes", "transform_axis"],
        ),
        ({"c_in": 33}, SEPARATE),
        ({"clusters": 0}, SEPARATE),
        ({"size": (128,), "out_size": (128,), "modes": (16,)}, ["multiply_modes"]),
        (
            {"size": (16, 16, 16), "out_size": (16, 16, 16), "modes": (4, 4, 4)},
            [*SEPARATE[:1], *SEPARATE, *SEPARATE[:1]],
        ),
    ],
)
def test_one_launch_where_it_is_served_and_faster(
    changes: dict[str, Any], names: list[str]
) -> None:
    of: dict[str, Any] = {
        "batch": 1, "c_in": 64, "c_out": 64, "size": (128, 128), "out_size": (128, 128),
        "modes": (16, 9), "precision": "fp32", "multiprocessors": 132, "shared_bytes": 232448,
        "warpgroups": True, "clusters": 8,
    }  # fmt: skip
    assert [one.name for one in launches(ProductShape(**of | changes))] == names
