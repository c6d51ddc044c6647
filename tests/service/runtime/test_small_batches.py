"""Small batches on a GPU as one graph: the same answers as in steps, whatever ran before and beside them."""

from __future__ import annotations

import gc
import math
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.service.runtime.as_model import as_model
from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno.models.core.checkpoint import load_model
from turbofno.models.trust.signals import Signals
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import PROBLEMS
from turbofno.service.runtime import small_batches
from turbofno.service.runtime.device_pipeline import IN_FLIGHT, DevicePipeline
from turbofno.service.runtime.forward import Forward
from turbofno.service.runtime.model_instance import ModelInstance
from turbofno.service.runtime.small_batches import MOST_BYTES, MOST_FIELDS, SmallBatches
from turbofno_ops import CompiledFNO, GraphCache, compile_fno
from turbofno_ops._graphs import Graph

if TYPE_CHECKING:
    from turbofno.models.core.checkpoint import LoadedModel
    from turbofno.service.engine.runnable import ModelOutput
    from turbofno.service.runtime.judgement import Signals as SignalsOf

pytestmark = needs_kernels

GPU = torch.device("cuda", 0)


def compiled(model: LoadedModel, graphs: GraphCache | None = None) -> CompiledFNO:
    return compile_fno(model.module.description(), device=GPU, max_batch=16, graphs=graphs)


def small_batches_of(
    model: LoadedModel,
    network: CompiledFNO,
    signals: SignalsOf | None = None,
    pipeline: DevicePipeline | None = None,
) -> SmallBatches:
    return SmallBatches(
        model.config.name,
        network,
        signals or Signals(model.config, GPU),
        pipeline or DevicePipeline(GPU),
        channels=1,
    )


def batch(model: LoadedModel, count: int, grid: tuple[int, ...] | None = None) -> np.ndarray:
    grid = grid or model.config.grid.training
    amplitude = generator().uniform(0.1, 3, (count, 1, *(1 for _ in grid)))
    fields = amplitude * generator().standard_normal((count, 1, *grid))
    return fields.astype(np.float32)


def taken(answer: ModelOutput) -> np.ndarray:
    assert answer.fields is not None
    assert answer.release is not None
    fields = answer.fields.copy()
    answer.release()
    return fields


