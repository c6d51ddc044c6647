"""`turbofno_ops.fft` against numpy in float64: through torch.fft, and as launches that numpy interprets."""

from __future__ import annotations

import doctest
import itertools
import logging
import math
import random
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from tests.thorough import tried
from tests.turbofno_ops import fft_contract
from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from tests.turbofno_ops.random_transform import Case, relative_error
from turbofno_ops import _gemm, _native, used_tables
from turbofno_ops import fft as ours
from turbofno_ops.fft import _choice, _functions, _kernels, _library, _plan, _rule, _tables, _torch
from turbofno_ops.fft._rule import DENSE, HALF, MIXED_RADIX, WHOLE_PLANES
from turbofno_ops.fft._transform import KINDS, Axis, Transform

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")


def small(rng: random.Random) -> int:
    return rng.choice([1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 19])


@pytest.mark.parametrize("draw", range(tried(100, 2000)))
def test_drawn_transforms_equal_numpy(draw: int) -> None:
    case = Case(random.Random(torch.initial_seed() + draw), sizes=small)
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        x = case.x.to(dtype.to_complex() if case.x.is_complex() else dtype)
        found = case.call(x)
        assert found.dtype.to_real() == dtype
        assert case.error(found, x) < limit, case


@pytest.mark.parametrize("draw", range(tried(16, 300)))
def test_gradients_are_those_of_finite_differences(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    case = Case(rng, sizes=lambda rng: rng.choice([1, 2, 3, 4, 5, 6]))
    x = case.x.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(case.call, (x,), fast_mode=True), case
    assert torch.autograd.gradgradcheck(case.call, (x,), fast_mode=True), case


@pytest.mark.parametrize("name", ours.NAMES)
def test_gradients_equal_those_of_torch(name: str) -> None:
    dtype = torch.float64 if name.startswith("r") else torch.complex128
    x = torch.randn(2, 6, 5, dtype=dtype, requires_grad=True)
    found, expected = getattr(ours, name)(x), getattr(torch.fft, name)(x)
    torch.testing.assert_close(found, expected)
    towards = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad(expected, x, towards)
    torch.testing.assert_close(torch.autograd.grad(found, x, towards)[0], wanted)


@pytest.mark.parametrize("name", ours.NAMES)
def test_transforms_of_functions_equal_those_of_torch(name: str) -> None:
    dtype = torch.float64 if name.startswith("r") else torch.complex128
    x, towards = torch.randn(2, 3, 6, 5, dtype=dtype)
    found, expected = getattr(ours, name), getattr(torch.fft, name)

    def cubic(transform: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return transform(x).abs().pow(3).sum()

    def tangent(transform: Callable[..., torch.Tensor]) -> Any:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(transform(forward_ad.make_dual(x, towards))).tangent

    for of in (
        lambda transform: torch.func.jvp(transform, (x,), (towards,)),
        lambda transform: tangent(transform),
        lambda transform: torch.func.grad(partial(cubic, transform))(x),
        lambda transform: torch.func.vmap(transform, in_dims=1)(x),
        lambda transform: torch.func.vmap(torch.func.grad(partial(cubic, transform)))(x),
    ):
        torch.testing.assert_close(of(found), of(expected))


def test_second_derivatives_of_functions() -> None:
    def energy(x: torch.Tensor) -> torch.Tensor:
        return ours.irfft(ours.rfft(x, modes=3).pow(2), n=6, modes=3).pow(3).sum()

    x = torch.randn(6, dtype=torch.float64)
    expected = torch.autograd.functional.hessian(energy, x)
    for outer, inner in itertools.product((torch.func.jacrev, torch.func.jacfwd), repeat=2):
        torch.testing.assert_close(outer(inner(energy))(x), expected)


def test_vmap_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, run = [], _torch.run
    monkeypatch.setattr(_torch, "run", lambda x, of: (shapes.append(x.shape), run(x, of))[1])
    found = torch.func.vmap(ours.fft, in_dims=1)(torch.randn(3, 40, 8) + 0j)
    assert found.shape == (40, 3, 8)
    assert shapes == [(3, 40, 8)]


def test_tangents_of_compiled_functions_are_not_lost() -> None:
    compiled = torch.compile(ours.rfft, backend="eager")
    x, towards = torch.randn(2, 3, 8)
    torch.testing.assert_close(compiled(x), torch.fft.rfft(x))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, towards))).tangent
    torch.testing.assert_close(found, torch.fft.rfft(towards))
    whole = torch.compile(torch.func.vmap(ours.rfft), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="_functional"):
        whole(x)


def test_real_input_of_a_complex_transform_is_converted() -> None:
    x = torch.randn(3, 8)
    torch.testing.assert_close(ours.fft(x), torch.fft.fft(x))
    torch.testing.assert_close(ours.irfft(x), torch.fft.irfft(x))


def test_a_conjugate_view_is_read_as_such() -> None:
    x = torch.randn(3, 8, dtype=torch.complex64).conj()
    torch.testing.assert_close(ours.fft(x), torch.fft.fft(x))
    assert torch.equal(ours.fft(x.resolve_conj()), ours.fft(x))


