"""A replay is bitwise equal to the function; functions that cannot be replayed are refused."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch

from turbofno.models.core.architecture import DomainPadding, FNOArchitecture
from turbofno.models.core.fno import FNO
from turbofno_ops import Replay, Unrecordable, fft, fourier_layer, last_choice, spectral_conv
from turbofno_ops.dispatch import choose, record

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = Callable[..., tuple[torch.Tensor, ...]]


def check(function: Function, *examples: torch.Tensor) -> Replay:
    replay = Replay(function, examples)
    with torch.inference_mode():
        for scale in (1.0, 1e-3, 1e6):
            inputs = [scale * torch.randn_like(one) for one in examples]
            before = [one.clone() for one in inputs]
            for ours, theirs in zip(replay(*inputs), function(*inputs), strict=True):
                assert ours.dtype == theirs.dtype
                assert torch.equal(ours, theirs)
            assert all(map(torch.equal, inputs, before)), "inputs are not changed"
    return replay


def test_transforms() -> None:
    def filtered(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = fft.rfft2(x, modes=(5, 4), norm="forward")
        return z, fft.irfft2(2 * z, s=(12, 9), modes=(5, 4), norm="forward")

    check(filtered, torch.randn(2, 12, 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("size", "modes"),
    [
        ((16,), (5,)),
        ((33,), (17,)),
        ((12, 20), (6, 5)),
        ((17, 9), (16, 5)),
        ((8, 6, 10), (4, 3, 4)),
    ],
)
@pytest.mark.parametrize("backend", ["gemm", "reference"])
def test_spectral_layers(
    size: tuple[int, ...], modes: tuple[int, ...], backend: str, dtype: torch.dtype
) -> None:
    complex_dtype = torch.complex64 if dtype == torch.float32 else torch.complex128
    weight = torch.randn(3, 4, *modes, dtype=complex_dtype)
    skip, bias = torch.randn(4, 3, dtype=dtype), torch.randn(4, dtype=dtype)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        layer = fourier_layer(
            x, weight, skip_weight=skip, bias=bias, activation="gelu", backend=backend
        )
        return layer, spectral_conv(x, weight, backend=backend)

    for batch in (1, 3):
        check(both, torch.randn(batch, 3, *size, dtype=dtype))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_layers": 2, "positional_grid": "endpoint_included", "in_channels": 2},
        {"projection_channels": (), "activation": "silu"},
        {"domain_padding": DomainPadding(fraction=(0.25, 0.25))},
        {"norm": "instance_norm"},
    ],
)
def test_whole_networks(changes: dict[str, object]) -> None:
    values = {
        "in_channels": 1,
        "out_channels": 2,
        "hidden_channels": 6,
        "n_layers": 3,
        "modes": (6, 4),
    }
    network = FNO(FNOArchitecture.model_validate({**values, **changes})).eval()
    channels = network.arch.in_channels
    for grid in ((16, 20), (21, 13)):
        check(lambda x: (network(x),), torch.randn(2, channels, *grid))


def test_a_replay_records_its_backend() -> None:
    weight = torch.randn(2, 2, 5, dtype=torch.complex64)
    replay = Replay(lambda x: (spectral_conv(x, weight, backend="gemm"),), [torch.randn(1, 2, 16)])
    record(choose((5,), (16,), (16,), requested="reference"))
    with torch.inference_mode():
        replay(torch.randn(1, 2, 16))
    choice = last_choice()
    assert choice is not None
    assert choice.backend == "gemm"


def test_a_replay_reads_the_current_weights() -> None:
    weight = torch.ones(3)
    replay = Replay(lambda x: (x * weight,), [torch.zeros(3)])
    weight.mul_(5)
    with torch.inference_mode():
        (found,) = replay(torch.ones(3))
    assert found.tolist() == [5.0] * 3


def test_views_and_in_place_changes_are_replayed() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.clone()
        rows = y.view(-1, 2)
        rows[:, 0].add_(1.0)
        first, *_ = torch.split(y, 2)
        first.mul_(-2.0)
        y[3] = 0.5
        y[-2:] = x[:2]
        return y, torch.cat([first, y])

    check(function, torch.randn(6))


def decides(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x if x.sum() > 0 else -x,)


def reads_a_value(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x * x.max().item(),)


def remembers(seen: list[float] = []) -> Function:  # noqa: B006 - the function must keep state
    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        seen.append(1.0)
        return (x * len(seen),)

    return function


@pytest.mark.parametrize("function", [decides, reads_a_value, remembers()])
def test_functions_that_depend_on_values_or_state_are_refused(function: Function) -> None:
    with pytest.raises(Unrecordable):
        Replay(function, [torch.randn(4)])


@pytest.mark.parametrize("made", [lambda x: x + 1, lambda x: {"y": x}, lambda x: (x, 1.0)])
def test_functions_that_return_no_tuple_of_tensors_are_refused(made: Function) -> None:
    with pytest.raises(Unrecordable, match="must return a tuple of tensors"):
        Replay(made, [torch.randn(4)])
    with pytest.raises(Unrecordable, match="not tuple of Tensor, NoneType"):
        Replay(lambda x: (x, None), [torch.randn(4)])  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("examples", [torch.randn(4), torch.randn(()), [1.0], 1])
def test_examples_that_are_no_list_of_tensors_are_refused(examples: Any) -> None:
    with pytest.raises(
        TypeError, match=r"as in Replay\(function, \[x\]\), not (Tensor|list of float|int)$"
    ):
        Replay(lambda x: (x + 1,), examples)


def test_a_deleted_replay_frees_its_memory() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as stream:
            return int(stream.read().split()[1]) * 4096

    network = FNO(
        FNOArchitecture(in_channels=1, out_channels=1, hidden_channels=8, n_layers=4, modes=(8, 8))
    ).eval()

    def again(times: int) -> None:
        for _ in range(times):
            Replay(lambda x: (network(x),), [torch.randn(1, 1, 24, 24)])
        gc.collect()

    again(5)
    before = resident()
    again(10)
    assert resident() - before < 10 * 400_000, "torch.jit.trace would leak some megabytes each"


def test_inputs_unlike_the_examples_are_refused() -> None:
    # the number of points is a constant of the recorded calls
    mean = Replay(lambda x: (x.sum() / x.numel(),), [torch.randn(4)])
    with torch.inference_mode():
        assert mean(torch.ones(4))[0] == 1
        for other in ([torch.ones(8)], [torch.ones(4).double()], [torch.ones(4)] * 2, []):
            with pytest.raises(ValueError, match=r"recorded for \[4\] of torch.float32, got "):
                mean(*other)


def test_indices_and_masks_are_inputs() -> None:
    replay = Replay(
        lambda x, i, chosen: (torch.where(chosen, x[i], 0),),
        [torch.randn(5), torch.tensor([0, 4]), torch.tensor([True, False])],
    )
    with torch.inference_mode():
        (found,) = replay(torch.arange(5.0), torch.tensor([3, 1]), torch.tensor([True, True]))
    assert found.tolist() == [3, 1]
