"""Batches to the device and back, complete and in order: on a CPU, and on a GPU if there is one."""

from __future__ import annotations

import asyncio
import gc
import queue
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.service.runtime.as_model import as_model
from tests.service.runtime.test_repository import running
from tests.service.tiny import save_tiny, tiny_config
from turbofno.models.core.checkpoint import load_model, save_model
from turbofno.models.core.config import ModelConfig
from turbofno.models.core.fno import FNO
from turbofno.service.engine.interface import PredictRequest
from turbofno.service.engine.runnable import ModelOutput
from turbofno.service.errors import DeviceLost
from turbofno.service.runtime.device_pipeline import (
    IN_FLIGHT,
    DevicePipeline,
    HostPipeline,
    Pipeline,
    gather,
    open_pipeline,
)
from turbofno.service.runtime.judgement import judged_by
from turbofno_ops import native_status

ROOT = Path(__file__).resolve().parents[3]

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PIPELINES = ["cpu", pytest.param("cuda:0", marks=gpu)]
SLEEP_CYCLES = 2_000_000


def taken(answer: ModelOutput) -> np.ndarray:
    """A copy of the values, whose memory is then released."""
    fields = answer.fields.copy()
    if answer.release is not None:
        answer.release()
    return fields


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("writable", [True, False])
def test_gathered_fields_are_aligned_and_writable(writable: bool, start: int) -> None:
    values = generator().standard_normal((2, 1, 8)).astype(np.float32)
    body = bytes(start) + values.tobytes()
    memory = bytearray(body) if writable else body
    part = np.frombuffer(memory, np.float32, offset=start).reshape(values.shape)
    for parts in ([part], [part, part]):
        fields = gather(parts)
        assert fields.flags.behaved
        assert fields.flags.c_contiguous
        np.testing.assert_array_equal(fields, np.concatenate([values] * len(parts)))


@pytest.mark.parametrize("device", PIPELINES)
def test_nan_shows_in_the_total(device: str) -> None:
    pipeline = open_pipeline(torch.device(device))
    for value in (np.nan, np.inf):
        field = np.ones((3, 1, 8), np.float32)
        field[1, 0, 5] = value
        answer = pipeline.start([field], as_model(torch.neg))()
        assert not np.isfinite(answer.total)
        np.testing.assert_array_equal(taken(answer), -field)


@pytest.mark.parametrize("device", PIPELINES)
def test_parts_of_any_layout_arrive_in_order(device: str) -> None:
    pipeline = open_pipeline(torch.device(device))
    rng = generator()
    whole = rng.standard_normal((7, 2, 5, 3)).astype(np.float32)
    unaligned = np.frombuffer(b"x" + whole[4:].tobytes(), np.float32, offset=1).reshape(-1, 2, 5, 3)
    strided = np.repeat(whole[:4], 2, axis=0)[::2]
    for parts in ([strided, unaligned], [unaligned], [strided]):
        answer = pipeline.start(parts, as_model(lambda x: 3 * x))()
        assert answer.total == pytest.approx(
            float(answer.fields.astype(np.float64).sum()), abs=1e-3
        )
        np.testing.assert_array_equal(taken(answer), 3 * np.concatenate(parts))
        assert answer.gather_seconds > 0
        assert answer.compute_seconds > 0


@pytest.mark.parametrize("device", PIPELINES)
def test_failure_is_raised_and_frees_the_staging_memory(device: str) -> None:
    pipeline = open_pipeline(torch.device(device))

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("none left")

    field = np.ones((1, 1, 8), np.float32)
    for _ in range(2 * IN_FLIGHT):
        with pytest.raises(torch.OutOfMemoryError):
            pipeline.start([field], as_model(fail))
    np.testing.assert_array_equal(taken(pipeline.start([field], as_model(torch.neg))()), -field)


