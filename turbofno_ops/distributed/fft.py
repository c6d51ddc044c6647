"""FFTs of fields that are cut into slabs: local transforms, and an exchange of slabs behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import torch

from turbofno_ops._exchange import exchanged
from turbofno_ops._modes import Rows
from turbofno_ops._slab import Slab
from turbofno_ops._validation import check_tensor, grid_of
from turbofno_ops.description import Size
from turbofno_ops.distributed._passes import Begin, passes_of
from turbofno_ops.distributed.agreement import agree
from turbofno_ops.distributed.slabs import Group, check_device, check_slab, slab_of
from turbofno_ops.fft._arguments import SCALING_OF
from turbofno_ops.fft._transform import Axis, Transform

ORDERS = ("natural", "transposed")
"""Cut along the first or the second transformed axis."""

_PIECE_BYTES = 512 * 2**20
"""Of a piece of a slab that is exchanged, at least."""
_MOST_PIECES = 8
_LAST_PARTS = 4
"""Parts of a slab whose last axes are transformed one after the other. Between two, an exchange can begin."""
_NORMS = ("backward", "ortho", "forward")
_KINDS = {
    "fftn": ("complex", False),
    "ifftn": ("complex", True),
    "rfftn": ("real_to_complex", False),
    "irfftn": ("complex_to_real", True),
}
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def fftn(
    x: torch.Tensor,
    size: Sequence[int],
    *,
    norm: str = "backward",
    input_order: str = "natural",
    output_order: str = "natural",
    group: Group = None,
) -> torch.Tensor:
    """Compute `torch.fft.fftn` of a field that is cut into slabs, over its last `len(size)` axes.

    All processes of the group call it together, with the same size, orders and norm. The first call of a kind compares them.
    If later ones differ, the processes wait for each other until the group's timeout, fail, or give wrong results.

    In natural order a field is cut along its first transformed axis, in transposed order along its second, into the rows of
    `slab_rows`. All other axes are whole. The processes exchange the field once if the orders of input and output differ,
    else twice: `fftn` from natural to transposed and `ifftn` back is the fastest way to and fro. A large field is exchanged
    in pieces, each while another part is transformed: in single precision on a GPU by the kernels of `turbofno_ops.fft`, if
    they support every axis, else by torch.fft. No gradients.

    Args:
        x: This process's slab [.., *axes], complex64 or complex128, or float32 or float64 (converted). The axes in front
            are the same on all processes. A slab may be empty.
        size: Grid of the whole field, two axes or more.
        norm: 'backward', 'ortho' or 'forward', as in torch.fft.
        input_order: 'natural' or 'transposed'.
        output_order: 'natural' or 'transposed'.
        group: A process group, a DeviceMesh of one dimension, or None for all processes.

    Returns:
        This process's slab of the transform: complex; contiguous, or after a second exchange with the whole one of the first
        two axes outermost in memory.

    Raises:
        TypeError: x is no tensor or of an unsupported dtype, `size` has other things than integers, or `group` is neither a
            process group nor a mesh.
        ValueError: x is not this process's slab of `size`, `size` has fewer than two axes or an empty one, an unknown norm
            or order, a group that does not serve the device of x, x requires gradients, or processes that differ.

    Example:
        >>> x = torch.randn(len(slab_rows(12)), 10, 8, dtype=torch.complex64)
        >>> fftn(x, (12, 10, 8), output_order="transposed").shape == (12, len(slab_rows(10)), 8)
        True
    """
    return _transformed("fftn", x, size, norm, input_order, output_order, group)


def ifftn(
    x: torch.Tensor,
    size: Sequence[int],
    *,
    norm: str = "backward",
    input_order: str = "natural",
    output_order: str = "natural",
    group: Group = None,
) -> torch.Tensor:
    """Compute `torch.fft.ifftn` of slabs, the inverse of `fftn`. Arguments, result and errors are those of `fftn`.

    Args:
        x: As in `fftn`.
        size: As in `fftn`.
        norm: As in `fftn`.
        input_order: As in `fftn`.
        output_order: As in `fftn`.
        group: As in `fftn`.

    Returns:
        This process's slab of the inverse transform.

    Raises:
        TypeError: As in `fftn`.
        ValueError: As in `fftn`.

    Example:
        >>> x = torch.randn(len(slab_rows(12)), 10, 8, dtype=torch.complex64)
        >>> spectrum = fftn(x, (12, 10, 8), output_order="transposed")
        >>> torch.allclose(ifftn(spectrum, (12, 10, 8), input_order="transposed"), x, atol=1e-5)
        True
    """
    return _transformed("ifftn", x, size, norm, input_order, output_order, group)


def rfftn(
    x: torch.Tensor,
    size: Sequence[int],
    *,
    norm: str = "backward",
    input_order: str = "natural",
    output_order: str = "natural",
    group: Group = None,
) -> torch.Tensor:
    """Compute `torch.fft.rfftn` of a real field that is cut into slabs, over its last `len(size)` axes.

    Half of `fftn`: only the frequencies 0 .. n // 2 of the last axis are computed and exchanged. Orders and exchanges are
    those of `fftn`. Of two axes, the second is the last: a real field in transposed order needs an exchange more.

    Args:
        x: This process's slab [.., *axes], float32 or float64.
        size: Grid of the whole real field, two axes or more.
        norm: As in `fftn`.
        input_order: As in `fftn`.
        output_order: As in `fftn`.
        group: As in `fftn`.

    Returns:
        This process's slab of the spectrum, complex. The whole spectrum has size[-1] // 2 + 1 elements on its last
        axis.

    Raises:
        TypeError: As in `fftn`.
        ValueError: As in `fftn`.

    Example:
        >>> x = torch.randn(len(slab_rows(12)), 10, 8)
        >>> rfftn(x, (12, 10, 8), output_order="transposed").shape == (12, len(slab_rows(10)), 5)
        True
    """
    return _transformed("rfftn", x, size, norm, input_order, output_order, group)


def irfftn(
    x: torch.Tensor,
    size: Sequence[int],
    *,
    norm: str = "backward",
    input_order: str = "natural",
    output_order: str = "natural",
    group: Group = None,
) -> torch.Tensor:
    """Compute `torch.fft.irfftn` of slabs, the inverse of `rfftn`.

    Orders and exchanges are those of `fftn`. Of two axes, a spectrum in natural order needs an exchange more.

    Args:
        x: This process's slab [.., *axes] of the spectrum, complex64 or complex128, of whose last axis the whole has
            size[-1] // 2 + 1 elements.
        size: Grid of the whole real field, two axes or more.
        norm: As in `fftn`.
        input_order: Of the spectrum, as in `fftn`.
        output_order: Of the real field, as in `fftn`.
        group: As in `fftn`.

    Returns:
        This process's slab of the real field.

    Raises:
        TypeError: As in `fftn`.
        ValueError: As in `fftn`.

    Example:
        >>> x = torch.randn(len(slab_rows(12)), 10, 8)
        >>> spectrum = rfftn(x, (12, 10, 8), output_order="transposed")
        >>> torch.allclose(irfftn(spectrum, (12, 10, 8), input_order="transposed"), x, atol=1e-5)
        True
    """
    return _transformed("irfftn", x, size, norm, input_order, output_order, group)


def _transformed(
    op: str,
    x: torch.Tensor,
    size: Sequence[int],
    norm: str,
    input_order: str,
    output_order: str,
    group: Group,
) -> torch.Tensor:
    slab, grid, cut, wanted = _checked(op, x, size, norm, (input_order, output_order), group)
    kind, inverse = _KINDS[op]
    half = (*grid[:-1], grid[-1] // 2 + 1)
    lengths = half if kind == "complex_to_real" else grid
    results = half if kind == "real_to_complex" else grid
    front = max(0, x.ndim - len(grid))
    agree(
        op, slab, x.device, partial(_check_own, op, slab, x, lengths, cut),
        size=grid, front=tuple(x.shape[:front]), dtype=_dtype(op, x), norm=norm, input_order=input_order,
        output_order=output_order,
    )  # fmt: skip
    x = x.to(_dtype(op, x)).resolve_conj().resolve_neg()
    axes = tuple(
        Axis(front + at, points, given, 0, kept, 0)
        for at, (points, given, kept) in enumerate(zip(grid, lengths, results, strict=True))
        # a complex transform of one point is a copy
        if points > 1 or (at == len(grid) - 1 and kind != "complex")
    )
    transform = Transform(kind, inverse, axes, SCALING_OF[norm][inverse])
    begin = passes_of(x, transform)
    *stages, last = [
        transform.along([front + axis for axis in stage])
        for stage in _stages(kind, len(grid), cut, wanted)
    ]
    nothing = transform.along([])
    whole = [*x.shape[:front], *lengths]
    for here, there in zip(stages, [*[nothing] * (len(stages) - 1), last], strict=True):
        at, to = front + cut, front + 1 - cut
        x = _exchanged(slab, begin, x, cut=at, to=to, points=whole[at], here=here, there=there)
        whole, cut = here.shape(whole), 1 - cut
    return x


def _dtype(op: str, x: torch.Tensor) -> torch.dtype:
    """Return the dtype that x is transformed in: `fftn` and `ifftn` take real numbers as complex ones."""
    return _COMPLEX.get(x.dtype, x.dtype) if op in {"fftn", "ifftn"} else x.dtype


def _check_own(op: str, slab: Slab, x: torch.Tensor, lengths: Size, cut: int) -> None:
    """Raise TypeError or ValueError unless x is this process's slab, of a dtype that is transformed."""
    if op == "rfftn":
        if x.dtype not in _COMPLEX:
            raise TypeError(
                f"rfftn: x must be float32 or float64, got {x.dtype}; fftn takes complex"
            )
    elif _dtype(op, x) not in _COMPLEX.values():
        real = "" if op == "irfftn" else ", float32 or float64"
        raise TypeError(f"{op}: x must be complex64 or complex128{real}, got {x.dtype}")
    if torch.is_grad_enabled() and x.requires_grad:
        raise ValueError(f"{op} computes no gradients; call it under torch.no_grad()")
    if x.ndim < len(lengths):
        raise ValueError(
            f"{op}: x must have the {len(lengths)} axes of size, got shape {list(x.shape)}"
        )
    expected = list(lengths)
    expected[cut] = slab.rows(lengths[cut]).count
    check_slab(op, slab, x.shape[x.ndim - len(lengths) :], lengths, expected)


