"""Arguments of the public functions, checked and turned into the description of a transform."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from turbofno_ops.fft._choice import BACKENDS
from turbofno_ops.fft._transform import SCALINGS, Axis, Transform, complex_of, real_of

PRECISIONS = ("fp32", "fp16")

SCALING_OF = {
    # norm -> scaling of a forward and of an inverse transform
    None: (SCALINGS[0], SCALINGS[2]),
    "backward": (SCALINGS[0], SCALINGS[2]),
    "ortho": (SCALINGS[1], SCALINGS[1]),
    "forward": (SCALINGS[2], SCALINGS[0]),
}
_REALS = {"fp32": (torch.float32, torch.float64), "fp16": (torch.float16,)}

Sizes = Sequence[int | None]


def transform_of(
    op: str,
    x: torch.Tensor,
    *,
    kind: str,
    inverse: bool,
    sizes: Sequence[int | None] | None,
    dims: Sequence[int] | None,
    norm: str | None,
    modes: Sequence[int | None] | None,
    precision: str,
    backend: str,
) -> tuple[torch.Tensor, Transform]:
    """Return x as the op takes it, and the description of the transform.

    Raises:
        TypeError: An argument of the wrong type, or an unsupported dtype.
        ValueError: Everything else.
    """
    _check_names(op, norm, precision, backend)
    x = _typed(op, x, kind, precision)
    dims = _dimensions(op, x, dims, sizes, modes)
    sizes = _counted(op, "n" if op.endswith("fft") else "s", sizes, dims)
    modes = _counted(op, "modes", modes, dims)
    axes = []
    for at, (dim, size, kept) in enumerate(zip(dims, sizes, modes, strict=True)):
        half = kind != "complex" and at == len(dims) - 1
        given = x.shape[dim]
        if inverse:
            x, axis = _inverse_axis(op, x, dim, size, kept, half=half)
        else:
            points = given if size is None else size
            _check_points(op, dim, points, given)
            x = x.narrow(dim, 0, points) if given > points else x
            axis = _forward_axis(op, dim, points, min(given, points), kept, half=half)
        axes.append(axis)
    return x, Transform(kind, inverse, tuple(axes), SCALING_OF[norm][int(inverse)])


def _check_names(op: str, norm: str | None, precision: str, backend: str) -> None:
    if not isinstance(norm, str | None) or norm not in SCALING_OF:
        raise ValueError(f"{op}: norm must be None, 'backward', 'ortho' or 'forward', got {norm!r}")
    if precision not in PRECISIONS:
        raise ValueError(f"{op}: precision must be one of {PRECISIONS}, got {precision!r}")
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"{op}: backend must be 'auto' or one of {BACKENDS}, got {backend!r}")


def _typed(op: str, x: torch.Tensor, kind: str, precision: str) -> torch.Tensor:
    """Return x, complex if the transform is of complex values."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(
            f"{op}: x must be a tensor, got {type(x).__name__}; pass torch.as_tensor(x)"
        )
    if real_of(x.dtype) not in _REALS[precision]:
        expected = " or ".join(
            str(one)
            for real in _REALS[precision]
            for one in ((real,) if kind == "real_to_complex" else (real, complex_of(real)))
        )
        fp16 = real_of(x.dtype) == torch.float16
        advice = "pass precision='fp16'" if fp16 else "convert it"
        raise TypeError(
            f"{op}: x must be {expected} at precision {precision!r}, got {x.dtype}; {advice}"
        )
    if kind == "real_to_complex":
        if x.is_complex():
            raise TypeError(f"{op}: x must be real, got {x.dtype}; transform it with fft")
        return x
    return x if x.is_complex() else x.to(complex_of(x.dtype))


