"""Which calls of `turbofno_ops.fft` take PyTorch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch._ops import OpOverload
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from turbofno_ops import fft as ours
from turbofno_ops.fft import _library


class Watch(TorchDispatchMode):
    """Lists the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """A class of tensors."""


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Lists for each transform whether PyTorch's dispatcher takes part."""
    found: list[bool] = []
    is_plain = _library._is_plain

    def listed(x: torch.Tensor) -> bool:
        found.append(not is_plain(x))
        return not found[-1]

    monkeypatch.setattr(_library, "_is_plain", listed)
    return found


@pytest.mark.parametrize("device_mode", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_plain_calls_do_not_need_the_dispatcher(
    dtype: torch.dtype, device_mode: bool, dispatched: list[bool]
) -> None:
    x = torch.randn(3, 5, dtype=dtype)
    leaf = x.clone().requires_grad_()
    with torch.inference_mode():
        inferred = [ours.fft(x), ours.fft(x.clone())]
    with torch.no_grad():
        inferred.append(ours.fft(leaf))
    with torch.autocast("cpu"):
        inferred.append(ours.fft(x))
    assert dispatched == 4 * [False]
    with torch.device("cpu") if device_mode else nullcontext():
        inferred.append(ours.fft(x))
    assert dispatched[4:] == [device_mode]
    recorded = ours.fft(leaf)
    assert dispatched[5:] == [True]
    assert recorded.requires_grad
    for found in inferred:
        assert torch.equal(found, recorded)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(torch.conj, id="conjugate view"),
        pytest.param(torch._neg_view, id="negative view"),
        pytest.param(torch._to_functional_tensor, id="functional"),
        pytest.param(lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype), id="zeros"),
        pytest.param(lambda x: x.as_subclass(Own), id="class"),
        pytest.param(lambda x: 1 * x.requires_grad_(), id="recorded"),
        pytest.param(lambda x: x.to("meta"), id="meta"),
    ],
)
def test_other_tensors_need_the_dispatcher(
    given: Callable[[torch.Tensor], torch.Tensor], dispatched: list[bool]
) -> None:
    x = given(torch.randn(3, 5, dtype=torch.complex64))
    found, expected = ours.fft(x), torch.fft.fft(x)
    assert dispatched == [True]
    assert type(found) is type(expected)
    assert found.shape == expected.shape
    if not x.is_meta:
        torch.testing.assert_close(torch.view_as_real(found), torch.view_as_real(expected))


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad])
def test_transforms_of_functions_need_the_dispatcher(
    transform: Callable[..., Any], dispatched: list[bool]
) -> None:
    transform(lambda x: ours.rfft(x).real.sum())(torch.randn(3, 5))
    assert dispatched
    assert all(dispatched)


def test_forward_mode_needs_the_dispatcher(dispatched: list[bool]) -> None:
    with forward_ad.dual_level():
        ours.rfft(forward_ad.make_dual(torch.randn(3, 5), torch.randn(3, 5)))
    assert dispatched
    assert all(dispatched)


def test_batched_gradients_need_the_dispatcher(dispatched: list[bool]) -> None:
    x, towards = torch.randn(3, 5, requires_grad=True), torch.randn(4, 3, 3)
    y = ours.rfft(x).real
    dispatched.clear()
    (found,) = torch.autograd.grad(y, x, towards, retain_graph=True, is_grads_batched=True)
    assert dispatched
    assert all(dispatched)
    for one, given in zip(found, towards, strict=True):
        torch.testing.assert_close(one, torch.autograd.grad(y, x, given, retain_graph=True)[0])


def test_whoever_watches_sees_the_op() -> None:
    x, name = torch.randn(3, 5), "turbofno::fourier_transform"
    with Watch() as watch:
        ours.rfft(x)
    watched = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=watched, acc_events=True) as profile:
        ours.rfft(x)
    assert name in watch.seen
    assert name in {event.key for event in profile.key_averages()}


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_trace_needs_the_dispatcher(dispatched: list[bool]) -> None:
    # PyTorch 2.13 cannot trace lists of sizes
    with suppress(RuntimeError):
        torch.jit.trace(ours.rfft, torch.randn(3, 5), check_trace=False)
    assert dispatched == [True]