@pytest.mark.parametrize("points", [8, 9])
def test_half_precision_is_that_of_rounded_float32(points: int) -> None:
    x = torch.randn(4, points).half()
    found = ours.rfft(x, precision="fp16")
    assert found.dtype == torch.complex32
    rounded = torch.fft.rfft(x.float()).to(torch.complex32)
    assert torch.equal(torch.view_as_real(found), torch.view_as_real(rounded))
    back = ours.irfft(found, n=points, precision="fp16")
    assert back.dtype == torch.float16
    torch.testing.assert_close(back, x, atol=4e-3, rtol=4e-3)


def test_ops_pass_opcheck() -> None:
    op = torch.ops.turbofno.fourier_transform.default
    x = torch.randn(2, 6, 5, requires_grad=True)
    last = ([2, 1], [5, 6], [0, 0], [5, 4], [0, 0])
    torch.library.opcheck(op, (x, KINDS[1], False, *last, "root", "auto"))
    half = torch.randn(2, 6, 3, dtype=torch.complex64, requires_grad=True)
    some = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        op,
        (half, KINDS[2], True, [1, 2], [9, 5], [3, 0], [9, 5], [0, 0], "none", "torch"),
        test_utils=some,
    )
    permuted = torch.randn(2, 6, 5, dtype=torch.complex64).permute(0, 2, 1)
    torch.library.opcheck(
        op,
        (permuted, KINDS[0], True, [1], [5], [0], [2], [1], "whole", "torch"),
        test_utils=some,
    )


def test_transforms_are_compiled_whole_for_any_batch() -> None:
    def energy(x: torch.Tensor) -> torch.Tensor:
        z = ours.rfft2(x, modes=(4, 3))
        return ours.irfft2(z * 2, s=(8, 9), modes=(4, 3)).square().sum((1, 2))

    compiled = torch.compile(energy, fullgraph=True, backend="eager", dynamic=True)
    for batch in (2, 5):
        x = torch.randn(batch, 8, 9)
        torch.testing.assert_close(compiled(x), energy(x))
    graphs: list[torch.fx.GraphModule] = []
    any_size = torch.compile(
        lambda x: ours.irfft(ours.rfft(x), n=x.shape[-1]),
        fullgraph=True,
        backend=lambda graph, _: (graphs.append(graph), graph)[1],
        dynamic=True,
    )
    for points in (8, 9, 12):
        x = torch.randn(2, points)
        torch.testing.assert_close(any_size(x), x)
    assert len(graphs) == 1
    batch = torch.export.Dim("batch", min=2)

    class Energy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return energy(x)

    program = torch.export.export(
        Energy(), (torch.randn(3, 8, 9),), dynamic_shapes={"x": {0: batch}}
    )
    x = torch.randn(7, 8, 9)
    torch.testing.assert_close(program.module()(x), energy(x))


def wrong(given: Any) -> Any:
    """An argument of a type that annotations do not allow."""
    return given


PLANE = torch.ones(4, 4)
WRONG: list[tuple[type[Exception], str, Callable[[], object]]] = [
    (TypeError, "must be real", lambda: ours.rfft(torch.randn(4) + 0j)),
    (TypeError, "torch.bfloat16; convert it", lambda: ours.fft(torch.randn(4).bfloat16())),
    (TypeError, "pass precision='fp16'", lambda: ours.rfft(torch.randn(4).half())),
    (TypeError, "at precision 'fp16', got", lambda: ours.rfft(torch.randn(4), precision="fp16")),
    (TypeError, "got torch.int64", lambda: ours.fft(torch.arange(4))),
    (ValueError, "norm must be", lambda: ours.fft(torch.randn(4), norm="unitary")),
    (ValueError, "precision must be", lambda: ours.fft(torch.randn(4), precision="tf32")),
    (ValueError, "backend must be", lambda: ours.fft(torch.randn(4), backend="cufft")),
    (ValueError, "norm must be", lambda: ours.fft(torch.randn(4), norm=wrong([]))),
    (TypeError, "x must be a tensor, got list", lambda: ours.fft(wrong([1.0, 2.0]))),
    (TypeError, "n must be an integer, got 2.5", lambda: ours.fft(torch.randn(4), n=wrong(2.5))),
    (TypeError, "n must be an integer, got True", lambda: ours.fft(torch.randn(4), n=True)),
    (TypeError, "n must be an integer, got '8'", lambda: ours.fft(torch.randn(4), n=wrong("8"))),
    (TypeError, "s must be an integer, got array", lambda: ours.fft2(PLANE, s=wrong(np.ones(2)))),
    (TypeError, "s must be an integer, got 4.0", lambda: ours.fft2(PLANE, s=wrong((4, 4.0)))),
    (TypeError, "modes must be an integer", lambda: ours.rfft(PLANE, modes=wrong(2.0))),
    (TypeError, "dim must be an integer, got 1.0", lambda: ours.fft(PLANE, dim=wrong(1.0))),
    (
        TypeError,
        r"dim must be an integer, got \[0, 1\]",
        lambda: ours.fft(PLANE, dim=wrong([0, 1])),
    ),
    (TypeError, r"n must be an integer, got \(4,\)", lambda: ours.fft(PLANE, n=wrong((4,)))),
    (TypeError, "dim must name axes, got None; fftn", lambda: ours.fft(PLANE, dim=wrong(None))),
    (
        TypeError,
        "dim must name axes, got None; irfftn",
        lambda: ours.irfft2(PLANE, dim=wrong(None)),
    ),
    (ValueError, r"n must be below 2\^63", lambda: ours.fft(torch.randn(4), n=2**70)),
    (ValueError, "at least 1 point, got -1", lambda: ours.fft(torch.randn(4), n=-1)),
    (ValueError, "modes must be 1 to 4 on axis 1", lambda: ours.fft(PLANE, modes=-1)),
    (ValueError, "dim 2 is no axis", lambda: ours.fft(torch.randn(4, 4), dim=2)),
    (ValueError, "dim -3 is no axis", lambda: ours.fft(torch.randn(4, 4), dim=-3)),
    (ValueError, "names an axis twice", lambda: ours.fft2(torch.randn(4, 4), dim=(0, -2))),
    (ValueError, "names no axis", lambda: ours.fftn(torch.randn(4, 4), dim=())),
    (ValueError, "s must have 2 entries", lambda: ours.fft2(torch.randn(4, 4), s=(4,))),
    (ValueError, "modes must have 2 entries", lambda: ours.rfft2(torch.randn(4, 4), modes=(4,))),
    (ValueError, "3 axes are named", lambda: ours.fftn(torch.randn(4, 4), s=(4, 4, 4))),
    (ValueError, "at least 1 point, got 0", lambda: ours.fft(torch.randn(4), n=0)),
    (ValueError, "at least 1 point, got 0", lambda: ours.irfft(torch.randn(1) + 0j)),
    (ValueError, "axis 0 of x is empty", lambda: ours.fft(torch.randn(0), n=4)),
    (ValueError, "modes must be 1 to 3 on axis 1", lambda: ours.rfft(torch.randn(2, 4), modes=4)),
    (ValueError, "modes must be 1 to 4 on axis 0", lambda: ours.fft(torch.randn(4), modes=0)),
    (ValueError, "modes says 3 values", lambda: ours.ifft(torch.randn(4) + 0j, n=8, modes=3)),
    (ValueError, "'kernels' cannot run", lambda: ours.fft(torch.randn(4), backend="kernels")),
    (ValueError, "name must be one of", lambda: ours.explain("dct", torch.randn(4))),
]


