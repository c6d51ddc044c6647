"""The torch function of a served model: first derivatives, and a refusal of all others."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import httpx
import numpy as np
import pytest
import torch
from torch.autograd import forward_ad, functional

from turbofno_client import Client, jax_function, torch_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Function = Callable[[torch.Tensor], torch.Tensor]

X, V = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 1.0, -1.0])


def squares(request: httpx.Request) -> httpx.Response:
    """A server whose model squares each value."""
    given, buffer = np.load(io.BytesIO(request.content)), io.BytesIO()
    if request.url.path.endswith(":vjp"):
        np.savez(buffer, gradient=2 * given["input"] * given["cotangent"])
    else:
        np.save(buffer, given**2)
    return httpx.Response(200, content=buffer.getvalue())


@pytest.fixture
def served() -> Iterator[Function]:
    with Client("http://test", transport=httpx.MockTransport(squares)) as client:
        yield torch_function(client, "m")


def penalty(served: Function) -> None:
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(served(x).sum(), x, create_graph=True)
    (x.sum() + gradient.square().sum()).backward()


def cotangent_of_a_parameter(served: Function) -> None:
    """Differentiates the gradient by the cotangent."""
    x, w = X.clone().requires_grad_(), V.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((w * served(x)).sum(), x, create_graph=True)
    torch.autograd.grad(gradient.sum(), w)


def dual(served: Function) -> None:
    with forward_ad.dual_level():
        served(forward_ad.make_dual(X, V))


def dual_cotangent(served: Function) -> None:
    x = X.clone().requires_grad_()
    y = served(x)
    with forward_ad.dual_level():
        torch.autograd.grad(y, x, forward_ad.make_dual(torch.ones(3), V))


@pytest.mark.parametrize(
    "differentiate",
    [
        lambda served: functional.jvp(served, X, V),
        lambda served: functional.hessian(lambda x: served(x).sum(), X),
        lambda served: functional.hvp(lambda x: served(x).sum(), X, V),
        lambda served: functional.vhp(lambda x: served(x).sum(), X, V),
        penalty,
        cotangent_of_a_parameter,
        dual,
        dual_cotangent,
    ],
    ids=["jvp", "hessian", "hvp", "vhp", "penalty", "cotangent", "dual", "dual_cotangent"],
)
def test_derivatives_but_gradients_are_refused(
    served: Function, differentiate: Callable[[Function], object]
) -> None:
    with pytest.raises(NotImplementedError, match="model 'm' has first derivatives in reverse"):
        differentiate(served)


def test_transforms_of_torch_func_are_refused(served: Function) -> None:
    with pytest.raises(RuntimeError):
        torch.func.jvp(served, (X,), (V,))


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_are_given_also_with_a_graph(served: Function, create_graph: bool) -> None:
    expected = 2 * X * V
    _, gradient = functional.vjp(served, X, V, create_graph=create_graph)
    assert torch.equal(gradient, expected)
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(served(x), x, V, create_graph=create_graph)
    assert torch.equal(gradient, expected)
    assert gradient.requires_grad == create_graph
    # Only used, not differentiated.
    (gradient.detach().square().sum() + (V * served(x)).sum()).backward()
    assert x.grad is not None
    assert torch.equal(x.grad, expected)
    jacobian = functional.jacobian(served, X, create_graph=create_graph)
    assert torch.equal(jacobian, torch.diag(2 * X))


def test_a_jax_function_takes_its_shapes_from_the_version_that_it_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths: list[str] = []

    def describe(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        about = {"name": "m", "grid": {"training": [3]}, "output": {"channels": [{"name": "u"}]}}
        return httpx.Response(200, json=about)

    monkeypatch.setitem(sys.modules, "jax", MagicMock())
    with Client("http://test", transport=httpx.MockTransport(describe)) as client:
        jax_function(client, "m", version=1)
        jax_function(client, "m")
    assert paths == ["/v1/models/m/versions/1", "/v1/models/m"]
