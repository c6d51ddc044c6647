"""plane_fft on an emulated GPU against numpy in float64: sizes, kinds, truncation, values that are not finite."""

from __future__ import annotations

import ctypes
import random
from dataclasses import dataclass

import numpy as np
import pytest

from tests.draws import generator
from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from tests.turbofno_ops.fft_case import (
    COMPLEX,
    COMPLEX_TO_REAL,
    REAL_TO_COMPLEX,
    as_complex,
    error,
    filled,
    full,
)
from turbofno_ops import _native
from turbofno_ops.fft._tables import mixed_radix_table

KINDS = (COMPLEX, REAL_TO_COMPLEX, COMPLEX_TO_REAL)
SIZES = [2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 17, 22, 30, 32, 34, 60, 64, 65, 85, 100, 121, 128]
PLANES = [
    *((side, side) for side in (32, 48, 64, 85, 96, 100, 121, 128)),
    *((128, 64), (64, 85), (85, 64), (17, 4), (2, 2), (3, 289)),
]


@dataclass
class Case:
    height: int
    width: int
    kind: int = COMPLEX
    inverse: int = 0
    planes: int = 3
    scale: float = 1.0
    given: tuple[tuple[int, int], ...] | None = None  # head and tail of both axes; None: all
    kept: tuple[tuple[int, int], ...] | None = None

    def lengths(self, half: int) -> tuple[int, int]:
        return self.height, self.width // 2 + 1 if self.kind == half else self.width

    def ends(self, side: int) -> tuple[tuple[int, int], ...]:
        stored = self.kept if side else self.given
        if stored is not None:
            return stored
        return tuple((n, 0) for n in self.lengths(REAL_TO_COMPLEX if side else COMPLEX_TO_REAL))


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    return compile_kernels("kernels/plane_fft.cu", "plan/plane_fft_plan.cpp", "plan/fft_plan.cpp")


def whole(case: Case, x: np.ndarray) -> np.ndarray:
    """All values of the result, in float64."""
    (rows, columns), lengths = case.ends(0), case.lengths(COMPLEX_TO_REAL)
    x = full(x, columns, lengths[1])
    x = full(x.swapaxes(1, 2), rows, lengths[0]).swapaxes(1, 2)
    points = case.height * case.width
    if case.kind == COMPLEX:
        y = np.fft.ifft2(x) * points if case.inverse else np.fft.fft2(x)
    elif case.kind == REAL_TO_COMPLEX:
        y = np.fft.rfft2(x)
        y = y.conj() if case.inverse else y
    else:
        x = np.fft.ifft(x if case.inverse else x.conj(), axis=1)
        x[..., 0].imag = 0
        if case.width % 2 == 0:
            x[..., -1].imag = 0
        y = np.fft.irfft(x, case.width) * points
    return y * case.scale


def kept_of(case: Case, y: np.ndarray) -> np.ndarray:
    for axis, (head, tail) in enumerate(case.ends(1), 1):
        y = np.take(y, [*range(head), *range(y.shape[axis] - tail, y.shape[axis])], axis)
    return y


def structure(case: Case) -> _native.PlaneTransform:
    axes = [
        _native.PlaneAxis(points=n, in_head=a[0], in_tail=a[1], out_head=b[0], out_tail=b[1])
        for n, a, b in zip((case.height, case.width), case.ends(0), case.ends(1), strict=True)
    ]
    return _native.PlaneTransform(
        planes=case.planes, height=axes[0], width=axes[1], kind=case.kind, inverse=case.inverse,
        shared_bytes=227 * 1024, scale=case.scale,
    )  # fmt: skip