def _dimensions(
    op: str,
    x: torch.Tensor,
    dims: Sequence[int] | None,
    sizes: Sizes | None,
    modes: Sizes | None,
) -> list[int]:
    """Return the transformed dimensions, counted from the front."""
    if dims is None:
        if not op.endswith("n"):
            raise TypeError(
                f"{op}: dim must name axes, got None; {op.rstrip('2')}n takes None for all"
            )
        named = next((one for one in (sizes, modes) if one is not None), None)
        count = x.ndim if named is None else len(named)
        if count > x.ndim:
            raise ValueError(f"{op}: {count} axes are named, x has shape {list(x.shape)}")
        dims = range(x.ndim - count, x.ndim)
    if not dims:
        raise ValueError(f"{op}: dim names no axis of x, shape {list(x.shape)}")
    dims = [_integer(op, "dim", dim) for dim in dims]
    for dim in dims:
        if not -x.ndim <= dim < x.ndim:
            raise ValueError(f"{op}: dim {dim} is no axis of x, shape {list(x.shape)}")
    found = [dim % x.ndim for dim in dims]
    if len(set(found)) < len(found):
        raise ValueError(f"{op}: dim names an axis twice: {tuple(dims)}")
    return found


def _counted(op: str, name: str, given: Sizes | None, dims: Sequence[int]) -> Sizes:
    """Return one entry for each axis; None and, as in torch.fft, -1 of `s` mean the default."""
    if given is None:
        return [None] * len(dims)
    entries = [None if one is None else _integer(op, name, one) for one in given]
    if len(entries) != len(dims):
        raise ValueError(
            f"{op}: {name} must have {len(dims)} entries, one for each axis, got {tuple(entries)}"
        )
    return [None if name == "s" and one == -1 else one for one in entries]


def _integer(op: str, name: str, given: Any) -> int:
    """Return an entry of an argument as an int; symbolic ones stay symbolic, which operator.index would end."""
    found: int = given
    if isinstance(given, bool) or not isinstance(given, int | torch.SymInt):
        try:
            if isinstance(given, bool):
                raise TypeError
            found = operator.index(given)
        except TypeError:
            raise TypeError(f"{op}: {name} must be an integer, got {given!r}") from None
    if not -(2**63) < found < 2**63:
        raise ValueError(f"{op}: {name} must be below 2^63, got {found}")
    return found


def _check_points(op: str, dim: int, points: int, given: int) -> None:
    if points < 1:
        raise ValueError(f"{op}: axis {dim} must have at least 1 point, got {points}")
    if given < 1:
        raise ValueError(f"{op}: axis {dim} of x is empty")


def _check_kept(op: str, dim: int, kept: int, most: int, points: int) -> None:
    if not 1 <= kept <= most:
        raise ValueError(
            f"{op}: modes must be 1 to {most} on axis {dim}, of {points} points, got {kept}"
        )


def _forward_axis(
    op: str, dim: int, points: int, given: int, kept: int | None, *, half: bool
) -> Axis:
    most = points // 2 + 1 if half else points
    if kept is None:
        kept = most
    _check_kept(op, dim, kept, most, points)
    head = kept if half or kept == most else (kept + 1) // 2
    return Axis(dim, points, given, 0, head, kept - head)


def _inverse_axis(
    op: str, x: torch.Tensor, dim: int, size: int | None, kept: int | None, *, half: bool
) -> tuple[torch.Tensor, Axis]:
    """Return x without the values that are cut off, and the axis."""
    given = x.shape[dim]
    points = size if size is not None else max(2 * (given - 1), 0) if half else given
    _check_points(op, dim, points, given)
    most = points // 2 + 1 if half else points
    if kept is None:
        # as torch.fft: what is missing is at the end
        given = min(given, most)
        return x.narrow(dim, 0, given), Axis(dim, points, given, 0, points, 0)
    _check_kept(op, dim, kept, most, points)
    if kept != given:
        raise ValueError(
            f"{op}: modes says {kept} values on axis {dim}, x has {given}; slice x or change modes"
        )
    head = kept if half or kept == most else (kept + 1) // 2
    return x, Axis(dim, points, head, kept - head, points, 0)
