"""A Fourier layer by direct calls of cuFFT and cuBLAS: the conventional pipeline without PyTorch's overhead.

x -> cuFFT R2C -> kept corners, mode by mode -> cuBLAS Cgemm, one matrix a mode -> zeros and corners -> cuFFT C2R
  -> += skip . x by cuBLAS Sgemm -> GELU in place

Float32, modes below Nyquist. Plans and buffers are made once; a CUDA graph can capture a call. The inverse's 1/N is folded
into the weights, the bias into the zeroth mode, the addition of the skip into its product.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

_CUFFT_R2C = 0x2A
_CUFFT_C2R = 0x2C
_CUFFT_C2C = 0x29
_CUFFT_FORWARD, _CUFFT_INVERSE = -1, 1
_CUBLAS_OP_N = 0

Corner = tuple[slice, ...]


def corners(modes: Sequence[int]) -> list[tuple[Corner, Corner]]:
    """Places of the kept modes: pairs of (index into the half spectrum, index into the kept modes)."""
    *others, last = modes
    columns = slice(0, last)
    if not others:
        return [((columns,), (columns,))]
    (count,) = others
    low, high = (count + 1) // 2, count // 2
    pairs: list[tuple[Corner, Corner]] = [
        ((slice(0, low), columns), (slice(0, low), columns)),
    ]
    if high:
        pairs.append(((slice(-high, None), columns), (slice(low, None), columns)))
    return pairs


def gather(spectrum: torch.Tensor, kept: torch.Tensor) -> None:
    """Copy the kept corners of [batch, channels, *full] into [*modes, batch, channels]."""
    for whole, part in corners(kept.shape[:-2]):
        kept[part].copy_(spectrum[:, :, *whole].movedim((0, 1), (-2, -1)))


def scatter(kept: torch.Tensor, spectrum: torch.Tensor) -> None:
    """Zero [batch, channels, *full] and copy [*modes, batch, channels] into its corners."""
    spectrum.zero_()
    for whole, part in corners(kept.shape[:-2]):
        spectrum[:, :, *whole].copy_(kept[part].movedim((-2, -1), (0, 1)))


def folded_weight(weight: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """[c_in, c_out, *modes] as [*modes, c_in, c_out], with the inverse's 1/N and half of the zeroth column."""
    axes = range(2, weight.ndim)
    by_mode = (weight / math.prod(size)).permute(*axes, 0, 1).contiguous()
    by_mode.select(weight.ndim - 3, 0).mul_(0.5)
    return by_mode


def mirror(size: Sequence[int], device: torch.device) -> torch.Tensor:
    """Indices of the frequencies -k of the zeroth column, for k in order."""
    h = math.prod(size[:-1])
    return -torch.arange(h, device=device) % h


def complete(spectrum: torch.Tensor, mirrored: torch.Tensor, bias: torch.Tensor) -> None:
    """Add to the zeroth column its mirror image, which makes it Hermitian, and add the bias of each channel.

    After the mix the column is not Hermitian, and for such a column the result of cuFFT's inverse depends on the size.
    torch.fft.irfftn takes the Hermitian part: half of the column plus half of its mirror image.
    """
    column = spectrum[..., 0].view(*spectrum.shape[:2], -1)
    column += column[..., mirrored].conj_physical_()
    torch.view_as_real(column)[:, :, 0, 0] += bias


