"""half_fft on an emulated GPU against numpy in float64: sizes, layouts, factors, twiddles, values that are not finite."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from tests.draws import generator
from tests.sampled import tried
from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from tests.turbofno_ops.fft_case import FP16, Case, error, expected, transform
from turbofno_ops import _native
from turbofno_ops.fft._rule import HALF

SIZES = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
COLUMNS = SIZES[:3]
BOUND = 6e-4
"""Values are rounded twice to float16, four times in lines beyond 2048 points; each time by 2e-4 in the mean."""


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    return compile_kernels("kernels/half_fft.cu", "plan/half_fft_plan.cpp", "plan/fft_plan.cpp")


def check(library: ctypes.CDLL, case: Case) -> None:
    case.half = True
    x, got = transform(library, case, generator(), kernel=HALF)
    assert error(got, expected(case, x)) < BOUND, case


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("points", SIZES)
def test_rows(library: ctypes.CDLL, points: int, inverse: int) -> None:
    lines = 3 if points > 2048 else 21  # more than a block has, and an odd number
    check(library, Case(points, inverse=inverse, outer=lines, inner=1, scale=points**-0.5))


@pytest.mark.parametrize("points", SIZES)
def test_rows_of_two_strides(library: ctypes.CDLL, points: int) -> None:
    check(library, Case(points, outer=2, inner=3, in_order="iop", out_padding=4))


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("points", COLUMNS)
def test_columns(library: ctypes.CDLL, points: int, inverse: int) -> None:
    case = Case(points, inverse=inverse, outer=2, inner=32, in_order="opi", out_order="poi")
    case.in_padding, case.scale = 4, 1 / points
    check(library, case)


@pytest.mark.parametrize("points", COLUMNS)
def test_rows_to_columns(library: ctypes.CDLL, points: int) -> None:
    check(library, Case(points, outer=2, inner=16, in_order="oip", out_order="opi"))


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("points", COLUMNS)
def test_twiddles(library: ctypes.CDLL, points: int, inverse: int) -> None:
    for outer, inner in ((3, 16), (2, 128), (1, 1024)):
        case = Case(points, inverse=inverse, outer=outer, inner=inner, in_order="opi")
        case.out_order, case.twiddle_points = "opi", inner * points
        check(library, case)


@pytest.mark.parametrize(("points", "kilobytes"), [(4096, 80), (8192, 163)])
def test_one_line_at_once_where_shared_memory_is_small(
    library: ctypes.CDLL, points: int, kilobytes: int
) -> None:
    case = Case(points, outer=3, inner=1, half=True)
    x, got = transform(library, case, generator(), kernel=HALF, shared_bytes=kilobytes * 1024)
    assert error(got, expected(case, x)) < BOUND


def test_lines_that_do_not_fit_are_refused(library: ctypes.CDLL) -> None:
    for points, kilobytes in ((4096, 63), (8192, 127), (16384, 163)):
        fft = described(points, shared_bytes=kilobytes * 1024)
        assert library.turbofno_half_fft_unsupported(fft) == b"a line does not fit in shared memory"


@pytest.mark.parametrize("draw", range(tried(20, 200)))
def test_drawn_layouts(library: ctypes.CDLL, draw: int) -> None:
    points = random.choice(SIZES[:5])
    case = Case(points, inverse=random.randint(0, 1), outer=random.randint(1, 3))
    case.scale = random.choice([1.0, points**-0.5, 1 / points])
    case.in_padding, case.out_padding = random.choice([0, 4]), random.choice([0, 8])
    if points in COLUMNS and draw % 2:
        case.inner = random.choice([16, 32])
        case.in_order, case.out_order = random.choice(["oip", "opi", "poi"]), "opi"
    else:
        case.inner = random.randint(1, 5)
        case.in_order, case.out_order = random.choice(["oip", "iop"]), random.choice(["oip", "iop"])
    check(library, case)


@pytest.mark.parametrize("order", ["oip", "opi"])
@pytest.mark.parametrize("points", [128, 256, 512])
def test_an_infinite_value_spoils_its_line_only(
    library: ctypes.CDLL, points: int, order: str
) -> None:
    for spoilt in (0, 3, 15):
        case = Case(points, inner=16, in_order=order, out_order=order, half=True)
        x, got = transform(library, case, generator(), (0, spoilt), kernel=HALF)
        assert not np.isfinite(got[0, spoilt]).any()
        others = [i for i in range(16) if i != spoilt]
        assert error(got[:, others], expected(case, x[:, others])) < BOUND


@pytest.mark.parametrize("points", SIZES)
def test_small_values_keep_their_digits(library: ctypes.CDLL, points: int) -> None:
    """The factor of an inverse at once would lose them between the products."""
    case = Case(points, inverse=1, outer=2, inner=1, scale=1 / points, half=True)
    x, got = transform(library, case, generator(), kernel=HALF, size=1e-3)
    steps = 2.0**-25 / np.abs(expected(case, x)).mean()  # half of float16's smallest
    assert error(got, expected(case, x)) < BOUND + steps


@pytest.mark.parametrize("points", SIZES)
def test_nothing_between_overflows_unless_results_do(library: ctypes.CDLL, points: int) -> None:
    """Values that all sums of a product add, in phase at a frequency, and whose results are far from float16's largest."""
    turns = np.exp(2j * np.pi * np.arange(points) / points)
    for scale in (points**-0.5, 1 / points, -1 / points):
        for step, frequency in ((points // 16, 1), (points // 16, 0), (points // 256 or 1, 3)):
            values = np.zeros(points, complex)
            values[::step] = (
                30000 * (1 + 1j) * turns[(np.arange(0, points, step) * frequency) % points]
            )
            case = Case(points, outer=1, inner=1, scale=scale, half=True)
            truth = expected(case, values[None, None])
            case.scale *= min(1.0, 3e4 / np.abs(truth).max())
            x, got = transform(library, case, generator(), kernel=HALF, values=values)
            assert error(got, expected(case, x)) < BOUND, (scale, step, frequency)


@pytest.mark.parametrize("points", [4096, 8192, 16384])
def test_groups_that_transform_several_lines(library: ctypes.CDLL, points: int) -> None:
    case = Case(points, outer=7, inner=1, half=True)
    x, got = transform(library, case, generator(), kernel=HALF, multiprocessors=1)
    assert error(got, expected(case, x)) < BOUND


def described(points: int, **changes: int) -> _native.Fft:
    fft = _native.Fft(
        outer=1, inner=16, in_inner=points, in_point=1, out_inner=points, out_point=1, points=points,
        in_head=points, out_head=points, precision=FP16, multiprocessors=132, shared_bytes=227 * 1024, scale=1.0,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(fft, name, value)
    return fft


COLUMNS_OF_16 = {"in_inner": 1, "in_point": 16, "out_inner": 1, "out_point": 16}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"points": 64}, b"the size is no power of two in 128 .. 16384"),
        ({"points": 384}, b"the size is no power of two in 128 .. 16384"),
        ({"points": 32768}, b"the size is no power of two in 128 .. 16384"),
        ({"kind": 1}, b"not a complex transform"),
        ({"precision": 0}, b"values are not float16"),
        ({"inner": 0}, b"the lines are not in 1 .. 2^31 - 1"),
        ({"in_head": 255}, b"values are not given or not kept"),
        ({"out_head": 200, "out_tail": 55}, b"values are not given or not kept"),
        ({"in_inner": 258}, b"strides are no multiples of four values"),
        ({"outer": 2, "out_outer": 4098}, b"strides are no multiples of four values"),
        ({"in_head": -1, "in_tail": 257}, b"values are not given or not kept"),
        ({**COLUMNS_OF_16, "shared_bytes": 8192}, b"the lines of a block do not fit in shared memory"),
        ({"twiddle_points": 4096}, b"only lines next to each other take twiddles"),
        ({"in_point": 4, "in_inner": 1024}, b"neither points nor lines are next to each other"),
        ({**COLUMNS_OF_16, "inner": 12}, b"lines next to each other are not a multiple of 16"),
        ({**COLUMNS_OF_16, "in_point": 18}, b"strides are no multiples of four values"),
        ({**COLUMNS_OF_16, "twiddle_points": 4095},
         b"twiddles are not those of a power of two that the lines make up"),
    ],
)  # fmt: skip
def test_refusals(library: ctypes.CDLL, changes: dict[str, int], why: bytes) -> None:
    fft = described(**{"points": 256, **changes})
    assert library.turbofno_half_fft_unsupported(fft) == why
    assert library.turbofno_half_fft(fft, None) == 1


def test_long_columns_are_refused(library: ctypes.CDLL) -> None:
    fft = described(1024, **COLUMNS_OF_16)
    assert (
        library.turbofno_half_fft_unsupported(fft)
        == b"lines next to each other are longer than 512 points"
    )


def test_arrays_that_are_no_whole_words_are_refused(library: ctypes.CDLL) -> None:
    memory = np.zeros((16 * 256 + 8, 2), np.float16)
    begin = memory.ctypes.data + -memory.ctypes.data % 16
    for given, result in ((begin + 4, begin), (begin, begin + 8)):
        fft = described(256)
        fft.input, fft.out, fft.table = given, result, begin
        assert library.turbofno_half_fft(fft, None) == 1
