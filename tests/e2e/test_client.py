"""The client against the real server: samples, solutions, cards, single fields, named inputs, autograd."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import TRAINED
from turbofno_client import AsyncClient, BadInput, Client, NotFound, torch_function

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


def test_a_sample_its_prediction_and_its_solution_agree(client: Client) -> None:
    field = client.sample("burgers-1d", seed=5)
    solved = client.solve("burgers-1d", seed=5)
    assert field.shape == solved.shape == (1, 1024)
    assert field.dtype == solved.dtype == np.float32
    error = client.predict("burgers-1d", field) - solved
    assert np.linalg.norm(error) < 0.01 * np.linalg.norm(solved)
    of_field = client.solve("burgers-1d", field)
    assert np.linalg.norm(of_field - solved) < 0.01 * np.linalg.norm(solved)
    smooth = client.sample("darcy-2d", seed=1, grid=43, parameters={"low": 5.0})
    assert smooth.shape == (1, 43, 43)
    assert smooth.min() == 5.0
    with pytest.raises(BadInput, match="no_such_parameter"):
        client.sample("darcy-2d", parameters={"no_such_parameter": 1.0})


def test_the_card_is_the_file(client: Client) -> None:
    assert client.card("darcy-2d") == (TRAINED / "darcy-2d" / "card.md").read_text()
    with pytest.raises(NotFound):
        client.card("other")


def test_one_field_without_batch_axis_is_accepted(client: Client) -> None:
    field = client.sample("darcy-2d", seed=2)
    whole = client.predict("darcy-2d", field)
    bare = client.predict("darcy-2d", field[0])
    assert bare.shape == (85, 85)
    np.testing.assert_allclose(bare, whole[0], rtol=1e-5, atol=1e-7)
    assert client.solve("darcy-2d", field[0]).shape == (85, 85)
    gradient = client.vjp("darcy-2d", field[0], bare)
    assert gradient.shape == (85, 85)
    flow = client.sample("navier-stokes-2d")[0]
    (frame,) = client.rollout("navier-stokes-2d", flow, 2, frames="last")
    assert frame.fields.shape == (64, 64)


def test_named_inputs_give_named_outputs(client: Client, server: ServerProcess) -> None:
    field = client.sample("darcy-2d", seed=2)
    whole = client.predict("darcy-2d", field)
    (channel,) = (one["name"] for one in client.model("darcy-2d")["input"]["channels"])
    (answer,) = (one["name"] for one in client.model("darcy-2d")["output"]["channels"])
    named = client.predict("darcy-2d", {channel: field[0]})
    np.testing.assert_allclose(named[answer], whole[0], rtol=1e-5, atol=1e-7)
    detailed = client.vjp_detailed("darcy-2d", {channel: field}, {answer: whole}, output=True)
    assert detailed.gradient[channel].shape == detailed.output[answer].shape == (1, 85, 85)
    assert client.solve("darcy-2d", {channel: field[0]})[answer].shape == (85, 85)

    async def roll() -> None:
        flow = client.sample("navier-stokes-2d")
        async with AsyncClient(server.url) as other:
            plain = [one.fields async for one in other.rollout("navier-stokes-2d", flow, 2)]
            for given in ({"vorticity": flow[0]}, {"vorticity": flow}, {"input": flow}):
                rank = np.ndim(next(iter(given.values())))
                frames = [one.fields async for one in other.rollout("navier-stokes-2d", given, 2)]
                for frame, expected in zip(frames, plain, strict=True):
                    (values,) = frame.values()
                    assert set(frame) == {"output" if "input" in given else "vorticity"}
                    assert values.ndim == rank
                    np.testing.assert_allclose(values.squeeze(), expected[0], rtol=1e-4, atol=1e-4)

    asyncio.run(roll())


@pytest.mark.parametrize("leading", [(), (1,), (2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_torch_function_has_the_gradient_of_the_module(
    client: Client, leading: tuple[int, ...], dtype: torch.dtype
) -> None:
    module = load_model(TRAINED / "burgers-1d").module.double()
    field = np.broadcast_to(client.sample("burgers-1d", seed=3)[0], (*leading, 1024))
    x = torch.tensor(field, dtype=dtype, requires_grad=True)
    twin = x.detach().double().reshape(-1, 1, 1024).requires_grad_()
    y = torch_function(client, "burgers-1d", priority=1)(x)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    y.square().sum().backward()
    module(twin).square().sum().backward()
    assert x.grad is not None
    assert twin.grad is not None
    found = x.grad.double().reshape(twin.shape)
    # bfloat16 has eight significant bits, also in the cotangent.
    allowed = 0.02 if dtype is torch.bfloat16 else 1e-4
    assert float((found - twin.grad).norm() / twin.grad.norm()) < allowed


def test_a_jax_function_has_the_gradient_of_the_module(client: Client) -> None:
    jax = pytest.importorskip("jax")
    from turbofno_client import jax_function

    module = load_model(TRAINED / "burgers-1d").module.double()
    served = jax_function(client, "burgers-1d")
    fields = np.stack([client.sample("burgers-1d", seed=seed) for seed in range(3)])
    twin = torch.tensor(fields, dtype=torch.float64, requires_grad=True)
    module(twin).square().sum().backward()
    assert twin.grad is not None
    expected = twin.grad.numpy()
    gradient = jax.grad(lambda x: (served(x) ** 2).sum())
    for found in (
        gradient(fields),
        jax.jit(gradient)(fields),
        jax.vmap(gradient)(fields),
        jax.vmap(gradient)(fields[:, 0])[:, None],
        jax.vmap(jax.vmap(gradient))(fields[:, None])[:, 0],
    ):
        assert found.shape == expected.shape
        assert np.linalg.norm(found - expected) < 1e-4 * np.linalg.norm(expected)
    with pytest.raises(BadInput, match="1 grid axes"):
        served(np.zeros((1, 1, 1, 64)))
