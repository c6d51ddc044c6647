"""The CUDA stages' mix without a GPU: its launches computed by torch from their structures, whole and in slabs."""

from __future__ import annotations

import ctypes
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch

from tests.turbofno_ops.test_axis_tables import transform
from turbofno_ops import _cuda_product, _gemm
from turbofno_ops._channels import mix
from turbofno_ops._cuda_product import CudaProduct
from turbofno_ops._native import Product, Transform
from turbofno_ops._slab import Slab

CPU = torch.device("cpu")
_tables: dict[int, torch.Tensor] = {}


def memory(address: int, count: int) -> torch.Tensor:
    """Return the complex numbers at an address."""
    floats = (ctypes.c_float * (2 * count)).from_address(address)
    return torch.frombuffer(floats, dtype=torch.complex64)


def computed(name: str, a: Any) -> None:
    """Compute a launch, as turbofno.h describes it."""
    if isinstance(a, Transform):
        columns = a.outer * a.inner
        modes = a.modes, a.pitch
        if a.inverse:
            given = memory(a.input, a.modes * a.pitch).view(modes)[:, :columns]
        else:
            given = memory(a.input, a.points * columns).view(a.outer, a.points, a.inner)
            given = given.movedim(1, 0).reshape(a.points, columns)
        count = a.points if a.inverse else a.modes
        table = _tables[a.table]
        done = torch.stack([transform(table, column, count) for column in given.T.cdouble()], 1)
        done = done.to(torch.complex64)
        if a.inverse:
            out = memory(a.out, a.points * columns).view(a.outer, a.points, a.inner)
            out.copy_(done.view(a.points, a.outer, a.inner).movedim(0, 1))
        else:
            memory(a.out, a.modes * a.pitch).view(modes)[:, :columns] = done
        return
    assert isinstance(a, Product)
    rows = a.batch * a.row_modes
    z = memory(a.input, a.others * a.in_pitch).view(a.others, a.in_pitch)[:, : rows * a.c_in]
    z = z.view(a.others, a.batch, a.c_in, a.row_modes)[..., : a.modes]
    weight = memory(a.weight, a.others * a.modes * a.c_in * a.c_out)
    weight = weight.view(a.others, a.modes, a.c_in, a.c_out)
    out = memory(a.out, a.others * a.out_pitch).view(a.others, a.out_pitch)[:, : rows * a.c_out]
    out = out.view(a.others, a.batch, a.c_out, a.row_modes)
    out[..., a.modes :] = 0
    out[..., : a.modes] = torch.einsum("kbcm,kmco->kbom", z, weight)


class ThreadSlab(Slab):
    """A slab whose processes are threads."""

    shared: list[torch.Tensor]
    barrier: threading.Barrier

    def _all(self, part: torch.Tensor) -> list[torch.Tensor]:
        self.shared[self.rank] = part.clone()
        self.barrier.wait(20)
        found = list(self.shared)
        self.barrier.wait(20)
        return found

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        return part.copy_(torch.stack(self._all(part)).sum(0))

    def share_of_sum(self, part: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._all(part)).sum(0).chunk(self.count)[self.rank].clone()

    def gather(self, share: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._all(share))


def slabs(count: int) -> list[ThreadSlab]:
    """Return the slabs of a group of threads."""
    barrier, shared = threading.Barrier(count), [torch.empty(0)] * count
    found = [ThreadSlab(cast(Any, None), rank, count) for rank in range(count)]
    for slab in found:
        object.__setattr__(slab, "shared", shared)
        object.__setattr__(slab, "barrier", barrier)
    return found


def product(
    slab: Slab | None, size: tuple[int, ...], modes: tuple[int, ...], out_size: tuple[int, ...]
) -> CudaProduct:
    made = CudaProduct(
        size, modes, out_size, device=CPU, precision="fp32", multiprocessors=100, slab=slab
    )
    _tables.update({table.data_ptr(): table for table in made.tables})
    return made


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cuda_product, "launch", computed)


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
    assert relative(product(None, size, modes, out_size)(spectra, weight), expected) < 1e-5

    group = slabs(count)
    parts = [product(slab, size, modes, out_size) for slab in group]
    for sharded in (False, True):
        weights = [s.share_of(weight.flatten(0, -4)) if sharded else weight for s in group]

        def run(rank: int, weights: list[torch.Tensor] = weights) -> torch.Tensor:
            return parts[rank](group[rank].cut(spectra, 2).contiguous(), weights[rank])

        with ThreadPoolExecutor(count) as pool:
            found = torch.cat(list(pool.map(run, range(count))), dim=2)
        assert relative(found, expected) < 1e-5, (size, modes, out_size, sharded)
