"""Transforms through torch.fft: on any device, in float32 and float64, and in float16 through float32."""

from __future__ import annotations

import torch

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
        return run(wide, transform).to(transform.dtype(x.dtype))
    norm = _NORMS[transform.scaling][transform.inverse]
    if all(_is_whole(axis, kind) for axis, kind in transform.passes) and not (
        x.is_cuda and transform.kind == "complex_to_real"
    ):
        return _whole(x, transform, norm)
    for axis, kind in transform.passes:
        x = _along(x, axis, kind, transform.inverse, norm)
    return x


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
        y = torch.fft.rfftn(x, dim=dims, norm=norm)
    elif transform.kind == "complex_to_real":
        sizes = [axis.points for axis in transform.axes]
        y = torch.fft.irfftn(x, s=sizes, dim=dims, norm=norm)
    else:
        y = (torch.fft.ifftn if transform.inverse else torch.fft.fftn)(x, dim=dims, norm=norm)
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
        y = torch.fft.rfft(x, n=points, dim=dim, norm=norm)
    elif kind == "complex_to_real":
        y = torch.fft.irfft(_own_mirrors_real(x, axis), n=points, dim=dim, norm=norm)
    else:
        y = (torch.fft.ifft if inverse else torch.fft.fft)(x, n=points, dim=dim, norm=norm)
    if axis.kept == y.shape[dim]:
        return y
    head = y.narrow(dim, 0, axis.out_head)
    if not axis.out_tail:
        return head
    return torch.cat([head, y.narrow(dim, y.shape[dim] - axis.out_tail, axis.out_tail)], dim=dim)


def _own_mirrors_real(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Return x without the imaginary parts of value 0 and of the Nyquist value.

    cuFFT does not ignore them at some sizes (1D 8192 and 16384, 2D 1024x256).
    """
    if not x.is_cuda:
        return x
    x = x.clone()
    for value in {0, axis.points // 2} if axis.points % 2 == 0 else {0}:
        if value < axis.given:
            x.select(axis.dim, value).imag.zero_()
    return x
