"""The LRU cache of DFT tables."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from turbofno_ops import (
    FNODescription,
    PointwiseMap,
    Spectral,
    _gemm,
    compile_fno,
    spectral_conv,
    used_tables,
)


def test_tables_are_kept_and_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = _gemm._Tables()
    table_bytes = 1000
    monkeypatch.setattr(_gemm, "MAX_TABLE_BYTES", 3 * table_bytes)
    made: list[int] = []

    @tables.cached
    def make(size: int, *, fill: int = 0) -> torch.Tensor:
        made.append(size)
        return torch.full((table_bytes // 4,), fill, dtype=torch.float32)

    for size in (1, 2, 3, 1, 1, 4, 1, 3, 2):
        make(size, fill=size)
        assert tables.nbytes <= 3 * table_bytes
    assert made == [1, 2, 3, 4, 2], "the least recently used table is evicted"
    assert make(1, fill=5)[0] == 5, "every argument is part of the key"


def test_many_grid_sizes_do_not_grow_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gemm, "MAX_TABLE_BYTES", 10_000)
    # hide tables of other tests
    monkeypatch.setattr(_gemm._tables, "_kept", OrderedDict())
    monkeypatch.setattr(_gemm._tables, "nbytes", 0)
    weight = torch.randn(1, 1, 4, 4, dtype=torch.complex64)
    for n in range(8, 60):
        x = torch.randn(1, 1, n, n)
        torch.testing.assert_close(
            spectral_conv(x, weight, backend="gemm"), spectral_conv(x, weight, backend="reference")
        )
        assert _gemm._tables.nbytes <= 10_000


def test_table_larger_than_the_bound_is_used_but_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gemm, "MAX_TABLE_BYTES", 100)
    x, weight = torch.randn(1, 1, 1237), torch.randn(1, 1, 4, dtype=torch.complex64)
    torch.testing.assert_close(
        spectral_conv(x, weight, backend="gemm"), spectral_conv(x, weight, backend="reference")
    )
    assert _gemm._tables.nbytes <= 100


def test_tables_are_real_where_tensors_are_faked() -> None:
    weight = torch.randn(2, 2, 4, 3, dtype=torch.complex64)
    lifting, projection = PointwiseMap(torch.ones(2, 1)), PointwiseMap(torch.ones(1, 2))
    description = FNODescription(1, (lifting,), ((Spectral(weight),),), (projection,))
    network = compile_fno(description, device="cpu")
    x = torch.randn(1, 1, 31, 37)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert network(mode.from_tensor(x)).shape == x.shape
    expected = spectral_conv(x.expand(1, 2, 31, 37), weight, backend="reference")
    torch.testing.assert_close(network(x), expected.sum(1, keepdim=True))


def test_a_default_device_changes_nothing() -> None:
    weight = torch.randn(1, 1, 4, 3, dtype=torch.complex64)
    one = PointwiseMap(torch.ones(1, 1))
    description = FNODescription(1, (one,), ((Spectral(weight),),), (one,))
    x = torch.randn(1, 1, 29, 41)
    with torch.device("meta"):
        found = compile_fno(description, device="cpu")(x)
    torch.testing.assert_close(found, spectral_conv(x, weight, backend="reference"))


def test_used_tables_are_collected() -> None:
    weight, x = torch.randn(1, 1, 4, 3, dtype=torch.complex64), torch.randn(1, 1, 11, 13)
    for _ in range(2):  # a cache miss, then a hit
        with used_tables() as used:
            spectral_conv(x, weight, backend="gemm")
        assert len(used) == 4, "two axes, to modes and back"