def transform(
    library: ctypes.CDLL, case: Case, draw: np.random.Generator, spoilt: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Run a case of drawn values. Return input and result [plane, height, width] in double precision."""
    shapes = [[case.planes, *map(sum, case.ends(side))] for side in range(2)]
    is_complex = (case.kind != REAL_TO_COMPLEX, case.kind != COMPLEX_TO_REAL)
    arrays = [
        filled((*shape, 2) if pairs else tuple(shape), np.float32)
        for shape, pairs in zip(shapes, is_complex, strict=True)
    ]
    arrays[0][...] = draw.standard_normal(arrays[0].shape)
    if spoilt is not None:
        arrays[0][spoilt, 0, -1] = np.inf
    of = structure(case)
    tables = [mixed_radix_table(n) for n in (case.height, case.width)]
    of.height.table, of.width.table = (table.data_ptr() for table in tables)
    of.input, of.out = (array.ctypes.data for array in arrays)
    refusal = library.turbofno_plane_fft_unsupported(of)
    assert refusal is None, (case, refusal)
    status = library.turbofno_plane_fft(of, None)
    assert status == 0, (case, library.turbofno_last_cuda_error())
    x, y = (
        as_complex(array) if pairs else array.astype(np.float64)
        for array, pairs in zip(arrays, is_complex, strict=True)
    )
    return x, y


def bound(case: Case) -> float:
    """Twice the error of pocketfft in float32."""
    return 1.6e-8 * (np.log2(case.height * case.width) + 3)


def check(library: ctypes.CDLL, case: Case) -> None:
    x, got = transform(library, case, generator())
    truth = whole(case, x)
    share = np.sqrt(got.size / truth.size)
    assert np.linalg.norm(got - kept_of(case, truth)) <= bound(case) * np.linalg.norm(truth) * max(share, 0.1), case  # fmt: skip


@pytest.mark.parametrize("size", PLANES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_whole_planes(library: ctypes.CDLL, size: tuple[int, int], kind: int) -> None:
    for inverse in (0, 1):
        check(library, Case(*size, kind, inverse))


@pytest.mark.parametrize("size", [(48, 48), (64, 64), (85, 85), (100, 100), (128, 128)], ids=str)
def test_truncated_planes(library: ctypes.CDLL, size: tuple[int, int]) -> None:
    modes = ((11, 10), (11, 0))
    check(library, Case(*size, REAL_TO_COMPLEX, kept=modes))
    check(library, Case(*size, COMPLEX_TO_REAL, 1, given=modes, scale=1 / size[0]))


def drawn_ends(length: int) -> tuple[int, int]:
    head = random.randint(1, length)
    return head, random.randint(0, length - head)


@pytest.mark.parametrize("draw", range(100))
def test_drawn_planes(library: ctypes.CDLL, draw: int) -> None:
    case = Case(
        random.choice(SIZES),
        random.choice(SIZES),
        random.choice(KINDS),
        inverse=random.randint(0, 1),
        planes=random.randint(1, 9),
        scale=random.choice([1.0, 0.01]),
    )
    case.planes = min(case.planes, 1 + 4096 // (case.height * case.width))
    if random.random() < 0.5:
        case.given = tuple(map(drawn_ends, case.lengths(COMPLEX_TO_REAL)))
    if random.random() < 0.5:
        case.kept = tuple(map(drawn_ends, case.lengths(REAL_TO_COMPLEX)))
    x, got = transform(library, case, generator())
    truth = whole(case, x)
    assert np.linalg.norm(got - kept_of(case, truth)) <= bound(case) * np.linalg.norm(truth), case


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(16, 16), (15, 15), (85, 85)], ids=str)
def test_an_infinite_value_spoils_its_plane_only(
    library: ctypes.CDLL, kind: int, size: tuple[int, int]
) -> None:
    for spoilt in (0, 3, 4):
        case = Case(*size, kind, planes=5)
        x, got = transform(library, case, generator(), spoilt)
        assert not np.isfinite(got[spoilt]).any()
        others = [i for i in range(5) if i != spoilt]
        assert error(got[others], whole(case, x[others])) < bound(case)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case(38, 4), b"the size has a prime factor above 17"),
        (Case(4, 211), b"the size has a prime factor above 17"),
        (Case(1, 4), b"an axis has not 2 .. 8192 points"),
        (Case(4, 4, kind=3), b"unknown kind of transform"),
        (Case(4, 4, planes=0), b"the planes are not in 1 .. 2^31 - 1"),
        (Case(4, 4, planes=2**31), b"the planes are not in 1 .. 2^31 - 1"),
        (Case(4, 4, given=((0, 1), (-1, 2))), b"the values given or kept are not in 1 .. the length of a line"),
        (Case(4, 4, kept=((4, 1), (4, 0))), b"the values given or kept are not in 1 .. the length of a line"),
        (Case(256, 256), b"a plane does not fit in shared memory"),
        (Case(8192, 8192), b"a plane does not fit in shared memory"),
    ],
    ids=str,
)  # fmt: skip
def test_refusals(library: ctypes.CDLL, case: Case, why: bytes) -> None:
    assert library.turbofno_plane_fft_unsupported(structure(case)) == why
    assert library.turbofno_plane_fft(structure(case), None) == 1


def test_a_missing_pointer_is_reported(library: ctypes.CDLL) -> None:
    assert library.turbofno_plane_fft(structure(Case(8, 8)), None) == 2