def assert_right(model: LoadedModel, given: np.ndarray, answer: ModelOutput) -> None:
    fields = taken(answer)
    with torch.inference_mode():
        x = torch.from_numpy(given)
        truth = model.module.double()(x.double())
        model.module.float()
        expected = Signals(model.config)(x, torch.from_numpy(fields))
    np.testing.assert_allclose(fields, truth, atol=1e-5 * float(truth.abs().max()))
    assert answer.total == pytest.approx(float(truth.sum()), abs=1e-5 * float(truth.abs().sum()))
    assert set(answer.trust) == set(expected)
    for what, values in expected.items():
        np.testing.assert_allclose(answer.trust[what], values, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_answers_and_signals_equal_those_of_the_model(name: str) -> None:
    model = load_model(TRAINED / PROBLEMS[name].name)
    small = small_batches_of(model, compiled(model))
    half = tuple(n // 2 + 1 for n in model.config.grid.training)
    for count in range(1, MOST_FIELDS + 1):
        for grid in (model.config.grid.training, half):
            given = batch(model, count, grid)
            wait = small.start([given[:1], given[1:]] if count > 1 else [given])
            bucket = 1 << (count - 1).bit_length()
            if bucket * given[0].nbytes > MOST_BYTES:
                assert wait is None
            else:
                assert wait is not None
                assert_right(model, given, wait())


def burgers(graphs: GraphCache | None = None) -> tuple[LoadedModel, CompiledFNO, SmallBatches]:
    model = load_model(TRAINED / PROBLEMS["burgers"].name)
    network = compiled(model, graphs)
    return model, network, small_batches_of(model, network)


def all_started(model: LoadedModel, small: SmallBatches, given: np.ndarray) -> int:
    """How many such batches run at once, each with the right answer."""
    running = []
    while wait := small.start([given]):
        running.append(wait)
    for wait in running:
        assert_right(model, given, wait())
    return len(running)


def test_batches_at_once_have_memory_of_their_own() -> None:
    model, _, small = burgers()
    given = [batch(model, 3) for _ in range(IN_FLIGHT + 1)]
    for _ in range(20):
        waits = [small.start([one]) for one in given]
        assert waits.pop() is None, "all graphs are in use"
        answers = [wait() for wait in waits if wait is not None]
        assert len(answers) == IN_FLIGHT
        for one, answer in zip(given, answers, strict=False):
            assert_right(model, one, answer)


def test_what_a_larger_batch_left_behind_changes_nothing() -> None:
    model, _, small = burgers()
    spoilt = batch(model, 4)
    spoilt[:] = math.nan
    waits = [small.start([spoilt]) for _ in range(IN_FLIGHT)]
    for wait in waits:
        assert wait is not None
        answer = wait()
        assert not math.isfinite(answer.total or 0.0)
        assert np.isnan(taken(answer)).all()
    assert all_started(model, small, batch(model, 3)) == IN_FLIGHT


def test_prepared_graphs_are_all_captured_and_free() -> None:
    model, network, small = burgers()
    given = batch(model, 2)
    small.prepare([given])
    prepared = network.device_bytes()
    assert prepared > compiled(model).device_bytes()
    assert all_started(model, small, given) == IN_FLIGHT
    assert network.device_bytes() == prepared


def test_strided_and_read_only_parts() -> None:
    model, _, small = burgers()
    given = batch(model, 4)
    strided = np.repeat(given[:2], 2, axis=0)[::2]
    frozen = np.frombuffer(given[2:].tobytes(), np.float32).reshape(given[2:].shape)
    wait = small.start([strided, frozen])
    assert wait is not None
    assert_right(model, given, wait())


def test_large_batches_and_other_grids_are_left_to_the_pipeline() -> None:
    model = load_model(TRAINED / PROBLEMS["navier-stokes"].name)
    network = compiled(model)
    small = small_batches_of(model, network)
    for given in (
        batch(model, MOST_FIELDS + 1),
        batch(model, 1, (1024, 512)),
        batch(model, 1, (4, 4)),
    ):
        assert small.start([given]) is None
    assert network.device_bytes() == compiled(model).device_bytes()


@pytest.mark.parametrize(
    ("limit", "value", "expected"),
    [
        ("_MOST_KINDS", 2, [True, True, False, True]),
        ("_MOST_DEVICE_BYTES", 0, [True, False, False, True]),
    ],
)
def test_graphs_are_limited(
    limit: str, value: int, expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_batches, limit, value)
    model, _, small = burgers()
    started = []
    for points in (64, 96, 128, 64):
        given = batch(model, 1, (points,))
        wait = small.start([given])
        started.append(wait is not None)
        if wait is not None:
            assert_right(model, given, wait())
    assert started == expected


def fails(_: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    raise torch.OutOfMemoryError("none left")


def waits_for_the_device(_: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"waits": torch.full((len(y),), y.sum().item(), device=GPU)}


@pytest.mark.parametrize("signals", [fails, waits_for_the_device])
def test_what_cannot_be_captured_is_left_to_the_pipeline(
    signals: SignalsOf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model = load_model(TRAINED / PROBLEMS["burgers"].name)
    network, pipeline = compiled(model), DevicePipeline(GPU)
    small, given = small_batches_of(model, network, signals, pipeline), batch(model, 2)
    for _ in range(2):
        assert small.start([given]) is None
    assert caplog.text.count("run in steps") == 1
    answer = pipeline.start([given], as_model(network))()
    np.testing.assert_allclose(taken(answer), network(torch.from_numpy(given).to(GPU)).cpu())


@pytest.mark.parametrize("graphs", range(IN_FLIGHT))
def test_without_page_locked_memory_the_pipeline_runs(
    graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, small = burgers()
    zeros = torch.zeros
    locked = 0

    def few(*shape: object, **options: object) -> torch.Tensor:
        nonlocal locked
        locked += "pin_memory" in options
        if locked == graphs + 1 and "pin_memory" in options:
            raise RuntimeError("CUDA error: out of memory")
        return zeros(*shape, **options)

    given = batch(model, 2)
    monkeypatch.setattr(torch, "zeros", few)
    for _ in range(2):
        assert all_started(model, small, given) == graphs, "those with memory are used"
    small.clear()
    assert all_started(model, small, given) == IN_FLIGHT


def test_large_outputs_are_left_to_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, small = burgers()
    given = batch(model, 2)
    monkeypatch.setattr(small_batches, "MOST_BYTES", given.nbytes - 1)
    monkeypatch.setattr(SmallBatches, "_shape", lambda *_: given.shape)
    assert small.start([given]) is None


def test_graphs_that_were_freed_are_captured_again_once_all_are_forgotten() -> None:
    model, network, small = burgers()
    given = batch(model, 2)
    (in_flight, *others) = (small.start([given]) for _ in range(IN_FLIGHT))
    for wait in others:
        assert wait is not None
        taken(wait())
    network.clear()
    for _ in range(2):
        assert small.start([given]) is None, "memory may be short"
    small.clear()
    for wait in (in_flight, *(small.start([given]) for _ in range(IN_FLIGHT))):
        assert wait is not None
        assert_right(model, given, wait())


def test_graphs_that_were_freed_leave_none_to_capture() -> None:
    model, network, small = burgers()
    given = batch(model, 2)
    wait = small.start([given])
    assert wait is not None
    assert_right(model, given, wait())
    network.clear()
    assert all_started(model, small, given) == 0


def test_evicted_graphs_are_not_captured_again() -> None:
    cache = GraphCache(IN_FLIGHT)
    model, network, small = burgers(cache)
    given = batch(model, 2)
    assert all_started(model, small, given) == IN_FLIGHT
    x = torch.from_numpy(given).to(GPU)
    network(x)
    assert len(cache) == IN_FLIGHT, "the network's own graph took the place of one"
    assert all_started(model, small, given) == IN_FLIGHT - 1
    network(x)
    assert len(cache) == IN_FLIGHT


def test_a_cache_with_room_for_fewer_graphs_is_filled() -> None:
    model, _, small = burgers(GraphCache(IN_FLIGHT - 1))
    given = batch(model, 2)
    small.prepare([given])
    assert all_started(model, small, given) == IN_FLIGHT - 1


def test_after_the_warm_up_batches_on_the_training_grid_capture_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = TRAINED / PROBLEMS["burgers"].name
    module = load_model(folder, device=GPU).module
    model = load_model(folder)
    instance = ModelInstance(
        model.config,
        Forward("burgers", module, GPU, precision="fp32", max_batch=16),
        DevicePipeline(GPU),
        device=GPU,
        asked="fp32",
        trust=True,
    )
    for step in instance.warm_up(16, max_gradient_bytes=1 << 30):
        assert step()

    def captured(*_: object) -> None:
        raise AssertionError("a graph is captured")

    monkeypatch.setattr(Graph, "__init__", captured)
    for count in (1, 2, 3, 8, 16):
        given = batch(model, count)
        # One more than there are graphs of small batches.
        running = [instance.start([given]) for _ in range(IN_FLIGHT + (count <= MOST_FIELDS))]
        for wait in running:
            assert_right(model, given, wait())


def test_a_model_is_freed_with_its_graphs() -> None:
    model, network, small = burgers()
    given = batch(model, 2)
    wait = small.start([given])
    assert wait is not None
    gone = weakref.ref(network)
    gc.disable()
    try:
        del network, small
        assert gone() is None, "a reference cycle keeps it in memory until garbage collection"
        assert_right(model, given, wait())
    finally:
        gc.enable()
