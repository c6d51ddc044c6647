"""The choice between chain, graph, replay and module, and its report."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.service.runtime.test_repository import random_fields, request, running
from tests.service.tiny import save_tiny, tiny_config
from turbofno.models.core.checkpoint import save_model
from turbofno.models.core.fno import FNO
from turbofno.service.engine.vjp import VjpShapes
from turbofno.service.runtime import forward as forward_module
from turbofno.service.runtime import gradient, model_instance, replays
from turbofno.service.runtime.device_pipeline import DevicePipeline, HostPipeline
from turbofno.service.runtime.forward import Forward, Ran
from turbofno.service.runtime.model_instance import ModelInstance
from turbofno_ops import ChainRefused, GraphCache, GraphRefused, ModuleGraphs

CUDA = torch.device("cuda", 0)
"""Only a name: without a GPU nothing is allocated there."""


class FakeChain:
    """A fake compiled network that supports only grids of 16 points."""

    precision, backend = "bf16", "cuda"

    def __init__(self) -> None:
        self.cleared = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[2:] != (16,):
            raise ChainRefused(f"no table for {x.shape[2:]}")
        return torch.full((len(x), 2, *x.shape[2:]), 5.0)

    def buckets(self) -> tuple[int, ...]:
        return ()

    def device_bytes(self) -> int:
        return 77

    def clear(self) -> None:
        self.cleared += 1


class FakeGraphs:
    """Fake graphs of a module: run it, or refuse where a capture would fail."""

    refused = ""
    nbytes = 5

    def __init__(self, module: FNO, *_: Any, graphs: GraphCache, **__: Any) -> None:
        self._module, self.graphs = module, graphs
        self.cleared = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.refused:
            raise GraphRefused(self.refused)
        return self._module(x)

    def clear(self) -> None:
        self.cleared += 1


def pretend_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake stream to wait for; waiting for the whole device would break another thread's capture."""
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)


@pytest.fixture(autouse=True)
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_module, "ModuleGraphs", FakeGraphs)


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> FakeChain:
    chain = FakeChain()
    monkeypatch.setattr(forward_module, "compile_fno", lambda *_, **__: chain)
    pretend_stream(monkeypatch)
    return chain


def tiny_forward() -> tuple[Forward, FNO]:
    torch.manual_seed(0)
    module = FNO(tiny_config().architecture).eval()
    return Forward("tiny-1d", module, CUDA, precision="bf16", max_batch=4), module


def test_chain_and_graphs_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def compiled(*_: object, graphs: object, **__: object) -> FakeChain:
        given.append(graphs)
        return FakeChain()

    monkeypatch.setattr(forward_module, "compile_fno", compiled)
    pretend_stream(monkeypatch)
    forward, _ = tiny_forward()
    assert given == [forward._graphs.graphs] == [forward._gradients.graphs]
    assert isinstance(given[0], GraphCache)


def test_chain_runs_on_supported_grids_and_the_module_on_others(chain: FakeChain) -> None:
    forward, module = tiny_forward()
    with torch.inference_mode():
        y, ran = forward(torch.zeros(3, 1, 16))
        assert (y == 5).all()
        assert ran == Ran("cuda", "bf16", "chain")
        x = torch.randn(2, 1, 20)
        y, ran = forward(x)
        torch.testing.assert_close(y, module(x))
    assert ran.precision == "fp32", "only the kernels round"
    assert ran.backend in {"gemm", "reference"}
    assert ran[2:] == ("graph", "no table for torch.Size([20])")
    assert {block.precision for block in module.blocks} == {"bf16"}
    assert forward.device_bytes == 87
    forward.clear()
    assert chain.cleared == 1


@pytest.fixture
def no_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ChainRefused("it has a norm")

    monkeypatch.setattr(forward_module, "compile_fno", refuse)
    pretend_stream(monkeypatch)


def run_three_times(caplog: pytest.LogCaptureFixture) -> tuple[Forward, Ran, list[str]]:
    """A network that the compiler refuses: how it ran, and its log."""
    with caplog.at_level(logging.DEBUG, "turbofno.service.runtime.forward"):
        forward, module = tiny_forward()
        x = torch.randn(2, 1, 16)
        with torch.inference_mode():
            for _ in range(3):
                y, ran = forward(x)
                torch.testing.assert_close(y, module(x))
    return forward, ran, [record.getMessage() for record in caplog.records]


