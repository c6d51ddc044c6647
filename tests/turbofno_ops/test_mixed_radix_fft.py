"""mixed_radix_fft on an emulated GPU against numpy in float64: sizes, kinds, layouts, truncation, values that are not finite."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from tests.turbofno_ops.fft_case import (
    COMPLEX,
    COMPLEX_TO_REAL,
    REAL_TO_COMPLEX,
    Case,
    error,
    expected,
    transform,
)
from turbofno_ops import _native
from turbofno_ops._choice import largest_prime_factor
from turbofno_ops.fft._rule import CONVOLVED, DENSE, MIXED_RADIX, is_cut, kernels
from turbofno_ops.fft._tables import convolution_table, coprime_factors

SIZES = [2, 3, 4, 6, 7, 9, 12, 13, 16, 17, 22, 30, 32, 34, 60, 64, 65, 85, 100, 121, 128, 170, 211, 225, 256, 289, 360, 420, 421, 512,
         693,
         1024, 1105, 1155, 2048, 2401, 3125, 4096, 8192]  # fmt: skip
COLUMNS, MANY_VALUES = [256, 512, 1024, 2048, 4096], 2**22
"""Sizes of which so many values take kernels of columns (tests/csrc/fft_plan_check.cpp)."""


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    return compile_kernels("kernels/mixed_radix_fft.cu", "plan/fft_plan.cpp")


def bound(case: Case) -> float:
    """Twice the error of pocketfft in float32 (6.5e-8 of 16 points, 1.26e-7 of 4096); float16 rounds the result."""
    return 4e-4 if case.half else 1.6e-8 * (np.log2(case.points) + 3)


def ends(length: int) -> tuple[int, int]:
    head = random.randint(0, length)
    return (head, random.randint(0, length - head)) if head > 0 else (0, random.randint(1, length))


def drawn_case(points: int) -> Case:
    kind = random.choice([COMPLEX, REAL_TO_COMPLEX, COMPLEX_TO_REAL])
    case = Case(
        points,
        kind,
        inverse=random.randint(0, 1),
        outer=random.randint(1, 3),
        inner=random.randint(1, 6 if points > 300 else 30),
        half=random.random() < 0.25,
        scale=random.choice([1.0, 1 / points]),
        in_order="".join(random.sample("oip", 3)),
        out_order="".join(random.sample("oip", 3)),
        in_padding=random.choice([0, 0, 1, 2]),
        out_padding=random.choice([0, 0, 1, 2]),
    )
    if random.random() < 0.4:
        case.given = ends(case.length(REAL_TO_COMPLEX))
    if random.random() < 0.4:
        case.kept = ends(case.length(COMPLEX_TO_REAL))
    if kind == COMPLEX and random.random() < 0.3:
        case.twiddle_points = random.choice([points * case.inner, 7, 2**24 + 3])
    if case.half:
        case.scale = 1 / points  # the sum of many values may exceed float16
    return case


@pytest.mark.parametrize("points", SIZES)
def test_common_layouts(library: ctypes.CDLL, points: int) -> None:
    draw = generator()
    for kind in (COMPLEX, REAL_TO_COMPLEX, COMPLEX_TO_REAL):
        for order in ("oip", "opi"):
            case = Case(
                points, kind, kind == COMPLEX_TO_REAL, 1, 7, in_order=order, out_order=order
            )
            x, got = transform(library, case, draw)
            assert error(got, expected(case, x)) < bound(case), case


@pytest.mark.parametrize("outer", [1, 3])
@pytest.mark.parametrize("points", COLUMNS)
def test_many_columns(library: ctypes.CDLL, points: int, outer: int) -> None:
    inner = MANY_VALUES // (outer * points) + 6  # the last block is not full
    case = Case(
        points, inverse=int(outer == 1), outer=outer, inner=inner, scale=1 / points,
        in_order="opi", out_order="poi", out_padding=outer // 3,
    )  # fmt: skip
    x, got = transform(library, case, generator())
    assert error(got, expected(case, x)) < bound(case)


@pytest.mark.parametrize("kind", [REAL_TO_COMPLEX, COMPLEX_TO_REAL])
def test_the_longest_real_lines(library: ctypes.CDLL, kind: int) -> None:
    case = Case(16384, kind, kind == COMPLEX_TO_REAL, 1, 3)
    x, got = transform(library, case, generator())
    assert error(got, expected(case, x)) < bound(case)


@pytest.mark.parametrize("draw", range(150))
def test_drawn_layouts(library: ctypes.CDLL, draw: int) -> None:
    rng = generator()
    case = drawn_case(random.choice(SIZES))
    x, got = transform(library, case, rng)
    truth = expected(case, x)
    assert np.linalg.norm(got - truth) <= bound(case) * np.linalg.norm(expected_whole(case, x)), (
        case
    )


def expected_whole(case: Case, values: np.ndarray) -> np.ndarray:
    """All values of the result: the error of those that are kept has their size."""
    kept = case.kept
    case.kept = (case.length(COMPLEX_TO_REAL), 0)
    whole = expected(case, values)
    case.kept = kept
    return whole


@pytest.mark.parametrize("kind", [COMPLEX, REAL_TO_COMPLEX, COMPLEX_TO_REAL])
@pytest.mark.parametrize("points", [15, 16, 85, 211, 256])
def test_an_infinite_value_spoils_its_line_only(
    library: ctypes.CDLL, kind: int, points: int
) -> None:
    draw = generator()
    for spoilt in (0, 3, 6):  # the last of an odd number of lines has no partner
        case = Case(points, kind, inner=7)
        x, got = transform(library, case, draw, (0, spoilt))
        assert not np.isfinite(got[0, spoilt]).any()
        others = [i for i in range(7) if i != spoilt]
        assert error(got[:, others], expected(case, x[:, others])) < bound(case)


def test_long_transform_in_two_passes(library: ctypes.CDLL) -> None:
    """A transform of n1 n2 points: columns with twiddles, then rows with a transposed result."""
    n1, n2 = 64, 96
    draw = generator()
    first = Case(n1, inner=n2, twiddle_points=n1 * n2, in_order="opi", out_order="opi")
    x, columns = transform(library, first, draw)
    assert error(columns, expected(first, x)) < bound(first)
    second = Case(n2, inner=n1, in_order="oip", out_order="opi")
    y, rows = transform(library, second, draw)
    assert error(rows, expected(second, y)) < bound(second)
    line = x[0].T.reshape(-1)  # x[n] is in row n // n2, column n % n2
    spectrum = np.fft.fft(expected(first, x)[0].T)  # [k1, k2] is value k1 + n1 k2
    assert error(spectrum.T.reshape(-1), np.fft.fft(line)) < 1e-12


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"points": 1}, b"a line has fewer than 2 points"),
        ({"points": 38}, b"the size has a prime factor above 17"),
        ({"points": 422, "kind": 1}, b"real lines of twice a prime above 17 are not in pairs"),
        ({"points": 16384}, b"a line is longer than 8192 complex values, of real ones 16384"),
        ({"kind": 3}, b"unknown kind of transform"),
        ({"precision": 2}, b"values are neither float32 nor float16"),
        ({"inner": 0}, b"the lines are not in 1 .. 2^31 - 1"),
        ({"outer": 2**31}, b"the lines are not in 1 .. 2^31 - 1"),
        ({"in_head": 0}, b"the values given or kept are not in 1 .. the length of a line"),
        ({"out_tail": 1}, b"the values given or kept are not in 1 .. the length of a line"),
        ({"twiddle_points": -1}, b"the points of the twiddles are negative"),
        ({"kind": 1, "out_head": 1, "twiddle_points": 8}, b"only complex transforms take twiddles"),
        ({"shared_bytes": 1024}, b"a line does not fit in shared memory"),
    ],
)
def test_refusals(library: ctypes.CDLL, changes: dict[str, int], why: bytes) -> None:
    points = changes.get("points", 256)
    fft = _native.Fft(
        outer=1, inner=4, in_inner=points, in_point=1, out_inner=points, out_point=1, points=points,
        in_head=points, out_head=points, multiprocessors=132, shared_bytes=99 * 1024, scale=1.0,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(fft, name, value)
    assert library.turbofno_mixed_radix_fft_unsupported(fft) == why
    assert library.turbofno_mixed_radix_fft(fft, None) == 1


def test_the_rule_knows_the_convolved_sizes(library: ctypes.CDLL) -> None:
    def is_supported(points: int) -> bool:
        fft = _native.Fft(
            outer=1, inner=4, in_inner=points, in_point=1, out_inner=points, out_point=1, points=points,
            in_head=points, out_head=points, multiprocessors=132, shared_bytes=99 * 1024, scale=1.0,
        )  # fmt: skip
        return library.turbofno_mixed_radix_fft_unsupported(fft) is None

    large_primes = [n for n in range(18, 1000) if largest_prime_factor(n) == n]
    assert set(filter(is_supported, large_primes)) == CONVOLVED


@pytest.mark.parametrize("kind", [COMPLEX, REAL_TO_COMPLEX, COMPLEX_TO_REAL])
def test_cut_lines_of_convolved_sizes_stay_with_the_dense_kernel(kind: int) -> None:
    for points in CONVOLVED:
        assert kernels(points, kind, cut=False)[0] == MIXED_RADIX
        assert kernels(points, kind, cut=True)[0] == DENSE
    assert is_cut(421, 421, 24)
    assert not is_cut(421, 421, 211)


def test_the_table_of_a_convolution_has_every_point_once() -> None:
    for points in (31, *CONVOLVED):
        first, second = coprime_factors(points - 1)
        field = convolution_table(points)[2 * (points - 1) :].view(second, first).T
        assert sorted(field.flatten().tolist()) == list(range(1, points))
        assert torch.equal(field, torch.outer(field[:, 0], field[0]) % points)


def test_a_missing_pointer_is_reported(library: ctypes.CDLL) -> None:
    fft = _native.Fft(
        outer=1, inner=4, in_inner=8, in_point=1, out_inner=8, out_point=1, points=8, in_head=8,
        out_head=8, multiprocessors=132, shared_bytes=99 * 1024, scale=1.0,
    )  # fmt: skip
    assert library.turbofno_mixed_radix_fft(fft, None) == 2
