"""The C interface of discrete Fourier transforms (csrc/api/turbofno.h), interpreted by numpy in float64."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import torch

from turbofno_ops._native import Fft, PlaneAxis, PlaneTransform
from turbofno_ops.fft._transform import KINDS

COMPLEX, TO_COMPLEX, TO_REAL = range(3)
FP32, FP16 = 0, 3
MOST_SMOOTH, MOST_DENSE = 4096, 1024
"""Points that the kernels support: without large prime factors, and any."""


def largest_prime(points: int) -> int:
    found, factor = 1, 2
    while points > 1:
        while points % factor == 0:
            points, found = points // factor, factor
        factor += 1
    return found


def refusal(name: str, fft: Fft | PlaneTransform) -> str | None:
    """The reason why a kernel does not support a launch, in short."""
    if isinstance(fft, PlaneTransform):
        return None
    if fft.points < 2:
        return "a line has at least 2 points"
    if name == "mixed_radix_fft_unsupported":
        smooth = fft.points <= MOST_SMOOTH and largest_prime(fft.points) <= 13
        return None if smooth else f"{fft.points} points have a large prime factor"
    if name == "half_fft_unsupported":
        return None if _takes_half(fft) else "not lines of float16 in whole words"
    assert name == "dense_dft_unsupported"
    return None if fft.points <= MOST_DENSE else f"{fft.points} points, at most {MOST_DENSE}"


def _takes_half(fft: Fft) -> bool:
    """Complex float16 lines of a power of two, points or 16 lines next to each other, in words of four values."""
    whole = fft.in_head + fft.in_tail == fft.out_head + fft.out_tail == fft.points
    if not (fft.precision == FP16 and fft.kind == COMPLEX and whole):
        return False
    if fft.points not in (128, 256, 512, 1024, 2048, 4096, 8192, 16384):
        return False
    sides = (
        (fft.in_point, fft.in_inner, fft.in_outer),
        (fft.out_point, fft.out_inner, fft.out_outer),
    )
    for point, inner, outer in sides:
        if 1 not in (point, inner):
            return False
        axes = ((point, fft.points), (inner, fft.inner), (outer, fft.outer))
        if any(stride % 4 for stride, count in axes if count > 1 and stride != 1):
            return False
    if fft.in_point == fft.out_point == 1:
        return not fft.twiddle_points
    columns = fft.out_point != 1 and fft.inner % 16 == 0 and fft.points <= 512
    return columns and not (fft.twiddle_points and fft.in_point == 1)


class Memory:
    """The arrays that launches may read and write."""

    def __init__(self) -> None:
        self.known: list[torch.Tensor] = []

    def check(self, address: int, first: int, last: int, nbytes: int) -> None:
        """Assert that values `first` to `last` of an array are in one known storage."""
        begin, end = address + first * nbytes, address + (last + 1) * nbytes
        for tensor in self.known:
            storage = tensor.untyped_storage()
            if storage.data_ptr() <= begin and end <= storage.data_ptr() + storage.nbytes():
                return
        raise AssertionError("a launch reaches beyond its arrays")


def _values(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], *, is_complex: bool, half: bool
) -> np.ndarray:
    """A view of values at an address, real [.., 1] or complex [.., 2]."""
    parts, scalar = (2 if is_complex else 1), np.float16 if half else np.float32
    width = np.dtype(scalar).itemsize
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    buffer = (ctypes.c_char * (reach * parts * width)).from_address(address)
    flat = np.frombuffer(buffer, dtype=scalar)
    return np.lib.stride_tricks.as_strided(
        flat, (*shape, parts), (*(s * parts * width for s in strides), width)
    )


def execute(fft: Fft | PlaneTransform, memory: Memory | None = None) -> None:
    """Do what a launch does: every value of the result is written, none of the input is changed."""
    if isinstance(fft, PlaneTransform):
        return _execute_planes(fft, memory)
    half, n = fft.precision == FP16, fft.points
    assert fft.precision in (FP32, FP16)
    given, kept = fft.in_head + fft.in_tail, fft.out_head + fft.out_tail
    reads = (fft.outer, fft.inner, given), (fft.in_outer, fft.in_inner, fft.in_point)
    writes = (fft.outer, fft.inner, kept), (fft.out_outer, fft.out_inner, fft.out_point)
    for (shape, strides), address, is_real in (
        (reads, fft.input, fft.kind == TO_COMPLEX),
        (writes, fft.out, fft.kind == TO_REAL),
    ):
        last = sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
        if memory is not None:
            memory.check(address, 0, last, (2 if half else 4) * (1 if is_real else 2))
    x = _values(fft.input, *reads, is_complex=fft.kind != TO_COMPLEX, half=half).astype(np.float64)
    line = x[..., 0] if fft.kind == TO_COMPLEX else x[..., 0] + 1j * x[..., 1]
    in_length = n // 2 + 1 if fft.kind == TO_REAL else n
    out_length = n // 2 + 1 if fft.kind == TO_COMPLEX else n
    assert given <= in_length
    assert kept <= out_length
    whole = np.zeros((*line.shape[:2], in_length), line.dtype)
    whole[..., : fft.in_head] = line[..., : fft.in_head]
    if fft.in_tail:
        whole[..., in_length - fft.in_tail :] = line[..., fft.in_head :]
    if fft.kind == TO_REAL:
        assert fft.inverse
        y = np.fft.irfft(whole, n, norm="forward")
    elif fft.inverse:
        y = np.fft.ifft(whole, norm="forward")
    else:
        y = np.fft.fft(whole)
    y = np.concatenate([y[..., : fft.out_head], y[..., out_length - fft.out_tail : out_length]], -1)
    if fft.twiddle_points:
        lines = np.arange(fft.inner)[:, None] * np.arange(kept)
        sign = 1 if fft.inverse else -1
        y = y * np.exp(sign * 2j * math.pi * lines / fft.twiddle_points)
    y = y * fft.scale
    out = _values(fft.out, *writes, is_complex=fft.kind != TO_REAL, half=half)
    out[..., 0] = y.real
    if fft.kind != TO_REAL:
        out[..., 1] = y.imag
    return None


def _execute_planes(plane: PlaneTransform, memory: Memory | None) -> None:
    """One axis after the other, the one with a half spectrum first or, of the inverse, last."""
    height, width = plane.height, plane.width
    by_width = plane.kind != TO_REAL
    rows = height.in_head + height.in_tail if by_width else height.out_head + height.out_tail
    columns = width.out_head + width.out_tail if by_width else width.in_head + width.in_tail
    between = torch.empty(plane.planes, rows, columns, dtype=torch.complex64)
    if memory is not None:
        memory.known.append(between)

    def line(axis: PlaneAxis, kind: int, outer: int, inner: int) -> Fft:
        given, kept = axis.in_head + axis.in_tail, axis.out_head + axis.out_tail
        fft = Fft(points=axis.points, kind=kind, inverse=plane.inverse, scale=1.0)
        fft.outer, fft.in_outer, fft.out_outer = outer, given * inner, kept * inner
        fft.inner, fft.in_inner, fft.out_inner = inner, 1, 1
        fft.in_point = fft.out_point = inner
        for name in ("in_head", "in_tail", "out_head", "out_tail"):
            setattr(fft, name, getattr(axis, name))
        return fft

    passes = [
        line(width, plane.kind, plane.planes * rows, 1),
        line(height, COMPLEX, plane.planes, columns),
    ]
    first, last = passes if by_width else passes[::-1]
    first.input, first.out = plane.input, between.data_ptr()
    last.input, last.out, last.scale = between.data_ptr(), plane.out, plane.scale
    execute(first, memory)
    execute(last, memory)


def table_of(fft: Fft | PlaneAxis) -> torch.Tensor:
    """The table that the mixed-radix kernel or that of planes reads, to compare with what a launch was given."""
    values = _values(fft.table, (fft.points,), (1,), is_complex=True, half=False)
    return torch.view_as_complex(torch.from_numpy(values.copy()))


assert KINDS[TO_COMPLEX] == "real_to_complex"
assert KINDS[TO_REAL] == "complex_to_real"