@pytest.mark.usefixtures("no_chain")
def test_model_without_a_chain_runs_as_a_graph_and_logs_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forward, ran, said = run_three_times(caplog)
    assert said == ["model tiny-1d is no chain of kernels: it has a norm"]
    assert ran[2:] == ("graph", "it has a norm")
    kinds = forward._graphs, forward._gradients
    assert forward.device_bytes == 5 * len(kinds)
    forward.clear()
    assert [graphs.cleared for graphs in kinds] == [1, 1]


@pytest.mark.usefixtures("no_chain")
def test_model_without_a_graph_runs_layer_by_layer_and_logs_it_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FakeGraphs, "refused", "it asks for a value")
    _, ran, said = run_three_times(caplog)
    assert said[1:] == ["model tiny-1d runs layer by layer: it asks for a value"]
    assert ran[2:] == ("module", "it has a norm; it asks for a value")


@pytest.mark.usefixtures("chain")
def test_a_refusal_of_every_grid_that_callers_choose_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forward, _ = tiny_forward()
    with torch.inference_mode():
        ran = [forward(torch.zeros(1, 1, points))[1] for points in (20, 24, 28)]
    assert [one.reason for one in ran] == [f"no table for torch.Size([{n}])" for n in (20, 24, 28)]
    said = [record.getMessage() for record in caplog.records]
    assert said == ["model tiny-1d is no chain of kernels: no table for torch.Size([20])"]