class DirectLayer:
    """gelu(spectral_conv(x, weight) + skip . x + bias) for one shape of x, float32, on the current device."""

    def __init__(
        self,
        shape: torch.Size,
        weight: torch.Tensor,
        skip: torch.Tensor,
        bias: torch.Tensor,
    ) -> None:
        batch, c_in, *size = shape
        c_out, modes = weight.shape[1], weight.shape[2:]
        half = (*size[:-1], size[-1] // 2 + 1)
        if modes[-1] > (size[-1] + 1) // 2:
            raise ValueError(f"modes {tuple(modes)} reach the Nyquist column of grid {size}")
        self.weight = folded_weight(weight, size)
        self.mirrored = mirror(size, weight.device)
        self.skip, self.bias = skip.contiguous(), bias
        self.spectrum = weight.new_empty(batch, c_in, *half)
        self.kept = weight.new_empty(*modes, batch, c_in)
        self.mixed = weight.new_empty(*modes, batch, c_out)
        self.mixed_spectrum = weight.new_empty(batch, c_out, *half)
        self.forward_plan = _plan(size, batch * c_in, _CUFFT_R2C)
        self.inverse_plan = _plan(size, batch * c_out, _CUFFT_C2R)
        weakref.finalize(self, _destroy, self.forward_plan, self.inverse_plan)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """A new field [batch, c_out, *size]."""
        y = x.new_empty(x.shape[0], self.weight.shape[-1], *x.shape[2:])
        _execute("cufftExecR2C", self.forward_plan, x, self.spectrum)
        gather(self.spectrum, self.kept)
        self._mix()
        scatter(self.mixed, self.mixed_spectrum)
        complete(self.mixed_spectrum, self.mirrored, self.bias)
        _execute("cufftExecC2R", self.inverse_plan, self.mixed_spectrum, y)
        self._add_skip(x, y)
        return torch.ops.aten.gelu_(y)

    def _mix(self) -> None:
        # cuBLAS is column-major: mixed^T = weight^T kept^T
        batch, c_in = self.kept.shape[-2:]
        c_out = self.mixed.shape[-1]
        one, zero = (ctypes.c_float * 2)(1, 0), (ctypes.c_float * 2)(0, 0)
        _gemm(
            *("cublasCgemmStridedBatched", c_out, batch, c_in, one),
            *((self.weight, c_out, c_in * c_out), (self.kept, c_in, batch * c_in), zero),
            *((self.mixed, c_out, batch * c_out), math.prod(self.kept.shape[:-2])),
        )

    def _add_skip(self, x: torch.Tensor, y: torch.Tensor) -> None:
        points = math.prod(x.shape[2:])
        c_in, c_out = x.shape[1], y.shape[1]
        one = ctypes.c_float(1)
        _gemm(
            *("cublasSgemmStridedBatched", points, c_out, c_in, one),
            *((x, points, c_in * points), (self.skip, c_in, 0), one),
            *((y, points, c_out * points), x.shape[0]),
        )


class DirectSharedWeight:
    """Complex spectral convolution with one weight for all modes: complex64 [batch, c_in, points] -> [batch, c_out, points].

    The first `modes` frequencies are multiplied by `weight` [c_in, c_out], all others become 0. With `copies` the kept modes
    are copied out of the spectra and back into zeros, as PyTorch does it. Without, cuBLAS reads them where cuFFT writes
    them, and writes them into spectra that were zeroed once.
    """

    def __init__(
        self, shape: torch.Size, weight: torch.Tensor, modes: int, *, copies: bool
    ) -> None:
        batch, c_in, points = shape
        c_out = weight.shape[1]
        self.modes, self.copies = modes, copies
        # the inverse's 1 / points is in the weight; cuBLAS is column-major
        self.weight = (weight / points).T.contiguous()
        self.spectrum = weight.new_empty(batch, c_in, points)
        self.mixed_spectrum = weight.new_zeros(batch, c_out, points)
        self.kept = self.mixed = weight.new_empty(0)
        if copies:
            self.kept = weight.new_empty(batch, c_in, modes)
            self.mixed = weight.new_empty(batch, c_out, modes)
        self.forward_plan = _plan([points], batch * c_in, _CUFFT_C2C)
        self.inverse_plan = _plan([points], batch * c_out, _CUFFT_C2C)
        weakref.finalize(self, _destroy, self.forward_plan, self.inverse_plan)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """A new field."""
        y = torch.empty_like(self.mixed_spectrum)
        _execute("cufftExecC2C", self.forward_plan, x, self.spectrum, _CUFFT_FORWARD)
        if self.copies:
            self.kept.copy_(self.spectrum[..., : self.modes])
            self._multiply(self.kept, self.mixed)
            self.mixed_spectrum.zero_()
            self.mixed_spectrum[..., : self.modes].copy_(self.mixed)
        else:
            self._multiply(self.spectrum, self.mixed_spectrum)
        _execute("cufftExecC2C", self.inverse_plan, self.mixed_spectrum, y, _CUFFT_INVERSE)
        return y

    def _multiply(self, kept: torch.Tensor, mixed: torch.Tensor) -> None:
        batch, c_in, pitch = kept.shape
        c_out = mixed.shape[1]
        one, zero = (ctypes.c_float * 2)(1, 0), (ctypes.c_float * 2)(0, 0)
        _gemm(
            *("cublasCgemmStridedBatched", self.modes, c_out, c_in, one),
            *((kept, pitch, c_in * pitch), (self.weight, c_in, 0), zero),
            *((mixed, pitch, c_out * pitch), batch),
        )


Matrices = tuple[torch.Tensor, int, int]
"""Data, leading dimension, stride from one matrix to the next."""


def _gemm(
    name: str,
    m: int,
    n: int,
    k: int,
    alpha: ctypes._CData,
    a: Matrices,
    b: Matrices,
    beta: ctypes._CData,
    c: Matrices,
    count: int,
) -> None:
    """Multiply column-major matrices: c [m, n] = alpha a [m, k] b [k, n] + beta c."""
    # PyTorch's handle uses the current stream and a workspace that graphs may capture
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    operands = [
        value
        for data, leading, stride in (a, b, c)
        for value in (
            ctypes.c_void_p(data.data_ptr()),
            ctypes.c_int(leading),
            ctypes.c_longlong(stride),
        )
    ]
    status = getattr(_library("cublas"), name)(
        *(handle, _CUBLAS_OP_N, _CUBLAS_OP_N, m, n, k, ctypes.byref(alpha)),
        *(*operands[:6], ctypes.byref(beta), *operands[6:], count),
    )
    _check(name, status)


def _plan(size: Sequence[int], count: int, kind: int) -> int:
    """A plan of `count` contiguous transforms."""
    handle = ctypes.c_int()
    axes = (ctypes.c_int * len(size))(*size)
    status = _library("cufft").cufftPlanMany(
        *(ctypes.byref(handle), len(size), axes, None, 1, 0, None, 1, 0, kind, count)
    )
    _check("cufftPlanMany", status)
    return handle.value


def _execute(
    name: str, plan: int, source: torch.Tensor, target: torch.Tensor, *direction: int
) -> None:
    cufft = _library("cufft")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _check("cufftSetStream", cufft.cufftSetStream(plan, stream))
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in (source, target))
    _check(name, getattr(cufft, name)(plan, *pointers, *direction))


def _destroy(*plans: int) -> None:
    for plan in plans:
        _library("cufft").cufftDestroy(plan)


def _check(name: str, status: int) -> None:
    if status != 0:
        raise RuntimeError(f"{name} failed with status {status}")


@cache
def _library(name: str) -> ctypes.CDLL:
    """The lib{name}.so.* that PyTorch has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(f"lib{name}.so"):
            return ctypes.CDLL(path)
    raise RuntimeError(f"PyTorch has not loaded lib{name}.so")
