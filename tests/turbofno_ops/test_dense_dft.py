"""The dense discrete Fourier transforms against numpy in float64: the kernel's own source on a CPU, and the kernel on a GPU."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno_ops import _native
from turbofno_ops._dft_table import dense_table
from turbofno_ops._native import Fft

Launch = Callable[[Fft, np.ndarray, np.ndarray, torch.Tensor], None]
"""Transforms the first array into the second with a table. All are in the CPU's memory."""

COMPLEX, REAL_TO_COMPLEX, COMPLEX_TO_REAL = range(3)
FP32, FP16 = 0, 3
SHARED_BYTES = 227 * 1024
FLOAT32_ERROR, FLOAT16_ERROR = 3e-7, 1e-3


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The kernel for a CPU; skips without a C++ compiler."""
    return compile_kernels("kernels/dense_dft.cu", "plan/dense_dft_plan.cpp")


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=needs_kernels)])
def launch(request: pytest.FixtureRequest) -> Launch:
    if request.param == "gpu":
        return launch_on_gpu
    on_cpu = request.getfixturevalue("library")

    def launch_on_cpu(of: Fft, source: np.ndarray, target: np.ndarray, table: torch.Tensor) -> None:
        of.input, of.out, of.table = source.ctypes.data, target.ctypes.data, table.data_ptr()
        status = on_cpu.turbofno_dense_dft(ctypes.byref(of), None)
        assert status == 0, on_cpu.turbofno_last_cuda_error()

    return launch_on_cpu


def launch_on_gpu(of: Fft, source: np.ndarray, target: np.ndarray, table: torch.Tensor) -> None:
    arrays = [torch.from_numpy(array).cuda() for array in (source, target)]
    arrays.append(table.cuda())
    of.input, of.out, of.table = (array.data_ptr() for array in arrays)
    _native.launch("dense_dft", of)
    target[:] = arrays[1].cpu().numpy()


@dataclass(frozen=True)
class Case:
    """Lines [outer, inner] of `points`; the order of an array's axes (outer, inner, point) in memory."""

    points: int
    kind: int
    inverse: int = 0
    precision: int = FP32
    outer: int = 2
    inner: int = 5
    in_order: tuple[int, ...] = (0, 1, 2)
    out_order: tuple[int, ...] = (0, 1, 2)
    given: tuple[int, int] | None = None
    kept: tuple[int, int] | None = None
    twiddle_points: int = 0
    scale: float = 1.0
    multiprocessors: int = 3
    shared_bytes: int = SHARED_BYTES

    def values(self, kind_of_real_side: int) -> int:
        real = self.kind in (COMPLEX, kind_of_real_side)
        return self.points if real else self.points // 2 + 1

    @property
    def head_and_tail_in(self) -> tuple[int, int]:
        return self.given or (self.values(REAL_TO_COMPLEX), 0)

    @property
    def head_and_tail_out(self) -> tuple[int, int]:
        return self.kept or (self.values(COMPLEX_TO_REAL), 0)


def draw(case: Case, rng: np.random.Generator) -> np.ndarray:
    """Lines [outer, inner, given values], as the kernel's precision holds them."""
    shape = (case.outer, case.inner, sum(case.head_and_tail_in))
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, (case.outer, case.inner, 1))
    if case.kind != REAL_TO_COMPLEX:
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(np.complex64 if case.kind != REAL_TO_COMPLEX else np.float32)


def stored(x: np.ndarray, order: tuple[int, ...], precision: int) -> np.ndarray:
    """The array's memory: axes in `order`, a padded last axis, complex values as two numbers."""
    ordered = np.ascontiguousarray(x.transpose(order))
    numbers = ordered.view(np.float32)
    padding = 3 * ordered.itemsize // numbers.itemsize
    numbers = np.pad(numbers, ((0, 0), (0, 0), (0, padding)), constant_values=np.nan)
    return numbers.astype(np.float16) if precision == FP16 else numbers


