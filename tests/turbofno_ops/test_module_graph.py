"""CUDA graphs of a module: cache and splitting with fake graphs, results on a GPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.turbofno_ops.fourier_truth import relative_l2
from tests.turbofno_ops.on_gpu import needs_kernels
from tests.turbofno_ops.random_fno import field, network, truth
from turbofno.models.core.architecture import ChannelMLP, FNOArchitecture
from turbofno.models.core.fno import FNO
from turbofno_ops import (
    GraphCache,
    GraphRefused,
    ModuleGraphs,
    _graphs,
    last_choice,
    module_graph,
)
from turbofno_ops._graphs import CaptureFailed, Graph

MIB = 2**20


class FakeGraph:
    """Takes one MiB per field; runs the module at replay."""

    captured: list[tuple[int, ...]]
    error: Exception | None
    closed = 0

    def __init__(self, forward: Any, batch: int, *_: object) -> None:
        shape = tuple(forward.buffer(batch).shape)
        type(self).captured.append(shape)
        if self.error is not None:
            raise self.error
        self._forward = forward
        self.nbytes = batch * MIB
        self.output_shape = forward.run(forward.buffer(1)).shape[1:]

    def run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(self._forward.run(x))

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeGraph]:
    class Fresh(FakeGraph):
        captured, error = [], None

    monkeypatch.setattr(module_graph, "_ModuleGraph", Fresh)
    monkeypatch.setattr(module_graph, "shared_lane", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    plans = SimpleNamespace(size=0, max_size=10)
    monkeypatch.setattr(torch.backends.cuda, "cufft_plan_cache", {torch.device("cpu"): plans})
    return Fresh


def doubling(max_batch: int = 8, graphs: GraphCache | None = None) -> ModuleGraphs:
    cpu = torch.device("cpu")
    return ModuleGraphs(lambda x: 2 * x[:, :1], cpu, max_batch=max_batch, graphs=graphs)


def check(graphs: ModuleGraphs, batch: int, points: int = 16) -> None:
    x = torch.randn(batch, 3, points)
    assert torch.equal(graphs(x), 2 * x[:, :1])


def test_one_graph_for_each_bucket_and_grid(fake: type[FakeGraph]) -> None:
    graphs = doubling(max_batch=6)
    for batch in (3, 4, 1, 6, 5, 20):
        check(graphs, batch)
    check(graphs, 3, points=9)
    assert fake.captured == [(4, 3, 16), (1, 3, 16), (6, 3, 16), (2, 3, 16), (4, 3, 9)]
    assert graphs.nbytes == 17 * MIB
    graphs.clear()
    assert (graphs.nbytes, fake.closed) == (0, 5)


def test_batches_too_large_for_the_bound_are_split_or_refused(fake: type[FakeGraph]) -> None:
    graphs = doubling(graphs=GraphCache(max_bytes=8 * MIB))
    check(graphs, 1)
    check(graphs, 8)
    check(graphs, 7, points=32)
    assert fake.captured == [(1, 3, 16), (4, 3, 16), (2, 3, 32), (1, 3, 32)]
    with pytest.raises(GraphRefused, match="grid 160 a field takes about 5 MiB"):
        graphs(torch.randn(1, 3, 160))


def test_users_of_a_shared_cache_share_its_bound(fake: type[FakeGraph]) -> None:
    cache = GraphCache(max_bytes=8 * MIB)
    first, second = doubling(graphs=cache), doubling(graphs=cache)
    check(first, 1)
    check(first, 2)
    check(second, 1)
    check(second, 4)
    assert (first.nbytes, second.nbytes, cache.nbytes) == (3 * MIB, 5 * MIB, 8 * MIB)
    check(second, 2)  # evicts the least recently used graphs of any owner
    assert (first.nbytes, second.nbytes, fake.closed) == (0, 7 * MIB, 2)
    check(first, 1)
    second.clear()
    assert (first.nbytes, second.nbytes, cache.nbytes) == (MIB, 0, MIB)
    check(first, 1)
    assert len(fake.captured) == 6, "clear() of another owner keeps this owner's graphs"


def test_bounds_below_one_are_refused() -> None:
    for name in ("max_graphs", "max_bytes"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            GraphCache(**{name: 0})
    with pytest.raises(ValueError, match="max_batch must be at least 1, got 0"):
        ModuleGraphs(torch.relu, torch.device("cuda"), max_batch=0)


def test_a_failing_capture_is_tried_once_per_grid(fake: type[FakeGraph]) -> None:
    fake.error = CaptureFailed("operation not permitted\nmore of it")
    graphs = doubling()
    for points in range(16, 16 + module_graph._MAX_FAILURES):
        for _ in range(2):
            with pytest.raises(GraphRefused, match=r"cannot hold it: operation not permitted$"):
                graphs(torch.randn(2, 3, points))
    assert len(fake.captured) == module_graph._MAX_FAILURES
    with pytest.raises(GraphRefused, match="not permitted"):
        graphs(torch.randn(2, 3, 99))
    assert len(fake.captured) == module_graph._MAX_FAILURES


def test_a_graph_without_memory_is_tried_again_once_memory_was_freed(
    fake: type[FakeGraph],
) -> None:
    graphs = doubling()
    check(graphs, 1)
    fake.error = torch.OutOfMemoryError("CUDA out of memory")
    for _ in range(2):
        with pytest.raises(GraphRefused, match="no memory for the CUDA graph of 8 fields"):
            graphs(torch.randn(8, 3, 16))
    # the first call tried again after it had freed the other graphs; the second call did not try
    assert fake.captured[1:] == [(8, 3, 16)] * 2
    fake.error = None
    check(graphs, 2)
    graphs.clear()
    check(graphs, 8)


def test_errors_of_the_module_are_not_changed(fake: type[FakeGraph]) -> None:
    fake.error = ValueError("the grid is too small")
    with pytest.raises(ValueError, match="too small"):
        doubling()(torch.randn(2, 3, 4))


def test_graphs_are_freed_before_fft_plans_are_evicted(fake: type[FakeGraph]) -> None:
    graphs = doubling()
    check(graphs, 2)
    torch.backends.cuda.cufft_plan_cache[torch.device("cpu")].size = 10
    with pytest.raises(GraphRefused, match="cache of FFT plans is full"):
        graphs(torch.randn(2, 3, 16))
    assert fake.closed == 1


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_a_failed_capture_keeps_no_memory(
    monkeypatch: pytest.MonkeyPatch, error: type[RuntimeError]
) -> None:
    used: list[weakref.ref[torch.Tensor]] = []

    class Capture:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("the capture cannot end")

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        used.append(weakref.ref(y))
        raise error("in the module")

    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    monkeypatch.setattr(_graphs, "_abandon", lambda *_: None)
    graph = Graph.__new__(Graph)
    graph._graph, graph._buffer, graph._index = SimpleNamespace(), torch.zeros(2), 0
    graph._forward = SimpleNamespace(run=run)
    gc.collect()
    gc.disable()
    try:
        with suppress(torch.OutOfMemoryError, CaptureFailed):
            graph._capture(SimpleNamespace(device=torch.device("cpu")))
        assert used[0]() is None
    finally:
        gc.enable()


ARCHITECTURES = {
    "instance norm": {"norm": "instance_norm", "modes": (12, 8)},
    "channel MLP": {"channel_mlp": ChannelMLP(hidden_channels=8), "modes": (12, 8)},
    "three axes": {"modes": (6, 6, 4)},
}


def on_gpu(
    module: Callable[[torch.Tensor], torch.Tensor], graphs: GraphCache | None = None
) -> ModuleGraphs:
    return ModuleGraphs(module, torch.device("cuda", 0), max_batch=8, graphs=graphs)


def drawn(name: str) -> FNO:
    return network(
        FNOArchitecture(
            in_channels=2, out_channels=3, hidden_channels=16, n_layers=3, **ARCHITECTURES[name]
        )
    )


@needs_kernels
@pytest.mark.usefixtures("strict_float32")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_replays_equal_float64_for_all_batches_and_grids(name: str) -> None:
    module = drawn(name)
    sizes = [(16, 20, 18), (21, 16, 17)]
    given = [
        field(module, batch, size[: module.arch.n_dim]) for size in sizes for batch in (8, 3, 11, 1)
    ]
    expected = [truth(module, x) for x in given]
    graphs = on_gpu(module.cuda(), GraphCache(max_graphs=3))
    for _ in range(2):
        for x, y in zip(given, expected, strict=True):
            assert relative_l2(graphs(x.cuda()).cpu(), y) < 1e-4
            choice = last_choice()
            assert choice is not None
    assert graphs.nbytes > 0
    graphs.clear()
    assert graphs.nbytes == 0


@needs_kernels
def test_tables_live_as_long_as_their_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    module = drawn("three axes")
    x = field(module, 2, (16, 20, 18))
    expected = truth(module, x)
    graphs = on_gpu(module.cuda())
    graphs(x.cuda())
    monkeypatch.setattr("turbofno_ops._gemm.MAX_TABLE_BYTES", 0)
    module(field(module, 1, (12, 14, 16)).cuda())
    torch.cuda.synchronize()
    others = [torch.full((size,), torch.nan, device="cuda") for size in range(16, 4096, 16)]
    assert relative_l2(graphs(x.cuda()).cpu(), expected) < 1e-5
    assert others


@needs_kernels
def test_a_failed_capture_restores_the_process_state() -> None:
    def asking(x: torch.Tensor) -> torch.Tensor:
        large = torch.zeros(2**26, device=x.device)
        return x + large[0] + float(x.sum() > 0) if len(x) > 1 else 2 * x

    graphs, stream = on_gpu(asking), torch.cuda.current_stream()
    x = torch.randn(2, 1, 16, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with pytest.raises(GraphRefused, match="cannot hold it"):
        graphs(x)
    assert torch.cuda.current_stream() == stream
    torch.cuda.synchronize()
    gc.collect()  # the exception's frames keep the function's tensors alive
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before < 128 * MIB, "the captured memory is freed"
    assert float(x.sum().abs()) >= 0, "later operations do not fail"
    assert torch.randn(3, device="cuda").shape == (3,)
    y = x[:1, :, :8]
    assert torch.equal(graphs(y), 2 * y)


@needs_kernels
def test_out_of_memory_for_a_graph_is_refused_and_recoverable() -> None:
    def hungry(x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(len(x), 2**27, device=x.device)[:, :1, None]

    graphs = on_gpu(hungry)
    x = torch.randn(8, 1, 16, device="cuda")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**30) / total)
    try:
        with pytest.raises(GraphRefused, match="no memory"):
            graphs(x)
        assert torch.equal(graphs(x[:1]), x[:1])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    graphs.clear()
    assert torch.equal(graphs(x), x)
