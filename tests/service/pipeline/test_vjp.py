"""Gradient requests are batched, split, refused and counted like predictions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.service.runtime.test_repository import random_fields, request, running
from tests.service.tiny import save_tiny, tiny_config
from turbofno.models.core.checkpoint import save_model
from turbofno.models.core.fno import FNO
from turbofno.service.engine.interface import PredictRequest, PredictResult
from turbofno.service.engine.vjp import join, part
from turbofno.service.errors import (
    DeadlineExceeded,
    NotDifferentiable,
    PayloadTooLarge,
    Unavailable,
)
from turbofno.service.pipeline.batcher import Policy
from turbofno.service.runtime.forward import Forward

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[Any]

pytestmark = pytest.mark.timeout(60)


def vjp_request(x: Array, v: Array, **options: Any) -> PredictRequest:
    rows, shapes = join(x, v)
    return request(rows, vjp=shapes, **options)


def drawn(n: int, grid: int = 16) -> tuple[Array, Array]:
    rng = generator()
    return rng.standard_normal((n, 1, grid), np.float32), rng.standard_normal(
        (n, 2, grid), np.float32
    )


def truth(module: FNO, x: Array, v: Array) -> tuple[Array, Array]:
    """The gradient in float64, of a copy, since the module itself is in use."""
    twin = FNO(module.arch)
    twin.load_state_dict(module.state_dict())
    twin.double()
    field = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = twin(field)
    (gradient,) = torch.autograd.grad(y, field, torch.tensor(v, dtype=torch.float64))
    return gradient.numpy(), y.detach().numpy()


def is_right(result: PredictResult, module: FNO, x: Array, v: Array) -> None:
    _, shapes = join(x, v)
    for found, expected in zip(part(result.fields, shapes), truth(module, x, v), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_gradients_and_predictions_each_share_batches(tmp_path: Path) -> None:
    module = save_tiny(tmp_path)

    async def main() -> None:
        async with running(tmp_path, max_batch_size=8, max_queue_delay_seconds=0.05) as (
            engine,
            metrics,
        ):
            pairs = [drawn(1) for _ in range(8)]
            fields = [random_fields(1, seed=seed) for seed in range(8)]
            gradients = asyncio.gather(*(engine.predict(vjp_request(*pair)) for pair in pairs))
            predictions = asyncio.gather(*(engine.predict(request(x)) for x in fields))
            for result, pair in zip(await gradients, pairs, strict=True):
                assert result.batch_sizes == (8,)
                assert (result.model, result.precision) == ("tiny-1d", "fp32")
                is_right(result, module, *pair)
            with torch.inference_mode():
                for result, x in zip(await predictions, fields, strict=True):
                    assert result.batch_sizes == (8,)
                    np.testing.assert_allclose(
                        result.fields, module(torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-6
                    )
            read = metrics.registry.get_sample_value
            labels = {"model": "tiny-1d", "version": "1"}
            assert read("turbofno_gradients_total", labels) == 8
            assert read("turbofno_fields_total", labels) == 8
            assert read("turbofno_queue_depth", labels) == 0
            counters = await engine.counters("tiny-1d", "1")
            assert (counters.success_count, counters.execution_count) == (16, 2)

    asyncio.run(main())


def test_mixed_load_of_many_grids_is_answered_right(tmp_path: Path) -> None:
    module = save_tiny(tmp_path)
    rng = generator()

    async def main() -> None:
        async with running(tmp_path, max_batch_size=4) as (engine, _):

            async def one(kind: int) -> None:
                n, grid = int(rng.integers(1, 7)), int(rng.choice([12, 16, 17]))
                x, v = drawn(n, grid)
                await asyncio.sleep(float(rng.uniform(0, 0.1)))
                if kind:
                    is_right(await engine.predict(vjp_request(x, v)), module, x, v)
                    return
                found = (await engine.predict(request(x))).fields
                np.testing.assert_allclose(found, truth(module, x, v)[1], rtol=1e-4, atol=1e-5)

            await asyncio.gather(*(one(kind) for kind in [0, 1] * 30))

    asyncio.run(main())


def test_memory_bounds_a_batch_and_a_field(tmp_path: Path) -> None:
    module = save_tiny(tmp_path)

    async def main() -> None:
        async with running(tmp_path) as (engine, _):
            x, v = drawn(6)
            _, shapes = join(x, v)
            kept = engine._repository.get("tiny-1d", None).gradient_bytes(shapes)
        assert kept > 0
        async with running(tmp_path, max_gradient_bytes=2 * kept + 1) as (engine, _):
            result = await engine.predict(vjp_request(x, v))
            assert result.batch_sizes == (2, 2, 2)
            is_right(result, module, x, v)
            with pytest.raises(PayloadTooLarge, match=r"TURBOFNO_MAX_GRADIENT_BYTES.*coarser grid"):
                await engine.predict(vjp_request(*drawn(1, 48)))
            assert (await engine.predict(request(random_fields(1, 48)))).batch_sizes == (1,)

    asyncio.run(main())


def test_policy_counts_the_memory_of_gradients() -> None:
    policy = Policy(max_fields=16, max_bytes=1000, max_gradient_bytes=100)
    assert policy.limit(10) == 16
    assert policy.limit(100) == 10
    assert policy.limit(10, 20) == 5
    assert policy.limit(10, 101) == 1


def test_a_batch_that_runs_out_of_memory_is_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = save_tiny(tmp_path)
    real, tried = Forward.vjp, []

    def small(self: Forward, rows: torch.Tensor, shapes: Any) -> torch.Tensor:
        tried.append(len(rows))
        answer = real(self, rows, shapes)
        if len(rows) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return answer

    monkeypatch.setattr(Forward, "vjp", small)

    async def main() -> None:
        async with running(tmp_path) as (engine, metrics):
            x, v = drawn(7)
            result = await engine.predict(vjp_request(x, v))
            is_right(result, module, x, v)
            assert max(size for size in tried if size <= 2) == 2
            labels = {"model": "tiny-1d", "version": "1"}
            read = metrics.registry.get_sample_value
            assert read("turbofno_out_of_memory_splits_total", labels) > 0
            # Predictions on the same grid keep their batch size.
            assert (await engine.predict(request(random_fields(7)))).batch_sizes == (7,)

            monkeypatch.setattr(Forward, "vjp", lambda *_, **__: torch.empty(2**60))
            with pytest.raises(Unavailable, match="not enough free memory"):
                await engine.predict(vjp_request(x, v))

    asyncio.run(main())


def test_a_model_without_a_gradient_predicts_and_says_why(tmp_path: Path) -> None:
    config = tiny_config()
    scaled = config.architecture.model_copy(update={"resolution_scaling": ((2.0,),)})
    save_model(
        tmp_path / config.name,
        config.model_copy(update={"architecture": scaled}),
        FNO(scaled).eval(),
    )

    async def main() -> None:
        async with running(tmp_path) as (engine, _):
            assert engine.ready
            with pytest.raises(
                NotDifferentiable, match=r"'tiny-1d' has no gradient: .*grid \[32\]"
            ):
                await engine.predict(vjp_request(*drawn(1)))
            assert (await engine.predict(request(random_fields(1)))).fields.shape == (1, 2, 32)

    asyncio.run(main())


def test_a_gradient_that_fails_at_load_is_refused_and_predictions_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)

    def fail(*_: Any) -> None:
        raise NotImplementedError("derivative is not implemented")

    monkeypatch.setattr(Forward, "measure_gradient", fail)

    async def main() -> None:
        async with running(tmp_path) as (engine, _):
            with pytest.raises(NotDifferentiable, match="NotImplementedError"):
                await engine.predict(vjp_request(*drawn(1)))
            await engine.predict(request(random_fields(1)))

    asyncio.run(main())


def test_out_of_memory_at_load_does_not_refuse_gradients_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = save_tiny(tmp_path)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Forward, "measure_gradient", fail)

    async def main() -> None:
        async with running(tmp_path) as (engine, _):
            x, v = drawn(2)
            is_right(await engine.predict(vjp_request(x, v)), module, x, v)

    asyncio.run(main())


def test_deadlines_cancellation_and_overflow_are_those_of_predictions(tmp_path: Path) -> None:
    module = save_tiny(tmp_path)
    # a gradient larger than the cotangent
    module.projection.linears[-1].weight.data.mul_(100)
    save_model(tmp_path / "tiny-1d", tiny_config(), module)

    async def main() -> None:
        async with running(tmp_path) as (engine, metrics):
            x, v = drawn(1)
            with pytest.raises(DeadlineExceeded):
                await engine.predict(vjp_request(x, v, deadline=0.0))
            left = asyncio.create_task(engine.predict(vjp_request(x, v)))
            await asyncio.sleep(0)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            labels = {"model": "tiny-1d", "version": "1"}
            assert metrics.registry.get_sample_value("turbofno_queue_depth", labels) == 0
            with pytest.raises(Exception, match=r"NaN or infinity for field 0.*cotangent"):
                await engine.predict(vjp_request(x, np.full_like(v, 3e38)))
            is_right(await engine.predict(vjp_request(x, v)), module, x, v)

    asyncio.run(main())
