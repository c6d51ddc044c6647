"""A served model as a differentiable function of torch or JAX, which are imported only when used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ._calls import VjpOptions
from ._clients import Client
from ._errors import BadInput

if TYPE_CHECKING:
    import jax
    import torch


def torch_function(
    client: Client,
    model: str,
    *,
    version: str | int | None = None,
    deadline: float | None = None,
    priority: int = 0,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Make a served model a function of torch tensors that supports autograd (first derivatives).

    Args:
        client: a blocking client of the server.
        model, version, deadline, priority: as for `Client.predict`.

    Returns:
        A function of a real tensor [n, channels, *grid], [channels, *grid] or, for one channel, [*grid], in the model's
        physical units. It returns the output of `predict`, computed in float32, in the dtype and on the device of the
        input. It sends one request, and one more in the backward pass; it raises the errors of `predict` and `vjp`, and
        NotImplementedError if its gradient is differentiated (Hessians, gradient penalties) or in forward mode.

    Raises:
        ImportError: torch is not installed.
    """
    import torch

    options: VjpOptions = {"version": version, "deadline": deadline, "priority": priority}

    class Refusing(torch.autograd.Function):
        """Its derivatives are refused. Detached results would count as constants: any derivative of them would be 0."""

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Any) -> Any:
            raise NotImplementedError(
                f"model {model!r} has first derivatives in reverse mode only (backward, vjp, jacobian): its gradient cannot "
                "be differentiated, as jvp, hvp, hessian and gradient penalties do; take differences of gradients, "
                "(gradient(x + h * v) - gradient(x - h * v)) / (2 * h)"
            )

        jvp = backward

    class Gradient(Refusing):
        @staticmethod
        def forward(_: Any, x: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(client.vjp(model, x, cotangent, **options)).to(x)

    gradient: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = Gradient.apply

    class Served(Refusing):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            dtype = x.dtype if x.is_floating_point() else torch.float32
            return torch.from_numpy(client.predict(model, x, **options)).to(x.device, dtype)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradient(x, *grad_outputs)

    return Served.apply


def jax_function(
    client: Client,
    model: str,
    *,
    version: str | int | None = None,
    deadline: float | None = None,
    priority: int = 0,
) -> Callable[[jax.Array], jax.Array]:
    """Make a served model a function of JAX arrays that supports `jax.grad` and `jax.vjp` (first derivatives).

    Args:
        client: a blocking client of the server.
        model, version, deadline, priority: as for `Client.predict`.

    Returns:
        A function of a real array [n, channels, *grid], [channels, *grid] or, for one channel, [*grid], in the model's
        physical units. It returns the output of `predict`, computed in float32, in the dtype of the input. It sends one
        request, and one more for the gradient; under `jax.vmap` one for the whole batch. It works under `jax.jit`. JAX
        wraps errors of the client in its own.

    Raises:
        ImportError: jax is not installed.
        TurboFNOError: as `Client.model`.
    """
    import jax

    options: VjpOptions = {"version": version, "deadline": deadline, "priority": priority}
    about = client.model(model, version=version)
    rank = len(about["grid"]["training"])
    n_out = len(about["output"]["channels"])

    def channels_of(x: Any) -> int:
        return x.shape[-rank - 1] if x.ndim > rank else 1

    def batch(array: Any, channels: int) -> Any:
        # jax.vmap adds leading axes: flatten all into one batch for the server.
        return np.reshape(array, (-1, channels, *np.shape(array)[-rank:]))

    def call(ask: Callable[..., Any], like: Any, shape: tuple[int, ...], *arrays: Any) -> Any:
        def host(*given: Any) -> Any:
            leading = given[0].shape[: given[0].ndim - arrays[0].ndim]
            return ask(*given).reshape(leading + shape).astype(dtype)

        dtype = like.dtype if jax.numpy.issubdtype(like.dtype, jax.numpy.floating) else np.float32
        result = jax.ShapeDtypeStruct(shape, dtype)
        return jax.pure_callback(host, result, *arrays, vmap_method="broadcast_all")

    def answer(x: Any) -> Any:
        n_in, grid = channels_of(x), x.shape[-rank:]
        bare = x.ndim == rank and n_out == 1
        shape = grid if bare else (*x.shape[: max(0, x.ndim - rank - 1)], n_out, *grid)
        return call(
            lambda fields: client.predict(model, batch(fields, n_in), **options), x, shape, x
        )

    def forward(x: Any) -> tuple[Any, Any]:
        return answer(x), x

    def backward(x: Any, cotangent: Any) -> tuple[Any]:
        n_in = channels_of(x)

        def ask(fields: Any, v: Any) -> Any:
            return client.vjp(model, batch(fields, n_in), batch(v, n_out), **options)

        return (call(ask, x, x.shape, x, cotangent),)

    served = jax.custom_vjp(answer)
    served.defvjp(forward, backward)

    def function(x: Any) -> Any:
        x = jax.numpy.asarray(x)
        if not rank <= x.ndim <= rank + 2:
            raise BadInput(
                f"x has shape {list(x.shape)}, model {model!r} expects [n, channels, *grid], [channels, *grid] or, "
                f"for one channel, [*grid], with {rank} grid axes"
            )
        return served(x)

    return function
