"""Held-out fields: predictions through curl, tritonclient and turbofno_client agree with the PDE solver."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytest
import torch
from tritonclient import http as triton

from tests.e2e.traffic import close_to, npy
from turbofno.models.core.checkpoint import LoadedModel, load_model
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.pde import navier_stokes
from turbofno.models.zoo.problems import (
    BURGERS,
    DARCY,
    HELD_OUT_SEED,
    NAGUMO,
    NAVIER_STOKES,
    problem_named,
)
from turbofno_client import AsyncClient, Client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.server_process import ServerProcess

MARGIN = 2.0
"""Maximum mean error of a few held-out fields relative to the card's, which is a mean over hundreds."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out fields [n, 1, *grid], and their solutions."""

    fields: np.ndarray[Any, Any]
    solution: np.ndarray[Any, Any]


@functools.cache
def held_out(name: str) -> HeldOut:
    """A few held-out fields of a zoo model's problem, and their solutions."""
    if name == NAVIER_STOKES.name:
        # The problem's simulation runs to t = 50; its first calls from t = 10 on suffice.
        start = navier_stokes.sample_inputs(range(1), seed=HELD_OUT_SEED, n=64, dtype=torch.float32)
        frames = navier_stokes.solve(start, times=[10.0, 11.0, 12.0, 13.0, 14.0], dt=0.04)[0]
        pairs = frames[:-1], frames[1:]
    elif name in (DARCY.name, NAGUMO.name):
        frames = problem_named(name).simulate(range(2), seed=HELD_OUT_SEED)
        pairs = frames[:, 0], frames[:, 1]
    else:
        assert name == BURGERS.name
        frames = BURGERS.simulate(range(4), seed=HELD_OUT_SEED)
        pairs = frames[:, 0], frames[:, 1]
    fields, solution = (values[:, None].numpy() for values in pairs)
    return HeldOut(fields, solution)


@functools.cache
def checkpoint(name: str) -> LoadedModel:
    """The zoo's checkpoint, loaded in this process."""
    return load_model(TRAINED / name)


class Ask(Protocol):
    """A function that sends a batch to the server."""

    def __call__(
        self, server: ServerProcess, model: str, fields: np.ndarray[Any, Any], folder: Path
    ) -> np.ndarray[Any, Any]: ...


def ask_with_curl(
    server: ServerProcess, model: str, fields: np.ndarray[Any, Any], folder: Path
) -> np.ndarray[Any, Any]:
    """curl with .npy files, as a shell user would."""
    (folder / "in.npy").write_bytes(npy(fields))
    command = ["curl", "-sS", "--fail-with-body", "--max-time", "60", "-o", "out.npy"]
    command += ["-H", "Content-Type: application/x-npy", "--data-binary", "@in.npy"]
    subprocess.run(
        [*command, f"{server.url}/v1/models/{model}:predict"], cwd=folder, check=True, timeout=90
    )
    answer: np.ndarray[Any, Any] = np.load(folder / "out.npy", allow_pickle=False)
    return answer


def ask_with_tritonclient(
    server: ServerProcess,
    model: str,
    fields: np.ndarray[Any, Any],
    folder: Path,
) -> np.ndarray[Any, Any]:
    """tritonclient, unmodified."""
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    try:
        tensor = triton.InferInput("input", list(fields.shape), "FP32")
        tensor.set_data_from_numpy(fields)
        answer: np.ndarray[Any, Any] = client.infer(model, [tensor]).as_numpy("output")
        return answer
    finally:
        client.close()


def ask_with_our_client(
    server: ServerProcess,
    model: str,
    fields: np.ndarray[Any, Any],
    folder: Path,
) -> np.ndarray[Any, Any]:
    """turbofno_client."""
    with Client(server.url) as client:
        return client.predict(model, fields)


def ask_with_async_client(
    server: ServerProcess, model: str, fields: np.ndarray[Any, Any], folder: Path
) -> np.ndarray[Any, Any]:
    """turbofno_client for asyncio, with one request for each field."""

    async def ask() -> list[np.ndarray[Any, Any]]:
        async with AsyncClient(server.url) as client:
            return await asyncio.gather(*(client.predict(model, field) for field in fields))

    return np.stack(asyncio.run(ask()))


def ask_with_command_line(
    server: ServerProcess, model: str, fields: np.ndarray[Any, Any], folder: Path
) -> np.ndarray[Any, Any]:
    """`turbofno predict --plot`."""
    np.save(folder / "in.npy", fields)
    arguments = ["predict", model, "in.npy", "-o", "out.npy", "--plot", "out.png"]
    subprocess.run(
        [sys.executable, "-m", "turbofno.service", *arguments, "--url", server.url],
        cwd=folder,
        check=True,
        timeout=90,
    )
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    answer: np.ndarray[Any, Any] = np.load(folder / "out.npy", allow_pickle=False)
    return answer


WAYS = [
    ask_with_curl,
    ask_with_tritonclient,
    ask_with_our_client,
    ask_with_async_client,
    ask_with_command_line,
]


@pytest.mark.parametrize("name", [BURGERS.name, DARCY.name, NAVIER_STOKES.name, NAGUMO.name])
@pytest.mark.parametrize("ask", WAYS)
def test_served_answer_is_the_checkpoints_and_near_the_solvers(
    server: ServerProcess, name: str, ask: Ask, tmp_path: Path
) -> None:
    case, model = held_out(name), checkpoint(name)
    served = ask(server, name, case.fields, tmp_path)

    with torch.inference_mode():
        direct = model.module(torch.from_numpy(case.fields)).numpy()
    close_to(served, direct, "against a direct forward")

    errors = [
        np.linalg.norm(one - truth) / np.linalg.norm(truth)
        for one, truth in zip(served, case.solution, strict=True)
    ]
    grid = model.config.grid.training
    (stated,) = (
        metric.value
        for metric in model.config.evaluation
        if metric.name == "one call" and metric.grid == grid
    )
    assert np.mean(errors) <= MARGIN * stated


def test_one_field_without_a_batch_axis_comes_back_without_one(server: ServerProcess) -> None:
    field = held_out(BURGERS.name).fields[0]
    with Client(server.url) as client:
        alone = client.predict(BURGERS.name, field)
        together = client.predict(BURGERS.name, held_out(BURGERS.name).fields)
    close_to(alone, together[0], "alone and in a batch")


def test_a_rollout_through_the_server_follows_the_solver(server: ServerProcess) -> None:
    case = held_out(NAVIER_STOKES.name)
    state = case.fields[:1]
    with Client(server.url) as client:
        for truth in case.solution:
            state = client.predict(NAVIER_STOKES.name, state)
            error = np.linalg.norm(state[0] - truth) / np.linalg.norm(truth)
    (stated,) = (
        metric.value
        for metric in checkpoint(NAVIER_STOKES.name).config.evaluation
        if metric.name.startswith("rollout")
    )
    assert error <= MARGIN * stated