@pytest.mark.parametrize(("error", "words", "call"), WRONG, ids=[words for _, words, _ in WRONG])
def test_errors_say_what_was_wrong(
    error: type[Exception], words: str, call: Callable[[], object]
) -> None:
    with pytest.raises(error, match=words):
        call()


def test_arguments_are_those_of_torch() -> None:
    x = torch.randn(3, 4, 5)
    for index in (np.int64(1), torch.tensor(1)):
        torch.testing.assert_close(ours.fft(x, dim=wrong(index)), torch.fft.fft(x, dim=1))
    torch.testing.assert_close(ours.fft(x, n=wrong(np.int32(3))), torch.fft.fft(x, n=3))
    for name, more in (
        ("fft2", {"s": (4, -1)}),
        ("fft2", {"dim": (0, 1, 2)}),
        ("fft2", {"dim": 1}),
        ("fftn", {"s": 4, "dim": 1}),
        ("fftn", {"dim": None}),
        ("irfftn", {"s": torch.Size([6, 7])}),
    ):
        found, expected = getattr(ours, name)(x, **more), getattr(torch.fft, name)(x, **more)
        torch.testing.assert_close(found, expected)


def test_an_explanation_is_of_the_transform_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    axes: list[tuple[int, ...]] = []

    def choose(x: torch.Tensor, transform: Transform, requested: str) -> _choice.Choice:
        axes.append(tuple(axis.dim for axis in transform.axes))
        return _choice.Choice("torch", "")

    monkeypatch.setattr(_functions, "choose", choose)
    monkeypatch.setattr(_library, "choose", choose)
    for name in ours.NAMES:
        ours.explain(name, torch.ones(3, 4, 5))
        getattr(ours, name)(torch.ones(3, 4, 5))
        assert axes[-1] == axes[-2] == {"t": (2,), "2": (1, 2), "n": (0, 1, 2)}[name[-1]]


@pytest.mark.parametrize(
    ("points", "of_torch"), [(16, True), (64, False), (85, False), (224, False), (225, True)]
)
def test_complex_lines_with_a_factor_take_the_kernels(points: int, of_torch: bool) -> None:
    line = Transform(
        "complex", inverse=True, axes=(Axis(1, points, points, 0, points, 0),), scaling="whole"
    )
    assert (_rule.torch_is_as_fast(line, torch.complex64) is not None) is of_torch
    plain = line._replace(scaling="none")
    assert _rule.torch_is_as_fast(plain, torch.complex64) is not None


def test_docstring_examples_run() -> None:
    names = {name: getattr(ours, name) for name in (*ours.NAMES, "explain")}
    for name, function in names.items():
        found = doctest.DocTestFinder().find(function, name, globs={"torch": torch, **names})
        runner = doctest.DocTestRunner()
        for test in found:
            runner.run(test)
        assert runner.summarize(verbose=False).attempted > 0
        assert runner.summarize(verbose=False).failed == 0


def test_an_empty_batch_has_an_empty_result() -> None:
    assert ours.rfft2(torch.randn(0, 8, 9)).shape == (0, 8, 5)


