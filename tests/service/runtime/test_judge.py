"""Trust signals computed by the pipeline: each field gets its own, whatever its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.service.runtime.as_model import as_model
from tests.service.tiny import tiny_config
from turbofno.models.core.checkpoint import load_model
from turbofno.models.trust.signals import Signals
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import PROBLEMS
from turbofno.service.runtime import judge as judge_module
from turbofno.service.runtime.device_pipeline import open_pipeline
from turbofno.service.runtime.judge import Judge

if TYPE_CHECKING:
    from turbofno.models.core.checkpoint import LoadedModel

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda:0", marks=gpu)]


def batches(model: LoadedModel, count: int) -> list[np.ndarray]:
    """Batches of random sizes and amplitudes, on the training grid and a smaller one."""
    rng = generator()
    found = []
    for index in range(count):
        shrunk = index % 3 == 2
        grid = tuple(n // 2 + 1 if shrunk else n for n in model.config.grid.training)
        n = int(rng.integers(1, 10))
        amplitude = rng.uniform(0.1, 3, (n, 1, *(1 for _ in grid)))
        found.append((amplitude * rng.standard_normal((n, 1, *grid))).astype(np.float32))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(PROBLEMS))
def test_each_field_gets_its_own_signals(name: str, device: str) -> None:
    model = load_model(TRAINED / PROBLEMS[name].name)
    place, signals = torch.device(device), Signals(model.config)
    pipeline, judge = open_pipeline(place), Judge(model.config, place)
    module = load_model(TRAINED / PROBLEMS[name].name, device=device).module
    running = []
    for batch in batches(model, 12):
        running.append((batch, pipeline.start([batch], as_model(module), judge)))
        if len(running) < pipeline.max_in_flight:
            continue
        fields, wait = running.pop(0)
        answer = wait()
        with torch.inference_mode():
            truth = signals(torch.from_numpy(fields), torch.from_numpy(answer.fields.copy()))
        assert set(answer.trust) == set(truth)
        for what, values in truth.items():
            np.testing.assert_allclose(answer.trust[what], values, rtol=2e-3, atol=1e-5)
        if answer.release is not None:
            answer.release()


@gpu
@pytest.mark.parametrize("name", list(PROBLEMS))
def test_signals_make_no_plans_of_cufft(name: str) -> None:
    """See `backend_of` in models/trust/features.py."""
    model = load_model(TRAINED / PROBLEMS[name].name)
    judge, plans = (
        Judge(model.config, torch.device("cuda", 0)),
        torch.backends.cuda.cufft_plan_cache[0],
    )
    before = plans.size
    # one whose transforms torch.fft does as fast, and one that no other test has
    for grid in (
        ((2048,), (1536,)) if name == "burgers" else ((96,) * model.config.architecture.n_dim,)
    ):
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            x = torch.randn(5, 1, *grid, device="cuda")
            assert judge(x, x).names
    assert plans.size == before


def test_a_failure_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED")

    monkeypatch.setattr(Signals, "__call__", fail)
    model, x = load_model(TRAINED / PROBLEMS["burgers"].name), np.zeros((2, 1, 64), np.float32)
    judge = Judge(model.config, torch.device("cpu"))
    answer = open_pipeline(torch.device("cpu")).start([x], as_model(model.module), judge)()
    assert answer.fields.shape == x.shape
    assert answer.trust == {}
    assert "CUFFT_ALLOC_FAILED" in caplog.text


def test_nothing_is_captured_for_a_model_without_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[torch.Size] = []
    monkeypatch.setattr(judge_module, "_Graph", lambda _, x, *__: captured.append(x.shape))
    judge = Judge(tiny_config(), torch.device("cpu"))
    judge._pool = (0, 1)
    x = torch.randn(3, 1, 16)
    assert judge(x, x).names == ()
    assert captured == []


@gpu
def test_a_model_without_signals_is_judged_on_a_gpu() -> None:
    judge = Judge(tiny_config(), torch.device("cuda", 0))
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        x = torch.randn(3, 1, 16, device="cuda")
        assert judge(x, x).names == ()


@gpu
def test_graphs_are_limited_and_can_be_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbofno.service.runtime.judge._MAX_GRAPHS", 2)
    model = load_model(TRAINED / PROBLEMS["burgers"].name)
    judge, signals = Judge(model.config, torch.device("cuda", 0)), Signals(model.config)
    # The default stream cannot be captured.
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        for points in (64, 128, 256, 64, 96):
            x = torch.randn(3, 1, points)
            found = judge(x.cuda(), (2 * x).cuda()).signals(len(x))
            for what, values in signals(x, 2 * x).items():
                torch.testing.assert_close(found[what].cpu(), values, rtol=2e-3, atol=1e-5)
            assert len(judge._graphs) <= 2
    judge.clear()
    assert not judge._graphs


@gpu
def test_a_graph_outlives_the_tables_of_other_grids() -> None:
    model = load_model(TRAINED / PROBLEMS["darcy"].name)
    judge, signals = Judge(model.config, torch.device("cuda", 0)), Signals(model.config)
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        # More grids than tables are cached; then the first graphs again, whose tables were evicted.
        fields = [torch.rand(1, 1, points, points) + 3 for points in range(43, 68)]
        for x in fields:
            judge(x.cuda(), x.cuda())
        others = [torch.full((size,), torch.nan, device="cuda") for size in range(16, 4096, 16)]
        for x in fields:
            found = judge(x.cuda(), x.cuda()).signals(len(x))
            for what, values in signals(x, x).items():
                torch.testing.assert_close(found[what].cpu(), values, rtol=2e-3, atol=1e-5)
        assert others