def test_a_lost_device_fails_every_batch_and_blocks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: SimpleNamespace(synchronize=fail))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: None)
    monkeypatch.setattr(DevicePipeline, "_enqueue", fail)
    pipeline = DevicePipeline(torch.device("cuda", 0))
    lost = []

    def run() -> None:
        for _ in range(2 * IN_FLIGHT):
            with pytest.raises(DeviceLost):
                pipeline.start([np.ones((1, 1, 8), np.float32)], as_model(torch.neg))
            lost.append(True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert len(lost) == 2 * IN_FLIGHT


def test_a_cpu_takes_one_batch_at_a_time() -> None:
    assert isinstance(open_pipeline(torch.device("cpu")), HostPipeline)
    assert HostPipeline.max_in_flight == 1


def slow_double(x: torch.Tensor) -> torch.Tensor:
    torch.cuda._sleep(SLEEP_CYCLES)
    return 2 * x


def slow_signals(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """One value of each field, from its input and its output."""
    torch.cuda._sleep(SLEEP_CYCLES)
    return {"input": x[:, 0, 0, 0], "output": y[:, 0, 0, 0]}


def run_overlapped(
    pipeline: Pipeline, batches: int, check: bool, *, shape: tuple[int, ...]
) -> float:
    """Seconds for that many batches of random numbers, started on this thread, waited for on another."""
    rng = generator()
    running: queue.Queue[tuple[np.ndarray, object]] = queue.Queue(IN_FLIGHT)
    wrong: list[int] = []

    def finish() -> None:
        for number in range(batches):
            batch, wait = running.get()
            answer = wait()  # type: ignore[operator]
            fields = taken(answer)
            first = batch[:, 0, 0, 0]
            if check and not (
                np.array_equal(fields, 2 * batch)
                and np.array_equal(answer.trust["input"], first)
                and np.array_equal(answer.trust["output"], 2 * first)
            ):
                wrong.append(number)

    thread = threading.Thread(target=finish)
    thread.start()
    batch = rng.standard_normal(shape).astype(np.float32)
    started = time.perf_counter()
    for _ in range(batches):
        if check:
            size = int(rng.integers(1, 1 + shape[0]))
            batch = rng.standard_normal((size, *shape[1:])).astype(np.float32)
        running.put(
            (
                batch,
                pipeline.start([batch], as_model(slow_double), partial(judged_by, slow_signals)),
            )
        )
    thread.join()
    assert not wrong
    return time.perf_counter() - started


@gpu
def test_no_batch_gets_the_values_of_another() -> None:
    run_overlapped(DevicePipeline(torch.device("cuda", 0)), 200, True, shape=(8, 3, 50, 70))


@gpu
def test_copies_network_and_signals_overlap() -> None:
    shape, batches = (16, 1, 512, 512), 40
    pipeline = DevicePipeline(torch.device("cuda", 0))
    run_overlapped(pipeline, 5, False, shape=shape)
    overlapped = run_overlapped(pipeline, batches, False, shape=shape)
    batch = np.ones(shape, np.float32)
    started = time.perf_counter()
    for _ in range(batches):
        taken(pipeline.start([batch], as_model(slow_double), partial(judged_by, slow_signals))())
    serial = time.perf_counter() - started
    sys.stderr.write(
        f"a batch: {serial / batches:.2e} s alone, {overlapped / batches:.2e} s overlapped\n"
    )
    assert overlapped < 0.6 * serial
    pinned = [memory.nbytes for of in pipeline._staging for memory in (of._input, of._output)]
    assert 0 < sum(pinned) <= 2 * IN_FLIGHT * 2 * batch.nbytes


@gpu
def test_signals_of_a_rollout_take_their_turn() -> None:
    """After its own kernels and after the signals of the batch before; its next kernels wait for them."""
    pipeline = DevicePipeline(torch.device("cuda", 0))
    count = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()  # other streams use it

    def signals(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        torch.cuda._sleep(SLEEP_CYCLES)
        return {"count": count.add_(1).clone(), "output": y[:, 0, 0, 0]}

    judge = partial(judged_by, signals)
    field = np.ones((1, 1, 4, 4), np.float32)
    wait = pipeline.start([field], as_model(slow_double), judge)
    with pipeline.in_turn():
        y = slow_double(torch.full((1, 1, 4, 4), 3.0, device="cuda"))
        found = pipeline.judge_in_turn(judge)(y, y)
        seen = {name: value.clone() for name, value in found.signals(1).items()}
    answer = wait()
    taken(answer)
    torch.cuda.synchronize()
    assert answer.trust == {"count": [1.0], "output": [2.0]}
    assert (seen["count"].item(), seen["output"].item()) == (2.0, 6.0)


def wide_config() -> ModelConfig:
    """32 channels on grids up to 512x512: half a gigabyte for one layer of a batch of 16."""
    config = tiny_config("tiny-2d", n_dim=2)
    architecture = config.architecture.model_copy(
        update={"hidden_channels": 32, "projection_channels": (32,), "n_layers": 2}
    )
    grid = config.grid.model_copy(update={"maximum": (512, 512)})
    return config.model_copy(update={"architecture": architecture, "grid": grid})


def save_wide(root: Path) -> FNO:
    torch.manual_seed(0)
    config = wide_config()
    save_model(root / "tiny-2d", config, FNO(config.architecture).eval())
    return load_model(root / "tiny-2d").module


def predict(fields: np.ndarray) -> PredictRequest:
    return PredictRequest("tiny-2d", None, fields, "r")


def error(found: np.ndarray, module: FNO, fields: np.ndarray) -> float:
    with torch.inference_mode():
        truth = module.double()(torch.from_numpy(fields).double()).numpy()
    module.float()
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


@gpu
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-6), ("tf32", 3e-3), ("bf16", 3e-2)]
)
def test_random_requests_through_the_engine_on_a_gpu(
    tmp_path: Path, precision: str, tolerance: float
) -> None:
    module = save_wide(tmp_path)
    rng = generator()
    runs = ("cuda", precision) if native_status().loaded else ("gemm", "fp32")

    async def main() -> None:
        async with running(tmp_path, device="cuda:0", max_batch_size=8, precision=precision) as (
            engine,
            metrics,
        ):
            (status,) = engine.statuses()
            assert (status.state, status.backend, status.precision) == ("READY", *runs)
            grids = [tuple(rng.integers(16, 90, 2)) for _ in range(4)]
            requests = [
                rng.standard_normal(
                    (rng.integers(1, 12), 1, *grids[rng.integers(4)]), dtype=np.float32
                )
                for _ in range(60)
            ]
            results = await asyncio.gather(*(engine.predict(predict(one)) for one in requests))
            for one, result in zip(requests, results, strict=True):
                assert error(result.fields, module, one) < tolerance
                assert (result.backend, result.precision) == runs
                assert result.compute_seconds > 0
            read = metrics.registry.get_sample_value
            for kind in ("allocated", "reserved", "peak_allocated", "limit"):
                assert (read("turbofno_device_memory_bytes", {"kind": kind}) or 0) > 0, kind
            assert (read("turbofno_staging_bytes") or 0) > 0

    asyncio.run(main())


