"""The spectral product of many batch elements on a GPU, one launch: drawn shapes against float64 in poisoned memory."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2
from tests.turbofno_ops.on_gpu import needs_kernels, poison
from turbofno_ops import _gemm, _spectra
from turbofno_ops._channels import mix
from turbofno_ops._cuda_product import CudaProduct
from turbofno_ops._support import device_clusters, device_limits
from turbofno_ops.description import Size

DEVICE = torch.device("cuda", 0)
LAST = 64  # points of the last axis

pytestmark = [needs_kernels, pytest.mark.usefixtures("strict_float32")]


@pytest.fixture(autouse=True)
def warpgroups() -> None:
    if not device_limits(DEVICE).warpgroups:
        pytest.skip("the code for this card has no wgmma")


def product(
    size: Size,
    out_size: Size,
    modes: Size,
    *,
    precision: str = "fp32",
    settled: bool = True,
) -> CudaProduct:
    return CudaProduct(
        size,
        modes,
        out_size,
        device=DEVICE,
        precision=precision,
        limits=device_limits(DEVICE),
        clusters=device_clusters(DEVICE),
        settled=settled,
        slab=None,
    )


def is_batched(of: CudaProduct, batch: int, channels: int) -> bool:
    planned = of._planned(batch, channels, channels, True, 1).launches
    return "batched_spectral_product" in {one.name for one in planned}


def on_card(spectra: torch.Tensor) -> torch.Tensor:
    """Spectra with the channels last in memory."""
    batch, channels, *others = spectra.shape
    stored = _spectra.empty((batch, channels, *others), DEVICE, channels_last=True)
    return stored.copy_(spectra)


def computed(spectra: torch.Tensor, weight: torch.Tensor, others: Size) -> torch.Tensor:
    """The spectral product by plain torch, in the tensors' precision."""
    modes = weight.shape[:-2]
    z = _gemm.analyze_others(spectra[..., : modes[-1]], modes[:-1])
    return _gemm.synthesize_others(mix(z, weight), others)


@pytest.mark.parametrize("draw", range(tried(40, 300)))
def test_drawn_products_equal_float64(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    n_dim = rng.choice([2, 2, 3])
    most = 200 if n_dim == 2 else 24
    size, out_size = (
        (*(rng.choice([rng.randint(1, 40), rng.randint(1, most)]) for _ in range(n_dim - 1)), LAST)
        for _ in range(2)
    )
    if draw % 3 == 0:
        out_size = size
    bounds = [min(n, m, 31 if axis == 0 else 6) for axis, (n, m) in enumerate(zip(size[:-1], out_size[:-1], strict=True))]  # fmt: skip
    kept = [rng.choice([rng.randint(1, bound), bound]) for bound in bounds]
    modes = (*kept, rng.choice([1, 2, rng.randint(3, 20)]))
    channels = rng.choice([32, 64, 128])
    batch = rng.choice([rng.randint(8, 20), rng.randint(8, 70)])
    precision = rng.choice(["fp32", "fp32", "tf32"])
    made = product(size, out_size, modes, precision=precision, settled=draw % 2 == 0)
    if not is_batched(made, batch, channels):
        pytest.skip("separate launches are faster")
    row = modes[-1] + (modes[-1] % 2 if modes[-1] > 1 else 0)
    weight = torch.randn(*modes, channels, channels, dtype=torch.complex64)
    spectra = torch.randn(batch, channels, *size[:-1], row, dtype=torch.complex64)
    expected = computed(spectra.cdouble(), weight.cdouble(), out_size[:-1])
    own = relative_l2(computed(spectra, weight, out_size[:-1]), expected)
    poison()
    found = made(on_card(spectra), weight.cuda()).cpu()
    assert (found[..., modes[-1] :] == 0).all()
    error = relative_l2(found[..., : modes[-1]], expected)
    bound = 2 * max(own, 1e-7) if precision == "fp32" else 2e-3
    assert error < bound, (batch, channels, size, out_size, modes, precision)


@pytest.mark.parametrize("channels", [32, 64])
def test_nan_stays_in_its_batch_element(channels: int) -> None:
    made = product((30, LAST), (33, LAST), (12, 9))
    weight = torch.randn(12, 9, channels, channels, dtype=torch.complex64, device=DEVICE)
    spectra = on_card(torch.randn(19, channels, 30, 10, dtype=torch.complex64))
    assert is_batched(made, 19, channels)
    expected = made(spectra, weight)
    spectra[17, 2, 3] = math.nan
    found = made(spectra, weight)
    others = [b for b in range(19) if b != 17]
    assert torch.equal(found[others], expected[others])
    assert found[17, ..., :9].isnan().all()


def test_batch_elements_do_not_depend_on_others() -> None:
    made = product((64, LAST), (64, LAST), (24, 12))
    weight = torch.randn(24, 12, 32, 32, dtype=torch.complex64, device=DEVICE)
    spectra = on_card(torch.randn(32, 32, 64, 12, dtype=torch.complex64))
    expected = made(spectra, weight)
    assert is_batched(made, 32, 32)
    assert is_batched(made, 16, 32)
    for first in range(0, 16, 5):
        assert torch.equal(
            made(on_card(spectra[first : first + 16]), weight), expected[first : first + 16]
        )


def test_replays_follow_their_inputs() -> None:
    """Many in a row, as in a chain: each starts before the one before it has ended."""
    made = product((64, LAST), (64, LAST), (24, 12))
    weight = torch.randn(24, 12, 32, 32, dtype=torch.complex64, device=DEVICE) / 32**0.5
    given = on_card(torch.randn(32, 32, 64, 12, dtype=torch.complex64))
    assert is_batched(made, 32, 32)

    def chain() -> torch.Tensor:
        z = given
        for _ in range(12):
            z = made(z, weight)
        return z

    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for _ in range(20):
        given.copy_(torch.randn_like(given))
        graph.replay()
        assert torch.equal(out, chain())


@pytest.mark.parametrize("last", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_few_channels_become_many_that_are_last(channels: int, last: int) -> None:
    size, modes, row = (20, LAST), (9, last), last + last // 2 * (last % 2)
    made = product(size, size, modes)
    weight = torch.randn(*modes, channels, 32, dtype=torch.complex64)
    spectra = torch.randn(17, channels, size[0], row, dtype=torch.complex64)
    expected = computed(spectra.cdouble(), weight.cdouble(), size[:-1])
    given = spectra.cuda()
    given[3, 0, 5] = math.nan
    poison()
    found = made(given, weight.cuda())
    assert found.movedim(1, -1).is_contiguous()
    found = found.cpu()
    assert found[3, ..., :last].isnan().all()
    others = [b for b in range(17) if b != 3]
    assert relative_l2(found[others][..., :last], expected[others]) < 1e-6
    assert (found[..., last:] == 0).all()