def _stages(kind: str, count: int, cut: int, wanted: int) -> list[list[int]]:
    """Return the axes that are transformed before each exchange and after the last one.

    An exchange cuts the other one of the first two axes. A real transform begins or ends with the last axis, which must
    then be whole: of two axes that may need an exchange before.
    """
    last, other = count - 1, 1 - cut
    whole = [other, *range(2, count)]
    stages = [whole, [cut]]
    if kind == "real_to_complex" and cut == last:
        stages = [[], [last], [other]]
    elif kind == "complex_to_real" and other == last:
        stages = [[], [cut], [last]]
    elif kind == "complex_to_real":
        stages = [[axis for axis in whole if axis != last], sorted({cut, last})]
    reached = (cut + len(stages) - 1) % 2
    return stages if reached == wanted else [*stages, []]


def _exchanged(
    slab: Slab,
    begin: Begin,
    x: torch.Tensor,
    *,
    cut: int,
    to: int,
    points: int,
    here: Transform,
    there: Transform,
) -> torch.Tensor:
    """Do the transform `here`, exchange so that `to` is cut and not `cut`, and do the transform `there`."""
    pieces = _pieces(slab, x, cut, points)
    shape, dtype = here.shape(x.shape), here.dtype(x.dtype)
    arrived = exchanged(
        slab,
        x,
        cut=cut,
        to=to,
        points=points,
        shape=shape,
        dtype=dtype,
        begin=lambda piece: begin(here, piece, to),
        pieces=pieces,
        late=pieces > 1 and len(there.axes) > 0,
        kept=not there.axes,
    )
    if not there.axes:
        ((_, result),) = arrived
        return result
    own = list(shape)
    own[cut], own[to] = points, slab.rows(shape[to]).count
    result = x.new_empty(there.shape(own), dtype=there.dtype(dtype))
    most = max(1, -(-own[to] // _LAST_PARTS))
    with closing(arrived):
        for first, columns in arrived:
            outs = result.narrow(to, first, columns.shape[to]).split(most, to)
            for given, out in zip(columns.split(most, to), outs, strict=True):
                if given.numel():
                    begin(there, given, to)(Rows.whole(given.shape[to]), out)
    return result


def _pieces(slab: Slab, x: torch.Tensor, cut: int, points: int) -> int:
    """Return the number of pieces of an exchange, from what all processes know."""
    most = list(x.shape)
    most[cut] = slab.all_rows(points)[0].count
    wanted = math.prod(most) * x.element_size() // _PIECE_BYTES
    return max(1, min(wanted, _MOST_PIECES, most[cut]))


def _checked(
    op: str,
    x: torch.Tensor,
    size: Sequence[int],
    norm: str,
    orders: tuple[str, str],
    group: Group,
) -> tuple[Slab, Size, int, int]:
    """Check what does not depend on the transform; return the slab, the grid, and the cut axes of input and output."""
    slab, grid = slab_of(op, group), grid_of(op, size)
    for name, value, known in (
        ("norm", norm, _NORMS),
        ("input_order", orders[0], ORDERS),
        ("output_order", orders[1], ORDERS),
    ):
        if value not in known:
            raise ValueError(f"{op}: {name} must be one of {known}, got {value!r}")
    if len(grid) < 2 or min(grid) < 1:
        raise ValueError(f"{op}: size must have two axes or more of a point or more, got {grid}")
    check_tensor(op, "x", x)
    check_device(op, slab, x.device)
    return slab, grid, ORDERS.index(orders[0]), ORDERS.index(orders[1])
