"""Cases of discrete Fourier transforms, their truth in float64, and their run on an emulated GPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np

from turbofno_ops import _native
from turbofno_ops.fft._rule import HALF, MIXED_RADIX
from turbofno_ops.fft._tables import half_table, mixed_radix_table

COMPLEX, REAL_TO_COMPLEX, COMPLEX_TO_REAL = range(3)
FP16 = 3  # TURBOFNO_FP16


@dataclass
class Case:
    points: int
    kind: int = COMPLEX
    inverse: int = 0
    outer: int = 1
    inner: int = 5
    half: bool = False
    scale: float = 1.0
    twiddle_points: int = 0
    in_order: str = "oip"  # axes from the slowest to the fastest: outer, inner, point
    out_order: str = "oip"
    in_padding: int = 0  # added to the size of every axis
    out_padding: int = 0
    given: tuple[int, int] = field(default=(-1, 0))  # head, tail; -1: all
    kept: tuple[int, int] = field(default=(-1, 0))

    def length(self, real_side: int) -> int:
        return self.points if self.kind in (COMPLEX, real_side) else self.points // 2 + 1

    def __post_init__(self) -> None:
        if self.given[0] < 0:
            self.given = (self.length(REAL_TO_COMPLEX), 0)
        if self.kept[0] < 0:
            self.kept = (self.length(COMPLEX_TO_REAL), 0)


def strides(order: str, sizes: dict[str, int], padding: int) -> tuple[dict[str, int], int]:
    """Return the strides of padded axes and the number of values."""
    found, step = {}, 1
    for axis in reversed(order):
        found[axis] = step
        step *= sizes[axis] + padding
    return found, step


def view(buffer: np.ndarray, steps: dict[str, int], shape: tuple[int, ...]) -> np.ndarray:
    """The values [outer, inner, point] of a flat buffer."""
    unit = buffer.strides[0]
    return np.lib.stride_tricks.as_strided(
        buffer,
        (*shape, *buffer.shape[1:]),
        (*(steps[a] * unit for a in "oip"), *buffer.strides[1:]),
    )


def full(values: np.ndarray, ends: tuple[int, int], length: int) -> np.ndarray:
    """Insert the zeros between the head and the tail."""
    whole = np.zeros((*values.shape[:-1], length), values.dtype)
    whole[..., : ends[0]] = values[..., : ends[0]]
    whole[..., length - ends[1] :] = values[..., ends[0] :]
    return whole


def expected(case: Case, values: np.ndarray) -> np.ndarray:
    """The transform by numpy in float64."""
    x = full(values, case.given, case.length(REAL_TO_COMPLEX))
    n = case.points
    y: np.ndarray
    if case.kind == COMPLEX:
        y = np.fft.ifft(x) * n if case.inverse else np.fft.fft(x)
    elif case.kind == REAL_TO_COMPLEX:
        y = np.fft.rfft(x)
        y = y.conj() if case.inverse else y
    else:
        x = (x if case.inverse else x.conj()).copy()
        x[..., 0].imag = 0
        if n % 2 == 0:
            x[..., -1].imag = 0
        y = np.fft.irfft(x, n) * n
    y *= case.scale
    if case.twiddle_points:
        sign = 1 if case.inverse else -1
        turns = np.outer(np.arange(case.inner), np.arange(n)) % case.twiddle_points
        y = y * np.exp(sign * 2j * np.pi * turns / case.twiddle_points)
    return np.concatenate([y[..., : case.kept[0]], y[..., y.shape[-1] - case.kept[1] :]], axis=-1)


def filled(shape: tuple[int, ...], dtype: type[np.floating]) -> np.ndarray:
    """NaN, from a multiple of 16 bytes on."""
    size = int(np.prod(shape))
    memory = np.full(size + 16, np.nan, dtype)
    first = -memory.ctypes.data % 16 // memory.itemsize
    return memory[first : first + size].reshape(shape)


def as_complex(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return values[..., 0].astype(np.float64) + 1j * values[..., 1]


def transform(
    library: ctypes.CDLL,
    case: Case,
    draw: np.random.Generator,
    spoilt: tuple[int, int] | None = None,
    *,
    kernel: str = MIXED_RADIX,
    size: float = 1.0,
    values: np.ndarray | None = None,
    shared_bytes: int = 227 * 1024,
    multiprocessors: int = 132,
) -> tuple[np.ndarray, np.ndarray]:
    """Run a case on a kernel, of drawn values of a size or of complex ones for every line. Return input and result [outer, inner, point] in double precision.

    Places of the input that do not belong to it are NaN; those of the output must not be written.
    """
    dtype = np.float16 if case.half else np.float32
    arrays, steps, shapes = [], [], []
    sides = (
        (case.in_order, case.in_padding, sum(case.given), case.kind != REAL_TO_COMPLEX),
        (case.out_order, case.out_padding, sum(case.kept), case.kind != COMPLEX_TO_REAL),
    )
    for order, padding, count, is_complex in sides:
        shape = (case.outer, case.inner, count)
        step, total = strides(order, dict(zip("oip", shape, strict=True)), padding)
        arrays.append(filled((total, 2) if is_complex else (total,), dtype))
        steps.append(step)
        shapes.append(shape)
    given = view(arrays[0], steps[0], shapes[0])
    if values is None:
        given[...] = size * draw.standard_normal(given.shape)
    else:
        given[...] = np.stack([values.real, values.imag], -1)
    if spoilt is not None:
        given[spoilt][draw.integers(shapes[0][2])] = np.inf
    untouched = arrays[1].copy()
    view(untouched, steps[1], shapes[1])[...] = 0
    table = half_table(case.points) if kernel == HALF else mixed_radix_table(case.points)
    fft = _native.Fft(
        outer=case.outer, inner=case.inner, twiddle_points=case.twiddle_points, points=case.points,
        in_head=case.given[0], in_tail=case.given[1], out_head=case.kept[0], out_tail=case.kept[1],
        kind=case.kind, inverse=case.inverse, precision=FP16 if case.half else 0, multiprocessors=multiprocessors,
        shared_bytes=shared_bytes, scale=case.scale,
        in_outer=steps[0]["o"], in_inner=steps[0]["i"], in_point=steps[0]["p"],
        out_outer=steps[1]["o"], out_inner=steps[1]["i"], out_point=steps[1]["p"],
        input=arrays[0].ctypes.data, out=arrays[1].ctypes.data, table=table.data_ptr(),
    )  # fmt: skip
    refusal = getattr(library, f"turbofno_{kernel}_unsupported")(fft)
    assert refusal is None, (case, refusal)
    status = getattr(library, f"turbofno_{kernel}")(fft, None)
    assert status == 0, (case, library.turbofno_last_cuda_error())
    result = view(arrays[1], steps[1], shapes[1]).copy()
    assert np.isnan(arrays[1][np.isnan(untouched)]).all(), case
    x = as_complex(given) if sides[0][3] else given.astype(np.float64)
    return x, as_complex(result) if sides[1][3] else result.astype(np.float64)


def error(got: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(got - truth) / np.linalg.norm(truth))