class Kernels:
    """Kernels on the CPU: numpy executes launches, in memory full of NaN."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, Any]] = []
        self.memory: fft_contract.Memory | None = None

    def launch(self, name: str, fft: Any) -> None:
        self.launched.append((name, fft))
        if name == WHOLE_PLANES:
            for axis in (fft.height, fft.width):
                torch.testing.assert_close(fft_contract.table_of(axis), _tables.roots(axis.points))
        if name == MIXED_RADIX:
            torch.testing.assert_close(fft_contract.table_of(fft), _tables.roots(fft.points))
        fft_contract.execute(fft, self.memory)

    def run(self, case: Case, x: torch.Tensor, **more: Any) -> torch.Tensor:
        self.launched.clear()
        self.memory = fft_contract.Memory()
        self.memory.known.append(x)
        return case.call(x, **more)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    made, empty = Kernels(), torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        found = empty(*args, **kwargs)
        if found.is_complex():
            torch.view_as_real(found).fill_(math.nan)
        if made.memory is not None:
            made.memory.known.append(found)
        return found

    def new_result(x: torch.Tensor, transform: Transform) -> torch.Tensor:
        found = new(x, transform)
        if made.memory is not None:
            made.memory.known.append(found)
        (torch.view_as_real(found) if found.is_complex() else found).fill_(math.nan)
        return found

    def contiguous(self: torch.Tensor) -> torch.Tensor:
        found = copied(self)
        if made.memory is not None:
            made.memory.known.append(found)
        return found

    new, copied = _kernels.new_result, torch.Tensor.contiguous
    monkeypatch.setattr(_kernels, "new_result", new_result)
    monkeypatch.setattr(torch.Tensor, "contiguous", contiguous)
    monkeypatch.setattr(_kernels, "torch", SimpleNamespace(**{**vars(torch), "empty": poisoned}))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(_choice, "refusal", _refusal_on_a_cpu)
    monkeypatch.setattr(_native, "launch", made.launch)
    monkeypatch.setattr(_native, "refusal", fft_contract.refusal)
    monkeypatch.setattr(_kernels, "table_of", _table)
    # no plans of other tests, and none left to them
    monkeypatch.setattr(_gemm._tables, "_kept", OrderedDict())
    monkeypatch.setattr(_gemm._tables, "nbytes", 0)
    _forget()
    yield made
    _forget()


TABLE = _kernels.table_of


def _forget() -> None:
    _plan._considered.cache_clear()
    _plan._split.cache_clear()


def _refusal_on_a_cpu(x: torch.Tensor, transform: Transform) -> str | None:
    return "float64" if x.dtype.to_real() == torch.float64 else _plan.refusal(x, transform)


def _table(kernel: str, points: int, *_: Any) -> torch.Tensor:
    return _tables.roots(points) if kernel == MIXED_RADIX else torch.empty(0)


@pytest.fixture
def emulated(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The kernels' own sources on a CPU, with their tables."""
    libraries = {
        name: compile_kernels(f"kernels/{name}.cu", f"plan/{plan}.cpp")
        for name, plan in (("mixed_radix_fft", "fft_plan"), ("dense_dft", "dense_dft_plan"))
    }
    libraries |= {
        name: compile_kernels(f"kernels/{name}.cu", f"plan/{name}_plan.cpp", "plan/fft_plan.cpp")
        for name in (HALF, WHOLE_PLANES)
    }

    def refusal(name: str, fft: Any) -> str | None:
        library = libraries[name.removesuffix("_unsupported")]
        reason = getattr(library, f"turbofno_{name}")(fft)
        return None if reason is None else reason.decode()

    def launch(name: str, fft: Any) -> None:
        kernels.launched.append((name, fft))
        assert getattr(libraries[name], f"turbofno_{name}")(fft, None) == 0

    monkeypatch.setattr(_native, "refusal", refusal)
    monkeypatch.setattr(_native, "launch", launch)
    monkeypatch.setattr(_kernels, "table_of", TABLE)
    return kernels


@pytest.mark.parametrize("draw", range(tried(24, 300)))
def test_the_kernels_sources_compute_drawn_transforms(draw: int, emulated: Kernels) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    sizes = [2, 3, 5, 8, 16, 19, 23, 30, 31, 48, 61, 64, 85, 128, 211]
    names = ours.NAMES[: 4 if draw % 2 else None]
    case = Case(rng, sizes=lambda rng: rng.choice(sizes if draw % 2 else sizes[:9]), names=names)
    half = draw % 3 == 0
    dtype = torch.float16 if half else torch.float32
    x = case.x.to(dtype.to_complex() if case.x.is_complex() else dtype)
    wide = case.x.to(torch.complex64 if x.is_complex() else torch.float32)
    found = emulated.run(case, x, backend="kernels", precision="fp16" if half else "fp32")
    assert case.error(found, wide) < (4e-3 if half else 1e-6), case


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2", "fftn", "irfftn"])
@pytest.mark.parametrize("side", [16, 32, 50, 64, 85])
def test_the_kernels_sources_compute_whole_planes(name: str, side: int, emulated: Kernels) -> None:
    last = side // 2 + 1 if name.startswith("ir") else side
    x = torch.randn(3, 2, side, last, dtype=torch.float32 if name[0] == "r" else torch.complex64)
    emulated.memory = fft_contract.Memory()
    found = getattr(ours, name)(x, (side, side), dim=(-2, -1), norm="ortho", backend="kernels")
    assert [name for name, _ in emulated.launched] == [WHOLE_PLANES]
    wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
    expected = getattr(torch.fft, name)(wide, (side, side), dim=(-2, -1), norm="ortho")
    assert relative_error(found, expected.numpy()) < 1e-6