def loaded(memory: np.ndarray, order: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    """The inverse of `stored`."""
    numbers = np.ascontiguousarray(memory.astype(np.float32))
    values = numbers.view(like.dtype)[:, :, :-3]
    return values.transpose(np.argsort(order))


def strides(x: np.ndarray, order: tuple[int, ...]) -> list[int]:
    sizes = [x.shape[axis] for axis in order]
    sizes[-1] += 3
    of_axis = {order[2]: 1, order[1]: sizes[2], order[0]: sizes[1] * sizes[2]}
    return [of_axis[axis] for axis in range(3)]


def expected(case: Case, x: np.ndarray) -> np.ndarray:
    """The transform in float64."""
    head, tail = case.head_and_tail_in
    line = np.zeros((case.outer, case.inner, case.values(REAL_TO_COMPLEX)), complex)
    line[..., :head] = x[..., :head]
    if tail:
        line[..., -tail:] = x[..., head:]
    if case.kind == COMPLEX_TO_REAL:
        line[..., 0] = line[..., 0].real
        if case.points % 2 == 0:
            line[..., -1] = line[..., -1].real
        half = line[..., 1 : (case.points + 1) // 2]
        line = np.concatenate([line, half[..., ::-1].conj()], axis=2)
    whole = np.fft.ifft(line) * case.points if case.inverse else np.fft.fft(line)
    result: np.ndarray = whole.real if case.kind == COMPLEX_TO_REAL else whole
    if case.kind == REAL_TO_COMPLEX:
        result = result[..., : case.points // 2 + 1]
    if case.twiddle_points:
        turns = np.outer(np.arange(case.inner), np.arange(result.shape[2])) % case.twiddle_points
        sign = 1.0 if case.inverse else -1.0
        result = result * np.exp(sign * 2j * np.pi * turns / case.twiddle_points)
    head, tail = case.head_and_tail_out
    kept = [result[..., :head], result[..., result.shape[2] - tail :]]
    return np.concatenate(kept, axis=2) * case.scale


def transformed(launch: Launch, case: Case, x: np.ndarray) -> np.ndarray:
    kept = (case.outer, case.inner, sum(case.head_and_tail_out))
    real = case.kind == COMPLEX_TO_REAL
    result = np.full(kept, np.nan, np.float32 if real else np.complex64)
    source = stored(x, case.in_order, case.precision)
    target = stored(result, case.out_order, case.precision)
    table = dense_table(case.points, case.kind, case.inverse, case.precision)
    of = Fft(
        case.outer,
        case.inner,
        *strides(x, case.in_order),
        *strides(result, case.out_order),
        case.twiddle_points,
        case.points,
        *case.head_and_tail_in,
        *case.head_and_tail_out,
        case.kind,
        case.inverse,
        case.precision,
        case.multiprocessors,
        case.shared_bytes,
        case.scale,
    )
    launch(of, source, target, table)
    assert np.isnan(target[..., -1].astype(np.float32)).all(), "the padding is untouched"
    return loaded(target, case.out_order, result)


def relative_error(
    result: np.ndarray, truth: np.ndarray, least: np.ndarray | float = 1e-30
) -> float:
    """The largest over lines: a line's error does not depend on another line's size.

    Args:
        least: Norms below it count as this. Few kept values may be small by chance, their error is not.
    """
    error = np.linalg.norm(result - truth, axis=2)
    return float((error / np.maximum(np.linalg.norm(truth, axis=2), least)).max())


def check(launch: Launch, case: Case) -> None:
    x = draw(case, generator())
    as_stored = loaded(stored(x, case.in_order, case.precision), case.in_order, x)
    truth = expected(case, as_stored)
    expected_norm = np.linalg.norm(as_stored, axis=2) * case.scale
    if case.precision != FP32:
        expected_norm = np.maximum(expected_norm, 2.0**-14)  # smaller halves are subnormal
    expected_norm *= truth.shape[2] ** 0.5
    error = relative_error(transformed(launch, case, x), truth, expected_norm)
    assert error < (FLOAT32_ERROR if case.precision == FP32 else FLOAT16_ERROR), (case, error)


KINDS = [(COMPLEX, 0), (COMPLEX, 1), (REAL_TO_COMPLEX, 0), (COMPLEX_TO_REAL, 1)]


@pytest.mark.parametrize(("kind", "inverse"), KINDS)
@pytest.mark.parametrize("points", [2, 3, 61, 64, 85, 141, 211])
def test_sizes(launch: Launch, points: int, kind: int, inverse: int) -> None:
    check(launch, Case(points, kind, inverse))


@pytest.mark.parametrize(("kind", "inverse"), [*KINDS, (REAL_TO_COMPLEX, 1), (COMPLEX_TO_REAL, 0)])
def test_drawn_transforms(launch: Launch, kind: int, inverse: int) -> None:
    """Sizes, strides, truncation, twiddle factors and precisions."""
    rng = generator()
    orders = list(itertools.permutations(range(3)))
    for precision in (FP32, FP32, FP16):
        points = int(rng.integers(2, 130))
        plain = Case(points, kind)
        heads_and_tails = []
        for values in (plain.head_and_tail_in[0], plain.head_and_tail_out[0]):
            head = int(rng.integers(0, values + 1))
            heads_and_tails.append((head, int(rng.integers(head == 0, values - head + 1))))
        check(
            launch,
            Case(
                points,
                kind,
                inverse,
                precision,
                outer=int(rng.integers(1, 4)),
                inner=int(rng.integers(1, 20)),
                in_order=orders[rng.integers(6)],
                out_order=orders[rng.integers(6)],
                given=heads_and_tails[0],
                kept=heads_and_tails[1],
                twiddle_points=int(rng.integers(points, 5000)) if kind != COMPLEX_TO_REAL else 0,
                scale=1 / points,
            ),
        )


@pytest.mark.parametrize(("shared_bytes", "lines"), [(SHARED_BYTES, 70), (99 * 1024, 100)])
def test_streamed_table(launch: Launch, shared_bytes: int, lines: int) -> None:
    """The table exceeds shared memory; of the smaller one a block takes one unit after another."""
    points = 421 if shared_bytes == SHARED_BYTES else 203
    case = Case(
        points,
        REAL_TO_COMPLEX,
        outer=1,
        inner=lines,
        multiprocessors=1,
        shared_bytes=shared_bytes,
    )
    check(launch, case)


@pytest.mark.parametrize("precision", [FP32, FP16])
def test_many_units(launch: Launch, precision: int) -> None:
    check(launch, Case(37, REAL_TO_COMPLEX, precision=precision, inner=300, multiprocessors=1))
    check(launch, Case(38, COMPLEX, precision=precision, inner=90, multiprocessors=1))


@pytest.mark.parametrize(("kind", "inverse"), KINDS)
def test_a_line_that_is_not_finite_stays_alone(launch: Launch, kind: int, inverse: int) -> None:
    case = Case(45, kind, inverse)
    x = draw(case, generator())
    truth = expected(case, x)
    x[0, 1, 3] = np.nan
    x[1, 2, 20] = np.inf
    result = transformed(launch, case, x)
    spoilt = np.isnan(result).all(axis=2)
    assert spoilt.sum() == 2
    assert spoilt[0, 1]
    assert spoilt[1, 2]
    assert relative_error(result[~spoilt][None], truth[~spoilt][None]) < FLOAT32_ERROR


def test_ignored_imaginary_parts(launch: Launch) -> None:
    case = Case(10, COMPLEX_TO_REAL, inverse=1)
    x = draw(case, generator())
    truth = expected(case, x)
    x.imag[..., 0] = np.nan
    x.imag[..., 5] = np.inf
    assert relative_error(transformed(launch, case, x), truth) < FLOAT32_ERROR


@pytest.mark.parametrize("exponent", [-110, -40, 40, 100])
def test_magnitudes(launch: Launch, exponent: int) -> None:
    """Numbers near the ends of float32's range."""
    case = Case(61, REAL_TO_COMPLEX)
    x = draw(case, generator()) * np.float32(2.0**exponent)
    assert relative_error(transformed(launch, case, x), expected(case, x)) < FLOAT32_ERROR


def test_refusals(library: ctypes.CDLL) -> None:
    def reason(case: Case) -> bytes:
        of = Fft(outer=case.outer, inner=case.inner, points=case.points, kind=case.kind)
        of.in_head, of.in_tail = case.head_and_tail_in
        of.out_head, of.out_tail = case.head_and_tail_out
        of.precision, of.twiddle_points = case.precision, case.twiddle_points
        of.multiprocessors, of.shared_bytes = case.multiprocessors, case.shared_bytes
        return library.turbofno_dense_dft_unsupported(ctypes.byref(of)) or b""

    assert reason(Case(1024, COMPLEX)) == b""
    assert b"2 .. 1024" in reason(Case(1025, COMPLEX))
    assert b"kept values" in reason(Case(8, REAL_TO_COMPLEX, kept=(4, 2)))
    assert b"given values" in reason(Case(8, COMPLEX, given=(0, 0)))
    assert b"twiddle" in reason(Case(8, COMPLEX_TO_REAL, twiddle_points=64))
    assert b"precision" in reason(Case(8, COMPLEX, precision=2))
    assert b"shared memory" in reason(Case(64, COMPLEX, shared_bytes=16 * 1024))
