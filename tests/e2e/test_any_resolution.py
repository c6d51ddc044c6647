"""Input and output on different grids, over HTTP, compared with the solvers and with a float64 forward pass and scipy."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import torch
from scipy import signal
from scipy.interpolate import RegularGridInterpolator
from tritonclient import http as triton

from tests.draws import generator
from tests.e2e.test_predictions import MARGIN, checkpoint
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.pde import darcy, navier_stokes
from turbofno.models.zoo.problems import BURGERS, DARCY, HELD_OUT_SEED, NAVIER_STOKES
from turbofno_client import AsyncClient, BadInput, Client, PredictionWarning

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.server_process import ServerProcess

    Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.filterwarnings("ignore::turbofno_client.PredictionWarning")


def relative(answer: Array, truth: Array) -> float:
    axes = tuple(range(1, truth.ndim))
    squares = ((answer - truth) ** 2).sum(axes) / (truth**2).sum(axes)
    return float(np.sqrt(squares).mean())


def periodic(values: Array, size: tuple[int, ...]) -> Array:
    for axis, points in enumerate(size, start=2):
        values = signal.resample(values, points, axis=axis)
    return values


def nodes(values: Array, size: tuple[int, ...]) -> Array:
    axes = [np.linspace(0, 1, n) for n in values.shape[2:]]
    places = [np.linspace(0, 1, n).clip(0, 1) for n in size]
    points = np.stack(np.meshgrid(*places, indexing="ij"), -1)
    flat = [RegularGridInterpolator(axes, v)(points) for v in values.reshape(-1, *map(len, axes))]
    return np.stack(flat).reshape(*values.shape[:2], *size)


def exact(name: str, fields: Array, grid: tuple[int, ...]) -> Array:
    """The expected output, computed in float64. For periodic models, the output grid must not be coarser than the training grid."""
    model = checkpoint(name)
    bring = nodes if model.config.grid.boundary == "nodes" else periodic
    inside = bring(fields.astype(np.float64), model.config.grid.training)
    with torch.inference_mode():
        answer = copy.deepcopy(model.module).double()(torch.from_numpy(inside)).numpy()
    return bring(answer, grid)


@pytest.mark.parametrize(
    ("name", "given", "asked"),
    [
        (BURGERS.name, (331,), (1025,)),
        (BURGERS.name, (4096,), (2048,)),
        (NAVIER_STOKES.name, (47, 90), (81, 64)),
        (DARCY.name, (61, 97), (118, 43)),
    ],
)
def test_output_equals_a_float64_forward_pass(
    server: ServerProcess, name: str, given: tuple[int, ...], asked: tuple[int, ...]
) -> None:
    fields = generator().normal(size=(2, 1, *given)).astype("f4")
    if name == DARCY.name:
        fields = np.where(fields > 0, 12.0, 3.0).astype("f4")
    with Client(server.url) as client:
        answer = client.predict(name, fields, output_grid=asked)
    assert relative(answer, exact(name, fields, asked)) < 2e-5


def test_outputs_on_other_grids_have_the_error_that_the_card_states(
    server: ServerProcess,
) -> None:
    w = navier_stokes.sample_inputs(range(1), seed=HELD_OUT_SEED, n=96, dtype=torch.float32)
    frames = navier_stokes.solve(w, times=[10.0, 11.0], dt=0.04).numpy()[:, :, None]
    with Client(server.url) as client:
        for given, asked in ((96, 96), (48, 96), (96, 48)):
            fields, truth = frames[:, 0, :, :: 96 // given, :: 96 // given], frames[:, 1]
            answer = client.predict(NAVIER_STOKES.name, fields, output_grid=(asked, asked))
            card = checkpoint(NAVIER_STOKES.name).config.evaluation[0].value
            assert relative(answer, truth[:, :, :: 96 // asked, :: 96 // asked]) < MARGIN * card
        a = darcy.sample_inputs(range(1), seed=HELD_OUT_SEED)
        truth = darcy.solve(a)[:, None].numpy()
        answer = client.predict(DARCY.name, a[:, None].numpy(), output_grid=(421, 421))
        assert relative(answer, truth) < MARGIN * checkpoint(DARCY.name).config.evaluation[0].value


def test_many_grids_share_a_batch_and_each_gets_its_own_answer(server: ServerProcess) -> None:
    grids = [(random.randint(33, 99), random.randint(33, 99)) for _ in range(24)]
    fields = [generator().normal(size=(1, *grid)).astype("f4") for grid in grids]
    asked = [tuple(random.randint(64, 99) for _ in range(2)) for _ in grids]
    name = NAVIER_STOKES.name

    def batches() -> float:
        text = httpx.get(f"{server.url}/metrics").text
        line = rf'^turbofno_batch_size_count{{.*model="{name}".*}} (\S+)$'
        return sum(map(float, re.findall(line, text, re.MULTILINE)))

    async def together() -> list[Array]:
        async with AsyncClient(server.url) as client:
            calls = zip(fields, asked, strict=True)
            return await asyncio.gather(
                *(client.predict(name, f, output_grid=grid) for f, grid in calls)
            )

    before = batches()
    answers = asyncio.run(together())
    assert batches() - before < len(grids)
    for field, grid, answer in zip(fields, asked, answers, strict=True):
        assert relative(answer[None], exact(name, field[None], grid)) < 2e-5


def test_tritonclient_requests_a_grid_by_parameter_and_gets_a_warning(
    server: ServerProcess,
) -> None:
    fields = generator().normal(size=(1, 1, 40)).astype("f4")
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    try:
        tensor = triton.InferInput("input", list(fields.shape), "FP32")
        tensor.set_data_from_numpy(fields)
        result = client.infer(BURGERS.name, [tensor], parameters={"output_grid": "1100"})
    finally:
        client.close()
    assert relative(result.as_numpy("output"), exact(BURGERS.name, fields, (1100,))) < 2e-5
    assert "input grid 40" in result.get_response()["parameters"]["warning"]


def test_client_warns_and_refuses(server: ServerProcess) -> None:
    fields = np.zeros((1, 1, 40), np.float32)
    with Client(server.url) as client:
        with pytest.warns(PredictionWarning, match="input grid 40"):
            client.predict(BURGERS.name, fields)
        prediction = client.predict_detailed(BURGERS.name, fields, output_grid=(9000,))
        assert [text.split(" is ")[0] for text in prediction.warnings if "grid" in text] == [
            "the input grid 40",
            "the output grid 9000",
        ]
        usual = BURGERS.sample(range(1), seed=HELD_OUT_SEED).numpy()[:, None]
        assert client.predict_detailed(BURGERS.name, usual).warnings == ()
        with pytest.raises(BadInput, match="axis 0 has 31 points"):
            client.predict(BURGERS.name, fields, output_grid=(31,))


def test_the_repeated_end_of_a_periodic_grid_warns(server: ServerProcess) -> None:
    """Its trust signals may be those of usual inputs, with errors tens of times the card's."""
    name = NAVIER_STOKES.name
    told = "the last points on grid axis 0 and 1 repeat the first: a periodic grid ends one spacing"

    with Client(server.url) as client:
        flow = client.sample(name)
        closed = np.pad(flow, ((0, 0), (0, 1), (0, 1)), mode="wrap")
        truth = client.solve(name, flow)
        for grid in (None, (64, 64)):
            found = client.predict_detailed(name, closed, output_grid=grid)
            text, *_ = found.warnings
            assert text.startswith(told)
            assert relative(found.fields[:, :64, :64], truth) > 0.02
        with pytest.warns(PredictionWarning, match=told):
            next(client.rollout(name, closed, 2))
        assert client.predict_detailed(name, flow).warnings == ()
        assert client.predict_detailed(name, flow, output_grid=(65, 65)).warnings == ()
    entry = {"name": "input", "shape": [1, *closed.shape], "datatype": "FP32"}
    entry["data"] = closed.ravel().tolist()
    asked = httpx.post(f"{server.url}/v2/models/{name}/infer", json={"inputs": [entry]}, timeout=60)
    assert asked.json()["parameters"]["warning"].startswith(told)


@pytest.mark.parametrize("local", [False, True])
def test_command_line_writes_the_output_on_the_requested_grid(
    server: ServerProcess, tmp_path: Path, local: bool
) -> None:
    fields = generator().choice([3.0, 12.0], size=(1, 43, 43)).astype("f4")
    np.save(tmp_path / "in.npy", fields)
    where = ["--local"] if local else ["--url", server.url]
    done = subprocess.run(
        [sys.executable, "-m", "turbofno.service", "predict", DARCY.name, "in.npy", "-o", "out.npy",
         "--output-grid", "50,60", "--plot", "out.png", *where],
        cwd=tmp_path,
        env=os.environ
        | {"TURBOFNO_MODEL_REPOSITORY": str(TRAINED)},
        check=True, timeout=90, capture_output=True, text=True,
    )  # fmt: skip
    answer = np.load(tmp_path / "out.npy")
    assert answer.shape == (1, 50, 60)
    assert relative(answer[None], exact(DARCY.name, fields[None], (50, 60))) < 2e-5
    assert "warning: the input grid 43x43" in done.stderr