def test_truncated_planes_are_whole_planes(emulated: Kernels) -> None:
    x = torch.randn(3, 64, 64)
    emulated.memory = fft_contract.Memory()
    low = ours.rfft2(x, norm="forward", modes=(21, 11), backend="kernels")
    back = ours.irfft2(low, s=(64, 64), norm="forward", modes=(21, 11), backend="kernels")
    assert [name for name, _ in emulated.launched] == 2 * [WHOLE_PLANES]
    spectrum = np.fft.rfft2(x.double().numpy(), norm="forward")
    spectrum[:, 11:-10] = spectrum[:, :, 11:] = 0
    kept = np.concatenate([spectrum[:, :11, :11], spectrum[:, -10:, :11]], axis=1)
    assert relative_error(low, kept) < 1e-6
    assert relative_error(back, np.fft.irfft2(spectrum, norm="forward")) < 1e-6


def test_planes_are_preferred_where_they_are_whole(kernels: Kernels) -> None:
    square = torch.randn(2, 64, 64, dtype=torch.complex64)
    apart = torch.randn(2, 64, 80, dtype=torch.complex64)[..., :64]
    between = torch.randn(2, 64, 64, 16, dtype=torch.complex64)
    for x, dims, backend in (
        (square, (-2, -1), "kernels"),
        (square, (-1, -2), "kernels"),
        (apart, (-2, -1), "torch"),
        (between, (1, 2), "torch"),
    ):
        assert ours.explain("fftn", x, dim=dims).backend == backend


def test_other_planes_take_two_passes(emulated: Kernels) -> None:
    square = torch.randn(2, 64, 64, dtype=torch.complex64)
    for x, dims in (
        (torch.randn(2, 256, 128, dtype=torch.complex64), (-2, -1)),
        (torch.randn(2, 64, 8, dtype=torch.complex64), (-2, -1)),
        # more than the shared memory of an A100
        (torch.randn(2, 512, 32, dtype=torch.complex64), (-2, -1)),
        (torch.randn(2, 32, 32, 2, dtype=torch.complex64), (1, 2)),
        (torch.randn(2, 32, 40, dtype=torch.complex64)[..., :32], (-2, -1)),
        (square.to(torch.complex32), (-2, -1)),
    ):
        emulated.launched.clear()
        emulated.memory = fft_contract.Memory()
        half = x.dtype == torch.complex32
        precision = "fp16" if half else "fp32"
        found = ours.fftn(x, dim=dims, norm="ortho", backend="kernels", precision=precision)
        assert WHOLE_PLANES not in [name for name, _ in emulated.launched]
        expected = np.fft.fftn(x.to(torch.complex128).numpy(), axes=dims, norm="ortho")
        assert relative_error(found.to(torch.complex64), expected) < (1e-3 if half else 1e-6)


@pytest.mark.parametrize("points", [2018, 64 * 211, 2**14])
def test_the_kernels_sources_compute_long_axes(points: int, emulated: Kernels) -> None:
    x = torch.randn(1, points, dtype=torch.complex64)
    emulated.memory = fft_contract.Memory()
    found = ours.ifft(x, norm="ortho", backend="kernels")
    assert len(emulated.launched) == 2
    expected = np.fft.ifft(x.numpy().astype(np.complex128), norm="ortho")
    assert relative_error(found, expected) < 1e-6


@pytest.mark.parametrize(
    ("shape", "axes", "kernels_used"),
    [
        ((3, 256), 1, [HALF]),
        ((1, 8192), 1, [HALF]),
        ((1, 16384), 1, [HALF, HALF]),  # in the shared memory of an A100
        ((2, 128, 256), 2, [HALF, HALF]),
        ((1, 2**15), 1, [HALF, HALF]),
        ((1, 2, 1024, 16), 1, [MIXED_RADIX]),  # no columns of so many points
        ((2, 130, 256), 2, [HALF, DENSE]),
    ],
)
def test_the_kernels_sources_compute_float16_in_whole_words(
    shape: tuple[int, ...], axes: int, kernels_used: list[str], emulated: Kernels
) -> None:
    x = torch.randn(*shape, dtype=torch.complex64).to(torch.complex32)
    dims = {1: (-2 if shape[-1] == 16 else -1,), 2: (-2, -1)}[axes]
    emulated.memory = fft_contract.Memory()
    found = ours.fftn(x, dim=dims, norm="ortho", backend="kernels", precision="fp16")
    assert [name for name, _ in emulated.launched] == kernels_used
    expected = np.fft.fftn(x.to(torch.complex128).numpy(), axes=dims, norm="ortho")
    assert relative_error(found.to(torch.complex64), expected) < 1e-3


def test_float16_arrays_that_are_no_whole_words_take_another_kernel(emulated: Kernels) -> None:
    x = torch.randn(2, 3, 256, dtype=torch.complex64).to(torch.complex32)
    emulated.memory = fft_contract.Memory()
    shifted = x.flatten()[1:513].view(2, 256)
    apart = torch.randn(400_000, dtype=torch.complex64).to(torch.complex32)
    several = apart.as_strided(
        (3, 2, 2, 256), (100_002, 10_000, 1600, 1)
    )  # some begin between words
    for given in (shifted, several):
        emulated.launched.clear()
        found = ours.fft(given, norm="ortho", backend="kernels", precision="fp16")
        assert emulated.launched
        assert HALF not in [name for name, _ in emulated.launched]
        expected = np.fft.fft(given.to(torch.complex128).numpy(), norm="ortho")
        assert relative_error(found.to(torch.complex64), expected) < 1e-3


