"""Transforms through torch.fft: on any device, in float32 and float64, and in float16 through float32."""

from __future__ import annotations

import itertools

import torch

from turbofno_ops import _torch_fft
from turbofno_ops.fft._transform import Axis, Transform, real_of

_NORMS = {
    # scaling -> norm of a forward and of an inverse transform
    "none": ("backward", "forward"),
    "root": ("ortho", "ortho"),
    "whole": ("forward", "backward"),
}


def run(x: torch.Tensor, transform: Transform) -> torch.Tensor:
    """Return the transform of x; the imaginary part of its own mirror images in a half spectrum is ignored."""
    if real_of(x.dtype) == torch.float16:
        wide = x.to(torch.complex64 if x.is_complex() else torch.float32)
        return _run(wide, transform, owned=True).to(transform.dtype(x.dtype))
    return _run(x, transform, owned=False)


def _run(x: torch.Tensor, transform: Transform, *, owned: bool) -> torch.Tensor:
    """Return the transform of x; writes to x only if it is `owned`."""
    norm = _NORMS[transform.scaling][transform.inverse]
    mixes = transform.kind == "complex_to_real" and _mixes_own_mirrors(x, transform.axes[-1])
    if all(_is_whole(axis, kind) for axis, kind in transform.passes) and not mixes:
        return _whole(x, transform, norm)
    for whole, passes in itertools.groupby(transform.passes, _is_whole_and_complex):
        if whole:
            dims = [axis.dim for axis, _ in passes]
            x = (_torch_fft.ifftn if transform.inverse else _torch_fft.fftn)(x, dim=dims, norm=norm)
            owned = True
            continue
        for axis, kind in passes:
            if kind == "complex_to_real" and mixes:
                x = _own_mirrors_real(x if owned else x.clone(), axis)
            x = _along(x, axis, kind, transform.inverse, norm)
            owned = True
    return x


def _is_whole_and_complex(of: tuple[Axis, str]) -> bool:
    return of[1] == "complex" and _is_whole(*of)


def _is_whole(axis: Axis, kind: str) -> bool:
    """Return True if nothing of the axis is left out or cut off."""
    half = axis.points // 2 + 1
    given = half if kind == "complex_to_real" else axis.points
    kept = half if kind == "real_to_complex" else axis.points
    return (axis.given, axis.kept) == (given, kept)


def _whole(x: torch.Tensor, transform: Transform, norm: str) -> torch.Tensor:
    dims = [axis.dim for axis in transform.axes]
    y: torch.Tensor
    if transform.kind == "real_to_complex":
        y = _torch_fft.rfftn(x, dim=dims, norm=norm)
    elif transform.kind == "complex_to_real":
        sizes = [axis.points for axis in transform.axes]
        y = _torch_fft.irfftn(x, s=sizes, dim=dims, norm=norm)
    else:
        y = (_torch_fft.ifftn if transform.inverse else _torch_fft.fftn)(x, dim=dims, norm=norm)
    return y


def _along(x: torch.Tensor, axis: Axis, kind: str, inverse: bool, norm: str) -> torch.Tensor:
    dim, points = axis.dim, axis.points
    if axis.in_tail:
        between = list(x.shape)
        between[dim] = points - axis.given
        head, tail = x.split([axis.in_head, axis.in_tail], dim=dim)
        x = torch.cat([head, x.new_zeros(between), tail], dim=dim)
    y: torch.Tensor
    if kind == "real_to_complex":
        y = _torch_fft.rfft(x, n=points, dim=dim, norm=norm)
    elif kind == "complex_to_real":
        y = _torch_fft.irfft(x, n=points, dim=dim, norm=norm)
    else:
        y = (_torch_fft.ifft if inverse else _torch_fft.fft)(x, n=points, dim=dim, norm=norm)
    if axis.kept == y.shape[dim]:
        return y
    head = y.narrow(dim, 0, axis.out_head)
    if not axis.out_tail:
        return head
    return torch.cat([head, y.narrow(dim, y.shape[dim] - axis.out_tail, axis.out_tail)], dim=dim)


def _mixes_own_mirrors(x: torch.Tensor, axis: Axis) -> bool:
    """Return True where the imaginary parts of value 0 and of the Nyquist value may reach a real line.

    They do in cuFFT at many powers of two. It packs even lines into complex ones of half their size; odd lines it cannot.
    """
    return x.is_cuda and axis.points % 2 == 0


def _own_mirrors_real(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Write zeros to the imaginary parts of value 0 and of the Nyquist value of an even line, if it is given."""
    x.movedim(axis.dim, -1)[..., :: axis.points // 2].imag.zero_()
    return x
