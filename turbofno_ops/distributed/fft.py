"""FFTs of fields that are cut into slabs: local transforms, and an exchange of slabs behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from turbofno_ops._exchange import recut
from turbofno_ops._slab import Slab
from turbofno_ops.description import Size
from turbofno_ops.distributed.slabs import Group, check_device, check_slab, slab_of

ORDERS = ("natural", "transposed")
"""Cut along the first or the second transformed axis."""

_PIECE_BYTES = 128 * 2**20
_MOST_PIECES = 16
_NORMS = ("backward", "ortho", "forward")
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

    All processes of the group call it together. In natural order a field is cut along its first transformed axis, in
    transposed order along its second, into the rows of `slab_rows`. All other axes are whole. The processes exchange the
    field once if the orders of input and output differ, else twice: `fftn` from natural to transposed and `ifftn` back is the
    fastest way to and fro. A large field is exchanged in pieces, each while the next one is transformed. No gradients.

    Args:
        x: This process's slab [.., *axes], complex64 or complex128, or float32 or float64 (converted). The axes in front
            are the same on all processes. A slab may be empty.
        size: Grid of the whole field, two axes or more.
        norm: 'backward', 'ortho' or 'forward', as in torch.fft.
        input_order: 'natural' or 'transposed'.
        output_order: 'natural' or 'transposed'.
        group: A process group, a DeviceMesh of one dimension, or None for all processes.

    Returns:
        This process's slab of the transform: complex, with the strides that the last step leaves, as from torch.fft.

    Raises:
        TypeError: An unsupported dtype, or `group` is neither a process group nor a mesh.
        ValueError: x is not this process's slab of `size`, `size` has fewer than two axes or an empty one, an unknown norm
            or order, a group that does not serve the device of x, or x requires gradients.

    Example:
        >>> x = torch.randn(len(slab_rows(12)), 10, 8, dtype=torch.complex64)
        >>> fftn(x, (12, 10, 8), output_order="transposed").shape == (12, len(slab_rows(10)), 8)
        True
    """
    return _complex_transform("fftn", x, size, norm, input_order, output_order, group)


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
    return _complex_transform("ifftn", x, size, norm, input_order, output_order, group)


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
    slab, grid, cut, wanted = _checked("rfftn", x, size, norm, (input_order, output_order), group)
    if x.dtype not in _COMPLEX:
        raise TypeError(f"rfftn: x must be float32 or float64, got {x.dtype}; fftn takes complex")
    field = _Field("rfftn", slab, x, grid, cut, _scale(grid, norm))
    last = len(grid) - 1
    if field.cut == last:
        field.recut()  # a real transform begins with the last axis, which must be whole
    here, there = field.whole_axes(), field.cut
    field.apply(here, torch.fft.rfftn)
    field.lengths[last] = grid[last] // 2 + 1
    field.recut()
    field.apply([there], torch.fft.fftn)
    return field.result(wanted)


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
    slab, grid, cut, wanted = _checked("irfftn", x, size, norm, (input_order, output_order), group)
    if x.dtype not in _COMPLEX.values():
        raise TypeError(f"irfftn: x must be complex64 or complex128, got {x.dtype}")
    scale = _scale(grid, norm, inverse=True)
    field = _Field("irfftn", slab, x, (*grid[:-1], grid[-1] // 2 + 1), cut, scale)
    last = len(grid) - 1
    here = [0] if cut == 1 else list(range(1, last))
    field.apply(here, torch.fft.ifftn, norm="forward")
    field.recut()
    there = [axis for axis in range(last + 1) if axis not in here]
    if field.cut == last:
        field.apply([cut], torch.fft.ifftn, norm="forward")
        field.recut()  # a real transform ends with the last axis, which must be whole
        there = [last]
    lengths = [grid[axis] for axis in there]
    field.apply(there, torch.fft.irfftn, s=lengths, norm="forward")
    field.lengths[last] = grid[last]
    return field.result(wanted)


def _complex_transform(
    op: str,
    x: torch.Tensor,
    size: Sequence[int],
    norm: str,
    input_order: str,
    output_order: str,
    group: Group,
) -> torch.Tensor:
    slab, grid, cut, wanted = _checked(op, x, size, norm, (input_order, output_order), group)
    x = x.to(_COMPLEX.get(x.dtype, x.dtype))
    if not x.is_complex():
        raise TypeError(
            f"{op}: x must be complex64 or complex128, float32 or float64, got {x.dtype}"
        )
    inverse = op == "ifftn"
    transform, unscaled = (torch.fft.ifftn, "forward") if inverse else (torch.fft.fftn, "backward")
    field = _Field(op, slab, x, grid, cut, _scale(grid, norm, inverse=inverse))
    # from transposed order the fewest axes first: their result is exchanged as the transform leaves it in memory
    here = [0] if cut == 1 else field.whole_axes()
    field.apply(here, transform, norm=unscaled)
    field.recut()
    there = [axis for axis in range(len(grid)) if axis not in here]
    field.apply(there, transform, norm=unscaled)
    return field.result(wanted)


def _checked(
    op: str,
    x: torch.Tensor,
    size: Sequence[int],
    norm: str,
    orders: tuple[str, str],
    group: Group,
) -> tuple[Slab, Size, int, int]:
    """Check what does not depend on the transform; return the slab, the grid, and the cut axes of input and output."""
    slab, grid = slab_of(op, group), tuple(size)
    for name, value, known in (
        ("norm", norm, _NORMS),
        ("input_order", orders[0], ORDERS),
        ("output_order", orders[1], ORDERS),
    ):
        if value not in known:
            raise ValueError(f"{op}: {name} must be one of {known}, got {value!r}")
    if len(grid) < 2 or min(grid) < 1:
        raise ValueError(f"{op}: size must have two axes or more of a point or more, got {grid}")
    if torch.is_grad_enabled() and x.requires_grad:
        raise ValueError(f"{op} computes no gradients; call it under torch.no_grad()")
    check_device(op, slab, x.device)
    return slab, grid, ORDERS.index(orders[0]), ORDERS.index(orders[1])


def _scale(size: Size, norm: str, *, inverse: bool = False) -> float:
    """Return the factor of a transform, of which the transforms of single axes have none."""
    if norm == "ortho":
        return 1 / math.sqrt(math.prod(size))
    return 1 / math.prod(size) if (norm == "backward") == inverse else 1.0


class _Field:
    """A field between transforms. A transform waits for the next exchange, which is hidden behind it.

    `scale` is a factor of the result, multiplied in the first exchange: by torch.fft it would cost a pass over memory.

    Attributes:
        lengths: Lengths of the whole axes.
        cut: The cut axis.
    """

    def __init__(
        self, op: str, slab: Slab, x: torch.Tensor, lengths: Size, cut: int, scale: float
    ) -> None:
        self._slab, self._x, self.lengths, self.cut = slab, x, list(lengths), cut
        self._scale = scale
        self._waiting: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._inner = len(lengths) - 1
        expected = list(lengths)
        expected[cut] = slab.rows(lengths[cut]).count
        if x.ndim < len(lengths):
            raise ValueError(
                f"{op}: x must have the {len(lengths)} axes of size, got shape {list(x.shape)}"
            )
        self._front = x.ndim - len(lengths)
        check_slab(op, slab, x.shape[self._front :], lengths, expected)

    def whole_axes(self) -> list[int]:
        """Return all axes but the cut one."""
        return [axis for axis in range(len(self.lengths)) if axis != self.cut]

    def apply(
        self, axes: Sequence[int], transform: Callable[..., torch.Tensor], **options: Any
    ) -> None:
        """Transform whole axes, when the next exchange or the result needs it; no axes, no transform."""
        dims = [axis - len(self.lengths) for axis in axes]
        self._waiting = partial(transform, dim=dims, **options) if axes else None
        # torch.fft leaves a single transformed axis innermost
        self._inner = axes[0] if len(axes) == 1 else len(self.lengths) - 1

    def recut(self) -> None:
        """Exchange, so that of the first two axes the other one is cut."""
        cut, to = self.cut, 1 - self.cut
        self._x = recut(
            self._slab,
            self._x,
            cut=self._front + cut,
            to=self._front + to,
            points=self.lengths[cut],
            before=self._transformed,
            pieces=self._pieces(),
            inner=self._front + self._inner,
            scale=self._scale,
        )
        self._waiting, self.cut, self._scale = None, to, 1.0

    def result(self, cut: int) -> torch.Tensor:
        """Return the field, cut along an axis."""
        if self.cut != cut:
            self.recut()
        return self._transformed(self._x)

    def _transformed(self, part: torch.Tensor) -> torch.Tensor:
        if self._waiting is None:
            return part
        if part.numel() == 0:
            return torch.empty_like(self._waiting(part.to("meta")), device=part.device)
        return self._waiting(part)

    def _pieces(self) -> int:
        """Return the number of pieces of an exchange, from what all processes know."""
        most = list(self.lengths)
        most[self.cut] = self._slab.all_rows(most[self.cut])[0].count
        count = math.prod(self._x.shape[: self._front]) * math.prod(most)
        wanted = count * self._x.element_size() // _PIECE_BYTES
        return max(1, min(wanted, _MOST_PIECES, most[self.cut]))