def test_a_float16_result_that_begins_between_words_takes_another_kernel(
    emulated: Kernels,
) -> None:
    x = torch.randn(2, 256, dtype=torch.complex64).to(torch.complex32)
    transform = Transform("complex", False, (Axis(1, 256, 256, 0, 256, 0),), "root")
    out = torch.zeros(513, dtype=torch.complex32)[1:].view(2, 256)
    _kernels.run(x, transform, out)
    assert [name for name, _ in emulated.launched] == [MIXED_RADIX]
    expected = np.fft.fft(x.to(torch.complex128).numpy(), norm="ortho")
    assert relative_error(out.to(torch.complex64), expected) < 1e-3


def served(rng: random.Random) -> int:
    return rng.choice([2, 3, 4, 5, 8, 9, 16, 17, 19, 24])


@pytest.mark.parametrize("draw", range(tried(120, 2000)))
def test_launches_of_drawn_transforms_compute_them(draw: int, kernels: Kernels) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    case = Case(rng, sizes=served)
    half = draw % 4 == 0
    dtype = torch.float16 if half else torch.float32
    x = case.x.to(dtype.to_complex() if case.x.is_complex() else dtype)
    wide = case.x.to(torch.complex64 if x.is_complex() else torch.float32)
    found = kernels.run(case, x, backend="kernels", precision="fp16" if half else "fp32")
    assert kernels.launched
    assert case.error(found, wide) < (4e-3 if half else 1e-6), case


def check_strides(rng: random.Random, case: Case, kernels: Kernels) -> None:
    """Transform into a tensor of drawn strides; what is not in it stays as it was."""
    x = case.x.to(torch.complex64 if case.x.is_complex() else torch.float32)
    n, dim, norm, modes = case.arguments.values()
    x, transform = _functions._described(case.name, x, n, dim, norm, modes, "fp32", "kernels")
    shape, order = transform.shape(x.shape), rng.sample(range(x.ndim), x.ndim)
    stored = [shape[dim] + rng.choice([0, 0, 1, 2]) for dim in order]
    around = torch.full((2 + math.prod(stored),), math.nan, dtype=transform.dtype(x.dtype))
    field = around[rng.randint(0, 2) :][: math.prod(stored)].view(stored)
    out = field[tuple(slice(shape[dim]) for dim in order)].permute(
        sorted(range(x.ndim), key=order.__getitem__)
    )
    kernels.memory = fft_contract.Memory()
    kernels.memory.known += [x, around]
    assert _kernels.run(x, transform, out) is out
    assert int(around.isnan().sum()) == around.numel() - out.numel()
    assert case.error(out, case.x.to(x.dtype)) < 1e-6, case


@pytest.mark.parametrize("draw", range(tried(120, 2000)))
def test_results_of_drawn_strides(draw: int, kernels: Kernels) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    check_strides(rng, Case(rng, sizes=served), kernels)


@pytest.mark.parametrize("draw", range(tried(24, 300)))
def test_the_kernels_sources_write_at_drawn_strides(draw: int, emulated: Kernels) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    sizes = [2, 3, 5, 8, 16, 19, 30, 64, 211] if draw % 2 else [2, 3, 5, 8, 9, 16]
    names = ours.NAMES[: 4 if draw % 2 else None]
    check_strides(rng, Case(rng, sizes=lambda rng: rng.choice(sizes), names=names), emulated)


LONG = (25, 26, 30, 36, 48, 64, 77, 96, 143)


@pytest.mark.parametrize("draw", range(tried(60, 600)))
def test_long_axes_in_two_steps(
    draw: int, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fft_contract, "MOST_SMOOTH", 24)
    monkeypatch.setattr(fft_contract, "MOST_DENSE", 13)
    monkeypatch.setattr(_plan, "takes_planes", lambda _: False)
    rng = random.Random(torch.initial_seed() + draw)
    names = [name for name in ours.NAMES if "r" not in name]
    case = Case(rng, sizes=lambda rng: rng.choice(LONG), names=names)
    half = draw % 5 == 0
    wide = case.x.to(torch.complex64)
    x = wide.to(torch.complex32) if half else wide
    found = kernels.run(case, x, backend="kernels", precision="fp16" if half else "fp32")
    assert {fft.twiddle_points for _, fft in kernels.launched} == {0, *case.points}
    assert case.error(found, wide) < (8e-3 if half else 1e-6), case


@pytest.mark.parametrize("points", [2018, 8192, 12 * 1013, 2**17])
def test_the_factors_of_a_long_axis(points: int, kernels: Kernels) -> None:
    x = torch.randn(2, points, dtype=torch.complex64)
    kernels.memory = fft_contract.Memory()
    kernels.memory.known.append(x)
    found = ours.fft(x, backend="kernels")
    (_, first), (_, second) = kernels.launched
    assert first.points * second.points == points
    assert (first.twiddle_points, second.twiddle_points) == (points, 0)
    assert relative_error(found, np.fft.fft(x.numpy().astype(np.complex128))) < 1e-6


