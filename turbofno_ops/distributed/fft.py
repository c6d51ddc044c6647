"""FFTs of fields that are cut into slabs: local transforms, and an exchange of slabs hidden behind them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

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
    """Compute the discrete Fourier transform of a field that is cut into slabs, over its last `len(size)` axes.

    `torch.fft.fftn` over all processes of a group, which call it together. Cut means: along the first transformed axis in
    natural order, along the second in transposed order, by `slab_rows`; all other axes are whole. One exchange of the
    field between the processes if the orders of input and output differ, else two: natural to transposed, and back by
    `ifftn` from transposed to natural, is the fastest way to and fro. An exchange runs in pieces, each while the next
    piece is transformed. No gradients.

    Args:
        x: This process's slab [.., *axes], complex64 or complex128, or float32 or float64; any number of axes in front,
            the same on all processes. A slab may be empty.
        size: Grid of the whole field, two axes or more.
        norm: 'backward', 'ortho' or 'forward', as in torch.fft.
        input_order: 'natural' or 'transposed'.
        output_order: 'natural' or 'transposed'.
        group: A process group, a DeviceMesh of one dimension, or None for all processes.

    Returns:
        This process's slab of the transform: complex, contiguous.

    Raises:
        TypeError: A dtype that is not supported, or `group` is neither a process group nor a mesh.
        ValueError: x is not this process's slab of `size`, `size` has fewer than two axes or an empty one, an unknown norm or
            order, a group that does not serve the device of x, or gradients are required.

    Example:
        >>> x = torch.randn(len(slab_rows(12)), 10, 8, dtype=torch.complex64)
        >>> y = fftn(x, (12, 10, 8), output_order="transposed")
        >>> y.shape == (12, len(slab_rows(10)), 8)
        True
    """
    op, slab, size = _checked("fftn", x, size, norm, input_order, output_order, group)
    if x.dtype in _COMPLEX:
        x = x.to(_COMPLEX[x.dtype])
    _check_input(op, slab, x, size, input_order, complex_input=True)
    field = _Field(slab, x, size, input_order)
    field.transform_and_cross(partial(_apply, torch.fft.fftn, norm=norm))
    return field.in_order(output_order)


def ifftn(
    x: torch.Tensor,
    size: Sequence[int],
    *,
    norm: str = "backward",
    input_order: str = "natural",
    output_order: str = "natural",
    group: Group = None,
) -> torch.Tensor:
    """Compute the inverse of `fftn`; arguments, result and errors are those of `fftn`.

    Example:
        >>> x = torch.randn(len(slab_rows(12)), 10, 8, dtype=torch.complex64)
        >>> spectrum = fftn(x, (12, 10, 8), output_order="transposed")
        >>> torch.allclose(ifftn(spectrum, (12, 10, 8), input_order="transposed"), x, atol=1e-5)
        True
    """
    op, slab, size = _checked("ifftn", x, size, norm, input_order, output_order, group)
    if x.dtype in _COMPLEX:
        x = x.to(_COMPLEX[x.dtype])
    _check_input(op, slab, x, size, input_order, complex_input=True)
    field = _Field(slab, x, size, input_order)
    field.transform_and_cross(partial(_apply, torch.fft.ifftn, norm=norm))
    return field.in_order(output_order)


def rfftn(
    x: torch.Tensor,
    size: Sequence[int],
    *,
    norm: str = "backward",
    input_order: str = "natural",
    output_order: str = "natural",
    group: Group = None,
) -> torch.Tensor:
    """Compute the discrete Fourier transform of a real field that is cut into slabs: `torch.fft.rfftn` over a group.

    Only the frequencies 0 .. n // 2 of the last axis are computed and exchanged, about half of `fftn`. Orders, exchanges
    and errors are those of `fftn`; of two axes, the transposed order of the spectrum cuts those frequencies.

    Args:
        x: This process's slab [.., *axes], float32 or float64.
        size: Grid of the whole real field, two axes or more.
        norm: 'backward', 'ortho' or 'forward', as in torch.fft.
        input_order: 'natural' or 'transposed'.
        output_order: 'natural' or 'transposed'.
        group: A process group, a DeviceMesh of one dimension, or None for all processes.

    Returns:
        This process's slab of the transform, whose whole last axis has size[-1] // 2 + 1 elements: complex, contiguous.

    Raises:
        TypeError: As in `fftn`.
        ValueError: As in `fftn`.

    Example:
        >>> x = torch.randn(len(slab_rows(12)), 10, 8)
        >>> rfftn(x, (12, 10, 8), output_order="transposed").shape == (12, len(slab_rows(10)), 5)
        True
    """
    op, slab, size = _checked("rfftn", x, size, norm, input_order, output_order, group)
    _check_input(op, slab, x, size, input_order, complex_input=False)
    field = _Field(slab, x, size, input_order)
    if field.cut == len(size) - 1:
        # a real transform needs the whole last axis
        field.cross()
    field.transform_and_cross(partial(_apply, torch.fft.rfftn, norm=norm), torch.fft.fftn, norm)
    return field.in_order(output_order)


def irfftn(
    x: torch.Tensor,
    size: Sequence[int],
    *,
    norm: str = "backward",
    input_order: str = "natural",
    output_order: str = "natural",
    group: Group = None,
) -> torch.Tensor:
    """Compute the inverse of `rfftn`: `torch.fft.irfftn` over a group.

    Args:
        x: This process's slab [.., *axes] of the spectrum, complex64 or complex128; its whole last axis has
            size[-1] // 2 + 1 elements.
        size: Grid of the whole real field, two axes or more.
        norm: 'backward', 'ortho' or 'forward', as in torch.fft.
        input_order: 'natural' or 'transposed', of the spectrum.
        output_order: 'natural' or 'transposed', of the real field.
        group: A process group, a DeviceMesh of one dimension, or None for all processes.

    Returns:
        This process's slab of the real field, contiguous.

    Raises:
        TypeError: As in `fftn`.
        ValueError: As in `fftn`.

    Example:
        >>> x = torch.randn(len(slab_rows(12)), 10, 8)
        >>> spectrum = rfftn(x, (12, 10, 8), output_order="transposed")
        >>> torch.allclose(irfftn(spectrum, (12, 10, 8), input_order="transposed"), x, atol=1e-5)
        True
    """
