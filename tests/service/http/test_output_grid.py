"""output_grid and warnings of unevaluated grids in both protocols, with a fake engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import numpy as np
import pytest

from tests.draws import generator
from tests.service.http.fake_engine import FakeEngine
from tests.service.http.serving import serving
from tests.service.http.test_predict import NPY, post, problem, read, written
from tests.service.tiny import tiny_config
from turbofno.models.core.config import FieldNormalization, ModelConfig
from turbofno.models.core.regrid import at_points, band_limited
from turbofno.service.codec.grids import grid_warnings, parse_output_grid
from turbofno.service.errors import InvalidField

INFER = "/v2/models/{}/infer"
PREDICT = "/v1/models/{}:predict"


def drawn(*grid: int, n: int = 3) -> np.ndarray[Any, Any]:
    return generator().normal(size=(n, 1, *grid)).astype("f4")


def expected(fields: np.ndarray[Any, Any], grid: tuple[int, ...]) -> np.ndarray[Any, Any]:
    training = (16,) * len(grid)
    inside = FakeEngine.answer(band_limited(fields, training, "periodic"), 2)
    return at_points(inside, grid, "periodic")


def infer(model: str, fields: np.ndarray[Any, Any], **parameters: Any) -> Any:
    entry = {"name": "input", "shape": list(fields.shape), "datatype": "FP32"}
    body = {"inputs": [entry | {"data": fields.reshape(-1).tolist()}], "parameters": parameters}
    return post(INFER.format(model), json=body)


@pytest.mark.parametrize(("given", "asked"), [((11,), (33,)), ((64,), (9,)), ((9, 50), (21, 8))])
def test_predict_runs_on_the_training_grid_and_answers_on_the_requested_one(
    given: tuple[int, ...], asked: tuple[int, ...]
) -> None:
    fields, model = drawn(*given), f"tiny-{len(given)}d"
    text = ",".join(map(str, asked))
    response, engine = post(
        PREDICT.format(model) + f"?output_grid={text}",
        content=written(NPY, fields),
        headers={"Content-Type": NPY},
    )
    assert engine.requests[0].fields.shape == (3, 1, *(16,) * len(given))
    np.testing.assert_allclose(read(response), expected(fields, asked), atol=1e-6)
    response, engine = infer(model, fields, output_grid=text)
    (output,) = response.json()["outputs"]
    assert output["shape"] == [3, 2, *asked]
    answer = np.array(output["data"], "f4").reshape(output["shape"])
    np.testing.assert_allclose(answer, expected(fields, asked), atol=1e-6)


def test_predict_one_field_by_channel_keeps_its_form_on_another_grid() -> None:
    fields = drawn(20, n=1)
    response, _ = post(
        PREDICT.format("tiny-1d") + "?output_grid=30",
        json={"inputs": {"u0": fields[0, 0].tolist()}},
    )
    outputs = response.json()["outputs"]
    answer = np.array([outputs["u"], outputs["v"]], "f4")
    np.testing.assert_allclose(answer, expected(fields, (30,))[0], atol=1e-6)


def test_predict_from_and_to_the_training_grid_changes_nothing() -> None:
    fields = drawn(16)
    response, engine = post(
        PREDICT.format("tiny-1d") + "?output_grid=16",
        content=written(NPY, fields),
        headers={"Content-Type": NPY},
    )
    np.testing.assert_array_equal(engine.requests[0].fields, fields)
    np.testing.assert_array_equal(read(response), FakeEngine.answer(fields, 2))
    assert "x-warning" not in response.headers


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ("7", 422, "axis 0 has 7 points, allowed are 8 to 64"),
        ("65", 422, "axis 0 has 65 points"),
        ("16,16", 422, "has 2 axes, model 'tiny-1d' has 1"),
        ("", 400, "output_grid=16"),
        ("16x16", 400, "output_grid=16"),
        ("-16", 400, "output_grid=16"),
        ("1e1", 400, "output_grid=16"),
        ("16,x", 400, "output_grid=16"),
        ("9" * 5000, 400, "output_grid=16"),
        ("1," * 5000, 400, "output_grid=16"),
    ],
)
def test_invalid_grids_are_refused_before_the_body_is_read(
    asked: str, status: int, words: str
) -> None:
    response, engine = post(
        PREDICT.format("tiny-1d"),
        params={"output_grid": asked},
        content=b"not a body",
        headers={"Content-Type": NPY},
    )
    assert response.status_code == status
    assert words in problem(response)["detail"]
    response, _ = infer("tiny-1d", drawn(16), output_grid=asked)
    assert response.status_code == status
    assert words in response.json()["error"]
    assert not engine.requests


@pytest.mark.parametrize("asked", [32, [32], True, {"x": 32}])
def test_infer_output_grid_of_another_type_is_refused(asked: Any) -> None:
    response, _ = infer("tiny-1d", drawn(16), output_grid=asked)
    assert response.status_code == 400
    assert "output_grid" in response.json()["error"]


@pytest.mark.parametrize(("given", "asked"), [(15, 16), (16, 33)])
def test_interpolated_values_outside_float32_are_refused(given: int, asked: int) -> None:
    # Steps of half the largest float32: a Fourier series through them overshoots.
    fields = np.full((1, 1, given), 0.499 * np.finfo("f4").max, "f4")
    fields[..., : given // 2] *= -1 if given == 16 else -2
    response, _ = post(
        PREDICT.format("tiny-1d") + f"?output_grid={asked}",
        content=written(NPY, fields),
        headers={"Content-Type": NPY},
    )
    assert response.status_code == 422
    assert "overflows float32" in problem(response)["detail"]


def changed(**parts: Any) -> ModelConfig:
    return tiny_config().model_copy(update=parts)


def test_cell_centres_and_field_normalization_are_refused_with_a_reason() -> None:
    centred = tiny_config().architecture.model_copy(update={"positional_grid": "cell_centres"})
    with pytest.raises(InvalidField, match="cell centres"):
        parse_output_grid("32", changed(architecture=centred))
    grid = tiny_config().grid.model_copy(update={"minimum": (16,), "maximum": (16,)})
    fixed = changed(field_normalization=FieldNormalization(grid=(16,)), grid=grid)
    with pytest.raises(InvalidField, match="its normalisation is defined"):
        parse_output_grid("32", fixed)
    assert parse_output_grid("16", fixed) == (16,)


def test_predict_too_large_answer_is_413_and_one_that_does_not_fit_now_is_429() -> None:
    # 30 fields of 8 points; on the network's grid 3 * 16 values each, in the answer 2 * 64
    body = {"content": written(NPY, drawn(8, n=30)), "headers": {"Content-Type": NPY}}
    needed = 4 * 30 * (3 * 16 + 2 * 64)
    limits = {"max_body_bytes": 4000, "max_json_bytes": 4000}
    path = PREDICT.format("tiny-1d") + "?output_grid=64"
    response, engine = post(path, settings={**limits, "max_inflight_bytes": needed - 1}, **body)
    assert response.status_code == 413
    assert "output_grid" in problem(response)["detail"]
    assert not engine.requests
    # With the body it never fits.
    response, _ = post(path, settings={**limits, "max_inflight_bytes": needed + 10}, **body)
    assert response.status_code == 413
    assert "Send fewer fields" in problem(response)["detail"]

    async def run() -> None:
        async with serving(**limits, max_inflight_bytes=needed + 4000) as (client, engine):
            engine.held = True
            first = asyncio.create_task(client.post(path, **body))
            await engine.started.wait()
            assert (await client.post(path, **body)).status_code == 429
            engine.release.set()
            assert (await first).status_code == 200

    asyncio.run(run())


def test_an_answer_as_json_is_reserved_with_its_text() -> None:
    # On the network's grid 3 * 16 values, in the answer 2 * 64, and three times the bytes of these as text.
    needed = 4 * 30 * (3 * 16 + 4 * 2 * 64)
    settings = {"max_body_bytes": 4000, "max_json_bytes": 4000, "max_inflight_bytes": needed - 1}
    path = PREDICT.format("tiny-1d") + "?output_grid=64"
    body, headers = written(NPY, drawn(8, n=30)), {"Content-Type": NPY}
    response, _ = post(path, settings=settings, content=body, headers=headers)
    assert response.status_code == 200
    headers["Accept"] = "application/json"
    response, engine = post(path, settings=settings, content=body, headers=headers)
    assert response.status_code == 413
    assert f"take {needed} bytes" in problem(response)["detail"]
    assert "binary format" in problem(response)["detail"]
    assert not engine.requests
    entry = {"name": "input", "shape": [30, 1, 8], "datatype": "FP32", "data": [0] * 240}
    document = {"inputs": [entry], "parameters": {"output_grid": "64"}}
    response, engine = post(INFER.format("tiny-1d"), settings=settings, json=document)
    assert response.status_code == 413
    assert not engine.requests


def test_memory_for_a_network_that_changes_the_resolution_counts_its_own_grid() -> None:
    async def run(limit: int) -> httpx.Response:
        async with serving(max_body_bytes=4000, max_json_bytes=4000, max_inflight_bytes=limit) as (
            client,
            engine,
        ):
            for key, config in engine.configs.items():
                finer = {"resolution_scaling": ((8.0,),)}
                architecture = config.architecture.model_copy(update=finer)
                engine.configs[key] = config.model_copy(update={"architecture": architecture})
            content = written(NPY, drawn(8, n=30))
            path = PREDICT.format("tiny-1d") + "?output_grid=8"
            return await client.post(path, content=content, headers={"Content-Type": NPY})

    # For 30 fields 16 values of the input on the training grid, 2 * 128 of the network's output, 2 * 8 of the answer.
    response = asyncio.run(run(4 * 30 * (16 + 2 * 128 + 2 * 8) - 1))
    assert response.status_code == 413
    assert f"take {4 * 30 * (16 + 2 * 128 + 2 * 8)} bytes" in problem(response)["detail"]


def requests_counted(metrics: str) -> float:
    lines = [
        line for line in metrics.splitlines() if line.startswith("turbofno_prediction_warnings")
    ]
    return sum(float(line.split()[-1]) for line in lines if "_total" in line)


def test_unevaluated_grids_warn_in_every_form_and_are_counted() -> None:
    async def run() -> None:
        async with serving() as (client, _):
            path = PREDICT.format("tiny-1d")
            headers = {"Content-Type": NPY}
            plain = await client.post(path, content=written(NPY, drawn(16)), headers=headers)
            assert "x-warning" not in plain.headers
            assert requests_counted((await client.get("/metrics")).text) == 0
            off = await client.post(path, content=written(NPY, drawn(17)), headers=headers)
            assert "input grid 17" in off.headers["x-warning"]
            both = await client.post(
                path + "?output_grid=18", json={"inputs": {"input": drawn(17).tolist()}}
            )
            texts = both.json()["warnings"]
            assert [text.split(" is ")[0] for text in texts] == [
                "the input grid 17", "the output grid 18"
            ]  # fmt: skip
            assert both.headers["x-warning"].split("; ") == texts
            entry = {"name": "input", "shape": [1, 1, 15], "datatype": "FP32"}
            entry["data"] = drawn(15, n=1).reshape(-1).tolist()
            infer = await client.post(
                INFER.format("tiny-1d"), content=json.dumps({"inputs": [entry]})
            )
            assert "input grid 15" in infer.json()["parameters"]["warning"]
            assert requests_counted((await client.get("/metrics")).text) == 3

    asyncio.run(run())


def test_an_answer_beyond_a_physical_bound_warns_in_both_protocols() -> None:
    """Also where its values are checked on a codec thread: 3 answers are small, 9000 are not."""
    limits = {"max_fields_per_request": 9000, "max_queued_fields_per_model": 9000}

    async def run() -> None:
        async with serving(**limits) as (client, engine):
            for key, config in engine.configs.items():
                u, v = config.outputs
                outputs = (u.model_copy(update={"minimum": 1e6}), v)
                engine.configs[key] = config.model_copy(update={"outputs": outputs})
            for n in (3, 9000):
                answer = await client.post(
                    PREDICT.format("tiny-1d"),
                    content=written(NPY, drawn(16, n=n)),
                    headers={"Content-Type": NPY},
                )
                assert answer.status_code == 200
                words = "field 0, channel 'u', grid point [0] is "
                assert answer.headers["x-warning"].startswith(words)
                assert answer.headers["x-warning"].endswith("at least 1e+06, the physical bound")
            entry = {"name": "input", "shape": [1, 1, 16], "datatype": "FP32"}
            entry["data"] = drawn(16, n=1).reshape(-1).tolist()
            infer = await client.post(
                INFER.format("tiny-1d"), content=json.dumps({"inputs": [entry]})
            )
            assert infer.json()["parameters"]["warning"].startswith(words)
            metrics = (await client.get("/metrics")).text
            assert requests_counted(metrics) == 3

    asyncio.run(run())


def test_an_input_beyond_a_physical_bound_once_interpolated_warns_in_both_protocols() -> None:
    """A Fourier series overshoots at a jump. The same values on the training grid are refused."""
    jump = np.repeat(np.float32([0.0, 1.0]), 16)[None, None]

    async def run() -> None:
        async with serving() as (client, engine):
            for key, config in engine.configs.items():
                (u0,) = config.inputs
                inputs = (u0.model_copy(update={"minimum": 0.0}),)
                engine.configs[key] = config.model_copy(update={"inputs": inputs})
            path, headers = PREDICT.format("tiny-1d"), {"Content-Type": NPY}
            for grid in ("16", "32"):
                answer = await client.post(
                    f"{path}?output_grid={grid}", content=written(NPY, jump), headers=headers
                )
                warning = answer.headers["x-warning"]
                words = "the input, interpolated to the training grid: field 0, channel 'u0', grid point ["
                assert warning.startswith(words)
                assert "expected at least 0, the physical bound" in warning
            entry = {"name": "input", "shape": [1, 1, 32], "datatype": "FP32"}
            entry["data"] = jump.reshape(-1).tolist()
            asked = {"inputs": [entry], "parameters": {"output_grid": "16"}}
            infer = await client.post(INFER.format("tiny-1d"), content=json.dumps(asked))
            assert infer.json()["parameters"]["warning"].startswith(words)
            # Resolved, and 0 at some points: interpolated, it is -3e-9 there.
            touching = np.float32(np.sin(2 * np.pi * np.arange(32) / 32) ** 2)[None, None]
            assert band_limited(touching, (16,), "periodic").min() < 0
            answer = await client.post(
                f"{path}?output_grid=16", content=written(NPY, touching), headers=headers
            )
            assert "physical bound" not in answer.headers["x-warning"]
            inside = band_limited(jump, (16,), "periodic")
            refused = await client.post(path, content=written(NPY, inside), headers=headers)
            assert refused.status_code == 422

    asyncio.run(run())


def test_grid_warnings_compare_training_and_evaluated_grids_axis_by_axis() -> None:
    config = tiny_config(n_dim=2)
    (text,) = grid_warnings(config, (20, 20), None)
    assert "evaluated on" not in text
    assert "is not the training grid of model tiny-1d, which is 16x16 (an import assumes it" in text
    assert "the model was not evaluated: its error is unknown" in text
    assert ";" not in text
    metric = {"name": "one call", "value": 0.1, "n_samples": 1}
    # The last grid has no effect.
    evaluation = [metric | {"grid": grid} for grid in ((32, 24), (99,))]
    config = ModelConfig.model_validate(config.model_dump() | {"evaluation": evaluation})
    assert grid_warnings(config, (16, 16), (32, 24)) == ()
    assert grid_warnings(config, (20, 20), None) == ()
    (text,) = grid_warnings(config, (20, 25), None)
    assert "20x25" in text
    assert "16x16 to 32x24" in text
    assert ";" not in text


def test_rollout_warns_in_a_header_too() -> None:
    from tests.service.tiny import rollable_config

    async def run() -> httpx.Response:
        async with serving() as (client, engine):
            config = rollable_config()
            engine.configs[config.name, config.version] = config
            return await client.post(
                "/v1/models/tiny-flow:rollout?steps=2",
                content=written(NPY, drawn(20)),
                headers={"Content-Type": NPY, "Accept": "application/vnd.turbofno.frames"},
            )

    response = asyncio.run(run())
    assert response.status_code == 200, response.text
    assert "input grid 20" in response.headers["x-warning"]