def test_a_long_axis_beside_another(kernels: Kernels) -> None:
    for dims, norm in itertools.product(((1, 2), (2, 1)), ("ortho", "forward")):
        x = torch.randn(3, 6, 8192, dtype=torch.complex64)
        kernels.memory = fft_contract.Memory()
        kernels.memory.known.append(x)
        for name in ("fft2", "ifft2"):
            found = getattr(ours, name)(x, dim=dims, norm=norm, backend="kernels")
            expected = getattr(np.fft, name)(x.numpy().astype(np.complex128), axes=dims, norm=norm)
            assert relative_error(found, expected) < 1e-6


def test_half_precision_scales_each_pass(kernels: Kernels) -> None:
    """Sums of 2^17 values near 1 overflow in float16 if only the last pass divides."""
    x = torch.ones(1, 2**17, dtype=torch.complex64).to(torch.complex32)
    kernels.memory = fft_contract.Memory()
    kernels.memory.known.append(x)
    found = ours.fft(x, norm="forward", precision="fp16", backend="kernels")
    assert torch.view_as_real(found).isfinite().all()
    assert torch.view_as_real(found)[0, 0].tolist() == [1.0, 0.0]


def test_a_line_is_read_where_it_lies(kernels: Kernels) -> None:
    """Inner axes, slices and channels stored last are passed as strides: one launch, no copy."""
    case = Case(random.Random(1), sizes=served)
    case.name, case.norm, case.half, case.inverse = "rfft", None, True, False
    for x, dim, lines, neighbours in (
        (torch.randn(6, 16, 5), 1, 6, 5),
        (torch.randn(6, 5, 16), 2, 30, 1),
        (torch.randn(6, 5, 20)[..., 2:18], 2, 30, 1),
        (torch.randn(6, 7, 16)[:, :5], 2, 6, 5),
        (torch.randn(6, 16, 3, 5).permute(0, 3, 2, 1), 3, 6, 15),
    ):
        case.points, case.dims, case.modes = [16], [dim], [None]
        found = kernels.run(case, x, backend="kernels")
        ((_, fft),) = kernels.launched
        assert (fft.outer, fft.inner) == (lines, neighbours)
        assert fft.input == x.data_ptr()
        assert case.error(found, x) < 1e-6
    assert found.stride() == (9 * 15, 1, 5, 15), "channels stay neighbours"


def test_pairs_of_real_values_are_aligned(kernels: Kernels) -> None:
    """A launch with even strides begins at an even value of memory aligned to a pair."""
    stored = torch.randn(5 * 601)
    for x in (
        stored[1:601].view(6, 100)[:, :16],
        torch.as_strided(stored, (5, 6, 16), (601, 100, 1)),
        torch.as_strided(stored, (5, 3, 2, 16), (601, 200, 100, 1)),
        # expanded dimensions around one of odd stride
        torch.as_strided(stored, (5, 2, 7, 16), (0, 65, 0, 1)),
    ):
        kernels.launched.clear()
        kernels.memory = None
        found = ours.rfft(x, backend="kernels")
        torch.testing.assert_close(found, torch.fft.rfft(x))
        for _, fft in kernels.launched:
            odd = (fft.outer > 1 and fft.in_outer % 2) or (fft.inner > 1 and fft.in_inner % 2)
            assert odd or fft.input % 8 == 0


def test_axes_beyond_the_kernels_integers_are_refused(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="more than 1048576 points"):
        ours.rfft(torch.randn(2, 64), n=2**32 + 64, modes=4, backend="kernels")


def test_many_strides_are_one_copy(kernels: Kernels) -> None:
    x = torch.randn(70, 2, 71, 2, 72, 2, 8)[:, 0, :, 0, :, 0]
    kernels.memory = fft_contract.Memory()
    kernels.memory.known.append(x)
    torch.testing.assert_close(ours.rfft(x, backend="kernels"), torch.fft.rfft(x))
    assert len(kernels.launched) == 1


def test_nothing_that_is_cut_off_is_computed(kernels: Kernels) -> None:
    x = torch.randn(2, 421, 421)
    kernels.memory = fft_contract.Memory()
    kernels.memory.known.append(x)
    z = ours.rfft2(x, modes=(24, 12), backend="kernels")
    last, first = [fft for _, fft in kernels.launched]
    assert (last.out_head, last.outer) == (12, 2 * 421)
    assert (first.out_head, first.out_tail, first.outer, first.inner) == (12, 12, 2, 12)
    kernels.launched.clear()
    ours.irfft2(z, s=(421, 421), modes=(24, 12), backend="kernels")
    first, last = [fft for _, fft in kernels.launched]
    assert (first.in_head, first.in_tail, first.outer, first.inner) == (12, 12, 2, 12)
    assert (last.in_head, last.in_tail, last.outer) == (12, 0, 2 * 421)


def test_gradients_run_on_the_kernels(kernels: Kernels) -> None:
    kernels.memory = fft_contract.Memory()
    x = torch.randn(2, 9, 16, requires_grad=True)
    kernels.memory.known.append(x)
    y = ours.rfft2(x, modes=(5, 9), backend="kernels")
    towards = torch.randn_like(y)
    kernels.launched.clear()
    (found,) = torch.autograd.grad(y, x, towards)
    assert [fft.kind for _, fft in kernels.launched] == [0, 2]
    (expected,) = torch.autograd.grad(ours.rfft2(x, modes=(5, 9), backend="torch"), x, towards)
    torch.testing.assert_close(found, expected)