@gpu
def test_batch_too_large_for_the_memory_is_split_and_a_field_too_large_is_refused(
    tmp_path: Path,
) -> None:
    from turbofno.service.errors import Unavailable

    module = save_wide(tmp_path)
    rng = generator()
    fields = rng.standard_normal((16, 1, 512, 512), dtype=np.float32)
    other_grid = np.ascontiguousarray(fields[:1, :, :480])
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    room = torch.cuda.memory_reserved(0) + 400 * 2**20

    async def main() -> None:
        async with running(tmp_path, device="cuda:0", device_memory_fraction=room / total) as (
            engine,
            metrics,
        ):
            assert engine.ready, engine.statuses()
            result = await engine.predict(predict(fields))
            assert error(result.fields[:2], module, fields[:2]) < 1e-5
            assert error(result.fields[-1:], module, fields[-1:]) < 1e-5
            labels = {"model": "tiny-2d", "version": "1"}
            read = metrics.registry.get_sample_value
            splits = read("turbofno_out_of_memory_splits_total", labels)
            limit = read("turbofno_lowered_batch_limit", labels)
            sys.stderr.write(f"{splits} splits, at most {limit} fields together\n")
            assert splits
            # Then batches overlap and take more memory, which may lower the limit again; it settles at a field at the latest.
            for _ in range(int(limit)):
                before = splits
                again = await engine.predict(predict(fields))
                np.testing.assert_allclose(again.fields, result.fields, rtol=1e-4, atol=1e-5)
                splits = read("turbofno_out_of_memory_splits_total", labels)
                if splits == before:
                    break
            else:
                pytest.fail("batches are split again and again")
            torch.cuda.set_per_process_memory_fraction(2**20 / total, 0)
            with pytest.raises(Unavailable, match="not enough free memory"):
                await engine.predict(predict(other_grid))
            torch.cuda.set_per_process_memory_fraction(1.0, 0)
            await engine.predict(predict(other_grid))

    try:
        asyncio.run(main())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_models_run_on_a_device_that_is_not_the_default(tmp_path: Path) -> None:
    module = save_tiny(tmp_path, "tiny-2d", n_dim=2)
    fields = generator().standard_normal((5, 1, 20, 20), dtype=np.float32)
    before = torch.cuda.memory_allocated(0)

    async def main() -> None:
        async with running(tmp_path, device="cuda:1") as (engine, _):
            result = await engine.predict(predict(fields))
            assert error(result.fields, module, fields) < 1e-5
            assert torch.cuda.memory_allocated(1) > 0
            assert torch.cuda.memory_allocated(0) == before

    asyncio.run(main())


LOSE = """
import numpy as np, torch
from turbofno.service.engine.runnable import ModelOutput
from turbofno.service.errors import DeviceLost
from turbofno.service.runtime.device_pipeline import DevicePipeline

pipeline = DevicePipeline(torch.device("cuda", 0))
field = np.ones((1, 1, 8), np.float32)
fail = lambda x: x[:, :, torch.full((8,), 99, device=x.device)]
lost = 0
for forward in (fail, torch.neg):
    try:
        pipeline.start([field], lambda x: (forward(x), None))()
    except DeviceLost:
        lost += 1
assert lost == 2, lost
print("lost")
import os; os._exit(0)
"""


@gpu
def test_an_asynchronous_error_loses_the_device() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOSE], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert "lost" in done.stdout.split(), done.stdout + done.stderr
