"""Gradients from the real server: compared with finite differences, and the examples of the docs."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import turbofno_client
from tests.draws import generator
from tests.e2e.server_process import ROOT
from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import TRAINED
from turbofno_client import AsyncClient, BadInput, Client

if TYPE_CHECKING:
    from tests.e2e.server_process import ServerProcess
    from turbofno.models.core.fno import FNO

pytestmark = [
    pytest.mark.timeout(90),
    # Coarse grids keep the tests fast.
    pytest.mark.filterwarnings("ignore::turbofno_client.PredictionWarning"),
]

DOCS = (ROOT / "docs" / "how-to" / "gradients.md").read_text()


def smooth(*shape: int) -> np.ndarray:
    """Random waves of the size of the training data."""
    x = np.linspace(0, 1, shape[-1], endpoint=False)
    amplitudes = generator().normal(size=(*shape[:-1], 4, 1)) / 4
    return (amplitudes * [np.sin(2 * np.pi * k * x + k) for k in range(1, 5)]).sum(-2)


def autograd(module: FNO, x: np.ndarray, v: np.ndarray) -> np.ndarray:
    field = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(field), field, torch.tensor(v, dtype=torch.float64))
    return gradient.numpy()


def close_to(found: np.ndarray, expected: np.ndarray, given: np.ndarray) -> bool:
    """Compare up to rounding, which is relative to the input of the network: the output may be near zero."""
    size = np.linalg.norm(expected) + 1e-3 * np.linalg.norm(given)
    return bool(np.linalg.norm(found - expected) < 1e-5 * size)


def test_finite_differences_through_the_service_agree(server: ServerProcess) -> None:
    """Compare along random directions with differences of the server's predictions."""
    with Client(server.url) as client:
        for _ in range(3):
            x, direction, v = (smooth(1, 1, 128) for _ in range(3))
            gradient = client.vjp("burgers-1d", x, v)
            # Steps so large that outputs differ by far more than float32 rounding.
            step = 1e-2
            ahead, behind = (
                client.predict("burgers-1d", x + sign * step * direction) for sign in (1, -1)
            )
            difference = float(((ahead.astype("f8") - behind) / (2 * step) * v).sum())
            scale = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
            assert abs(float((gradient * direction).sum()) - difference) < 2e-3 * scale


@pytest.mark.parametrize(
    ("model", "shape"), [("burgers-1d", (2, 1, 75)), ("navier-stokes-2d", (1, 1, 33, 40))]
)
def test_gradients_of_the_zoo_equal_autograd_in_float64(
    server: ServerProcess, model: str, shape: tuple[int, ...]
) -> None:
    module = load_model(TRAINED / model).module.double()
    x, v = smooth(*shape), generator().normal(size=shape)
    with Client(server.url) as client:
        found = client.vjp_detailed(model, x, v, output=True, version=1, priority=2, deadline=30)
        expected = autograd(module, x, v)
        assert close_to(found.gradient, expected, v)
        assert found.output is not None
        np.testing.assert_allclose(found.output, client.predict(model, x), rtol=1e-4, atol=1e-5)
        assert found.gradient.dtype == np.float32
        assert found.version == "1"
        assert found.timings["compute"] > 0
        assert client.vjp_detailed(model, x, v).output is None
        with pytest.raises(BadInput, match="the shape of the output"):
            client.vjp(model, x, v[:, :, :-1])


def test_concurrent_clients_each_get_their_own_gradient(server: ServerProcess) -> None:
    module = load_model(TRAINED / "burgers-1d").module.double()

    async def main() -> None:
        async with AsyncClient(server.url) as client:

            async def one(number: int) -> None:
                x, v = smooth(1, 64 + number % 2), smooth(1, 64 + number % 2)
                if number % 3:
                    found = await client.vjp("burgers-1d", x, v)
                    assert close_to(found, autograd(module, x[None], v[None])[0], v)
                else:
                    found = await client.predict("burgers-1d", x)
                    with torch.no_grad():
                        expected = module(torch.tensor(x[None])).numpy()[0]
                    assert close_to(found, expected, x)

            await asyncio.gather(*(one(number) for number in range(30)))

    asyncio.run(main())


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch, server: ServerProcess) -> dict[str, Any]:
    """The variables after the docs' Python example has run against the server."""
    monkeypatch.setitem(sys.modules, "turbofno_client", turbofno_client)
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace("http://127.0.0.1:8080", server.url), names)
    return names


def test_the_documented_optimisation_finds_its_target(documented: dict[str, Any]) -> None:
    value, _ = documented["loss"](np.zeros((1, 1024)))
    assert documented["found"].fun < 1e-3 * value
    assert documented["gradient"].shape == (1, 1024)


def test_the_documented_torch_step_has_the_gradient_of_the_module(
    documented: dict[str, Any],
) -> None:
    module = load_model(TRAINED / "burgers-1d").module.double()
    x = documented["x"]
    twin = x.detach().double().requires_grad_()
    module(twin[None]).square().sum().backward()
    assert twin.grad is not None
    assert float((x.grad - twin.grad).norm() / twin.grad.norm()) < 1e-4