def test_a_repeated_transform_is_planned_once(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 16)
    kernels.memory = fft_contract.Memory()
    kernels.memory.known.append(x)
    ours.rfft(x, backend="kernels")
    monkeypatch.setattr(_kernels, "plan_of", None)
    monkeypatch.setattr(_native, "refusal", None)
    ours.rfft(x, backend="kernels")
    bound = _gemm._tables.nbytes
    assert 0 < bound < 16 * 1024


def test_used_tables_outlive_the_cache(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def table(*of: Any) -> torch.Tensor:
        found = _table(*of)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(_kernels, "table_of", table)
    x = torch.randn(4, 16)
    kernels.memory = fft_contract.Memory()
    kernels.memory.known.append(x)
    ours.rfft(x, backend="kernels")  # makes the tables; their use counts, not their making
    with used_tables() as tables:
        ours.rfft(x, backend="kernels")
    _gemm._tables._kept.clear()
    assert made[0]() is not None
    del tables
    assert made[0]() is None


def test_the_choice_is_explained(kernels: Kernels, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(3, 2039)
    assert "2039 points" in ours.explain("rfft", x).reason
    assert ours.explain("rfft", x[:, :256]).backend == "kernels"
    assert ours.explain("fft", x[:, :256]).backend == "torch"
    assert ours.explain("fft", x[:, :256], modes=32).backend == "kernels"
    assert ours.explain("fft", x[:, :253]).backend == "kernels"
    assert ours.explain("fft2", x[:, :61]).backend == "kernels"
    assert "float64" in ours.explain("rfft", x.double()).reason
    with pytest.raises(ValueError, match="2039 points"):
        ours.explain("rfft", x, backend="kernels")


def test_a_fallback_on_a_gpu_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_choice, "_logged", set())
    on_gpu: Any = SimpleNamespace(is_cuda=True, dtype=torch.float32, numel=lambda: 1)
    refused = _choice.Choice("torch", f"{_choice._REFUSED}2039 points")
    with caplog.at_level(logging.WARNING, "turbofno_ops"):
        for _ in range(2):
            _choice.log_fallback(on_gpu, refused)
        _choice.log_fallback(on_gpu, _choice.Choice("torch", "as fast"))
        _choice.log_fallback(torch.randn(3), refused)
    assert [record.getMessage() for record in caplog.records] == [
        "the CUDA kernels do not run this transform: 2039 points; torch.fft runs instead"
    ]


@pytest.mark.parametrize(
    ("shape", "sizes", "calls", "copies"),
    [
        ((3, 9), (16,), ["irfft"], 1),
        ((3, 5), (16,), ["irfft"], 1),
        ((3, 8, 9), (8, 16), ["ifftn", "irfft"], 0),
        ((3, 5, 6, 9), (5, 6, 16), ["ifftn", "irfft"], 0),
        ((3, 5, 9), (8, 16), ["ifft", "irfft"], 0),
        ((3, 8, 9), (8, 17), ["irfftn"], 0),
        ((3, 2), (2,), ["irfft"], 1),
    ],
)
def test_cufft_gets_real_values_where_it_mixes_imaginary_parts(
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    calls: list[str],
    copies: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    z = torch.randn(shape, dtype=torch.complex64)
    given, found, cloned, clone = z.clone(), [], [], torch.Tensor.clone
    expected = np.fft.irfftn(z.numpy(), s=sizes, axes=range(1, z.ndim))

    class Cufft:
        """torch.fft; its inverse of an even line takes in what it should not."""

        def __getattr__(self, name: str) -> Any:
            found.append(name)
            return getattr(torch.fft, name)

        def irfft(self, x: torch.Tensor, *, n: int, dim: int, norm: str) -> torch.Tensor:
            found.append("irfft")
            wrong = x.select(dim, 0).imag.abs().sum()
            if n // 2 < x.shape[dim]:
                wrong += x.select(dim, n // 2).imag.abs().sum()
            return torch.fft.irfft(x, n=n, dim=dim, norm=norm) + wrong

    monkeypatch.setattr(_torch, "_mixes_own_mirrors", lambda _, axis: axis.points % 2 == 0)
    monkeypatch.setattr(_torch, "_torch_fft", Cufft())
    monkeypatch.setattr(torch.Tensor, "clone", lambda x: (cloned.append(x), clone(x))[1])
    field = ours.irfftn(z, s=sizes, dim=range(1, z.ndim))
    assert relative_error(field, expected) < 1e-6
    assert (found, len(cloned)) == (calls, copies)
    assert torch.equal(z, given)


def test_names_and_exports_agree() -> None:
    public = {name for name, value in vars(ours).items() if callable(value) and name[0] != "_"}
    assert set(ours.__all__) == public | {"BACKENDS", "NAMES", "PRECISIONS"}
    assert set(ours.NAMES) == {name for name in ours.__all__ if "fft" in name}
    assert all(callable(getattr(torch.fft, name)) for name in ours.NAMES)


@pytest.mark.parametrize("modes", [None, 3])
def test_results_may_be_written_to_in_training(modes: int | None) -> None:
    x = torch.randn(4, 9, requires_grad=True)
    (expected,) = torch.autograd.grad((3 * ours.rfft(x, modes=modes)).abs().sum(), x)
    (found,) = torch.autograd.grad(ours.rfft(x, modes=modes).mul_(3).abs().sum(), x)
    torch.testing.assert_close(found, expected)
