"""The spectral product of few batch elements on a GPU, one launch: drawn shapes against float64 in poisoned memory."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2
from tests.turbofno_ops.on_gpu import needs_kernels, poison
from turbofno_ops import _gemm
from turbofno_ops._channels import mix
from turbofno_ops._cuda_product import CudaProduct
from turbofno_ops._support import device_clusters, device_limits

DEVICE = torch.device("cuda", 0)
LAST = 64  # points of the last axis

pytestmark = [needs_kernels, pytest.mark.usefixtures("strict_float32")]


@pytest.fixture(autouse=True)
def clusters() -> int:
    """Clusters that the card runs at once."""
    found = device_clusters(DEVICE)
    if not found:
        pytest.skip("this card runs no clusters of 16 thread blocks")
    return found


def product(
    rows: int, out_rows: int, modes: tuple[int, int], clusters: int, *, settled: bool = True
) -> CudaProduct:
    return CudaProduct(
        (rows, LAST),
        modes,
        (out_rows, LAST),
        device=DEVICE,
        precision="fp32",
        limits=device_limits(DEVICE),
        clusters=clusters,
        settled=settled,
        slab=None,
    )


def names(of: CudaProduct, batch: int, weight: torch.Tensor) -> list[str]:
    return [one.name for one in of._planned(batch, *weight.shape[-2:], False, len(weight)).launches]


def computed(spectra: torch.Tensor, weight: torch.Tensor, out_rows: int) -> torch.Tensor:
    """The spectral product by plain torch, in the tensors' precision."""
    modes = weight.shape[:2]
    z = _gemm.analyze_others(spectra[..., : modes[1]], modes[:1])
    return _gemm.synthesize_others(mix(z, weight), (out_rows,))


@pytest.mark.parametrize("draw", range(tried(40, 300)))
def test_drawn_products_equal_float64(draw: int, clusters: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    rows, out_rows = (rng.choice([rng.randint(1, 40), rng.randint(1, 200)]) for _ in range(2))
    if draw % 3 == 0:
        out_rows = rows
    kept = rng.choice([rng.randint(1, min(rows, out_rows, 48)), min(rows, out_rows, 32)])
    modes = kept, rng.choice([2, rng.randint(3, 32)])
    channels = tuple(2 * rng.choice([1, 4, 10, 16, 32, rng.randint(1, 64)]) for _ in range(2))
    row = modes[1] + modes[1] % 2
    weight = torch.randn(*modes, *channels, dtype=torch.complex64)
    made, batch = product(rows, out_rows, modes, clusters, settled=draw % 2 == 0), rng.randint(1, 4)
    while names(made, batch, weight) != ["spectral_product"]:
        if batch == 1:
            pytest.skip("separate launches are faster")
        batch -= 1
    spectra = torch.randn(batch, channels[0], rows, row, dtype=torch.complex64)
    expected = computed(spectra.cdouble(), weight.cdouble(), out_rows)
    own = relative_l2(computed(spectra, weight, out_rows), expected)
    poison()
    found = made(spectra.cuda(), weight.cuda()).cpu()
    assert (found[..., modes[1] :] == 0).all()
    error = relative_l2(found[..., : modes[1]], expected)
    assert error < 2 * max(own, 1e-7), (batch, channels, rows, out_rows, modes)


def test_nan_stays_in_its_batch_element(clusters: int) -> None:
    made = product(30, 33, (12, 9), clusters)
    weight = torch.randn(12, 9, 20, 20, dtype=torch.complex64, device=DEVICE)
    spectra = torch.randn(3, 20, 30, 10, dtype=torch.complex64, device=DEVICE)
    assert names(made, 3, weight) == ["spectral_product"]
    expected = made(spectra, weight)
    spectra[1, 2, 3] = math.nan
    found = made(spectra, weight)
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert found[1, ..., :9].isnan().all()


def test_replays_follow_their_inputs(clusters: int) -> None:
    """Many in a row, as in a chain: each starts before the one before it has ended."""
    made = product(64, 64, (24, 12), clusters)
    weight = torch.randn(24, 12, 32, 32, dtype=torch.complex64, device=DEVICE) / 32**0.5
    given = torch.randn(1, 32, 64, 12, dtype=torch.complex64, device=DEVICE)

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