@pytest.mark.usefixtures("chain")
def test_gradients_run_as_a_graph_or_layer_by_layer_which_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forward, module = tiny_forward()
    arch = module.arch
    shapes = VjpShapes((arch.in_channels, 16), (arch.out_channels, 16))
    rows = torch.randn(3, sum(shapes.split))
    expected = gradient.vjp(module, rows, shapes)
    ran = []
    for refused in ("", "it asks for a value", "it asks for a value"):
        monkeypatch.setattr(FakeGraphs, "refused", refused)
        answer, how = forward.vjp(rows, shapes)
        torch.testing.assert_close(answer, expected)
        ran.append((how.precision, how.execution))
    assert ran == [("fp32", "graph"), ("fp32", "module"), ("fp32", "module")]
    said = [record.getMessage() for record in caplog.records]
    assert said == ["model tiny-1d has gradients layer by layer: it asks for a value"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_run_as_graphs_with_gradients_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ChainRefused("it has a norm")

    monkeypatch.setattr(forward_module, "compile_fno", refuse)
    monkeypatch.setattr(forward_module, "ModuleGraphs", ModuleGraphs)
    torch.manual_seed(0)
    module = FNO(tiny_config().architecture).eval()
    on_cpu, shapes = copy.deepcopy(module), VjpShapes((1, 16), (2, 16))
    batches = [random_fields(n, grid=grid) for grid in (16, 21) for n in (1, 3, 4, 2)]
    with torch.inference_mode():
        expected = [module(torch.from_numpy(batch)).numpy() for batch in batches]
    forward = Forward("tiny-1d", module.to(CUDA), CUDA, precision="fp32", max_batch=4)
    pipeline = DevicePipeline(CUDA)
    for _ in range(2):
        for batch, truth in zip(batches, expected, strict=True):
            answer = pipeline.start([batch], forward)()
            np.testing.assert_allclose(answer.fields, truth, rtol=1e-4, atol=1e-5)
            answer.release()
            assert answer.ran[2:] == ("graph", "it has a norm")
        with pipeline.in_turn():
            assert forward.measure_gradient(torch.randn(1, 1, 16, device=CUDA)).saved > 0
        for n in (3, 5, 1):
            rows = torch.randn(n, sum(shapes.split)).numpy()
            answer = pipeline.start([rows], partial(forward.vjp, shapes=shapes))()
            truth = gradient.vjp(on_cpu, torch.from_numpy(rows), shapes).numpy()
            np.testing.assert_allclose(answer.fields, truth, rtol=1e-4, atol=1e-5)
            answer.release()
            assert answer.ran.execution == "graph"
    held = forward.device_bytes
    forward.clear()
    assert held > forward.device_bytes == 0


def test_a_cpu_reports_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    # a busy machine may take longer for a run than is worth a recording
    monkeypatch.setattr(replays, "_MAX_SECONDS", math.inf)
    module = FNO(tiny_config().architecture).eval()
    forward = Forward("tiny", module, torch.device("cpu"), precision="fp32", max_batch=4)
    x = torch.randn(2, 1, 16)
    with torch.inference_mode():
        assert forward(x)[1][2:] == ("module", "")
        forward.prepare(x.shape[1:])
        assert forward(x)[1][2:] == ("replay", "")


@pytest.mark.parametrize(
    ("config", "setting", "asked"),
    [("fp32", "model", "fp32"), ("bf16", "model", "bf16"), ("bf16", "tf32", "tf32")],
)
def test_precision_is_the_models_or_the_servers_and_is_reported(
    tmp_path: Path, config: str, setting: str, asked: str
) -> None:
    module = save_tiny(tmp_path)
    changed = tiny_config().model_copy(update={"precision": config})
    save_model(tmp_path / "tiny-1d", changed, module)
    fields = random_fields(3)
    with torch.inference_mode():
        expected = module(torch.from_numpy(fields)).numpy()

    async def main() -> None:
        async with running(tmp_path, precision=setting) as (engine, metrics):
            (status,) = engine.statuses()
            assert (status.precision, status.asked_precision) == ("fp32", asked)
            result = await engine.predict(request(fields))
            assert (result.precision, result.backend) == ("fp32", status.backend)
            np.testing.assert_allclose(result.fields, expected, rtol=1e-5, atol=1e-6)
            labels = {"model": "tiny-1d", "backend": status.backend, "precision": "fp32"}
            assert metrics.registry.get_sample_value("turbofno_backend_batches_total", labels) == 1

    asyncio.run(main())


def slot_of(forward: Forward, *others: ModelInstance) -> ModelInstance:
    instance = ModelInstance(
        tiny_config(),
        forward,
        HostPipeline(),
        device=torch.device("cpu"),
        asked="bf16",
        others=lambda: [*others],
    )
    for step in instance.warm_up(4, max_gradient_bytes=1 << 30):
        step()
    return instance


def test_instance_reports_how_each_batch_ran(chain: FakeChain) -> None:
    instance = slot_of(tiny_forward()[0])
    assert instance.ran == Ran("cuda", "bf16", "chain")
    assert instance.asked_precision == "bf16"
    other_grid = instance.start([random_fields(2, grid=24)])
    same_grid = instance.start([random_fields(2), random_fields(1)])
    assert (same_grid().ran.backend, same_grid().ran.precision) == ("cuda", "bf16")
    assert (other_grid().ran.backend in {"gemm", "reference"}, other_grid().ran.precision) == (
        True,
        "fp32",
    )
    instance.free_memory()
    assert chain.cleared == 1


def test_memory_is_freed_by_all_models(chain: FakeChain) -> None:
    other = slot_of(tiny_forward()[0])
    slot_of(tiny_forward()[0], other).free_memory()
    assert chain.cleared == 2, "both run on this chain"


def test_instance_is_ready_even_if_the_largest_batch_does_not_fit(
    chain: FakeChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def small(_: FakeChain, x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.zeros(len(x), 2, 16)

    monkeypatch.setattr(FakeChain, "__call__", small)
    monkeypatch.setattr(model_instance, "WARM_UP_SECONDS", math.inf)
    assert slot_of(tiny_forward()[0]).ran.precision == "bf16"
    assert sizes == [1, 2, 4]
    assert chain.cleared == 1


def test_wrong_shape_from_a_model_is_an_error(
    chain: FakeChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeChain, "__call__", lambda _, x: x)
    with pytest.raises(RuntimeError, match=r"expected float32 \(1, 2\)"):
        slot_of(tiny_forward()[0])


def test_a_cpu_core_takes_no_more_fields_at_once_than_its_caches_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = FNO(tiny_config().architecture).eval()
    points = 24
    layer = 4 * module.arch.hidden_channels * points
    monkeypatch.setattr(forward_module, "_LAYER_BYTES", 3 * layer + 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    forward = Forward("tiny", module, torch.device("cpu"), precision="fp32", max_batch=32)
    sizes: list[int] = []
    module.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    x = torch.randn(15, 1, points)
    with torch.inference_mode():
        found, _ = forward(x)
        assert sizes == [6, 6, 3]
        torch.testing.assert_close(found, module(x), rtol=1e-5, atol=1e-6)
        sizes.clear()
        forward(x[:6])
        monkeypatch.setattr(forward_module, "_LAYER_BYTES", 1)
        forward(x[:3])
    assert sizes == [6, 2, 1]
