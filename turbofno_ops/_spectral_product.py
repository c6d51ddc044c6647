"""The spectral product as kernel launches: transforms of the axes before the last, product of modes, inverse transforms."""

from __future__ import annotations

import math
from typing import NamedTuple

from turbofno_ops import _native
from turbofno_ops.description import PRECISIONS, Size

_LINE = 16  # complex numbers of a line of 128 bytes
_FFT_MODES = range(32, 129)
BATCHED_MODES, BATCHED_POINTS = range(1, 32), range(1, 513)
"""Kept modes and points of the first axis that one launch takes with the product of modes, for many batch elements."""
_LEAST_LAST_BATCH, _LEAST_LAST_MODES = 8, 16
_FEW_CHANNELS = 4  # of a network's input
_LEAST_LAST_VALUES = 2**14  # modes of a row, times batch elements, times channels


class SpectralLaunch(NamedTuple):
    """One launch: its name, its structure without pointers, the number of complex values that it writes.

    `axis` is the transformed axis; None for the product of modes.
    """

    name: str
    arguments: (
        _native.Transform
        | _native.Fft
        | _native.Product
        | _native.Spectral
        | _native.BatchedSpectral
    )
    elements: int
    axis: int | None


class ProductShape(NamedTuple):
    """Shape and precision of a spectral product, and what its launches depend on besides.

    `warpgroups`: the code for the device uses wgmma. `clusters`: that the device runs at once; 0 for separate launches.
    `settled`: no kernel still in flight writes the weights.
    `channels_last`: the given spectra are [batch, *others, row, channels] in memory. `cut`: points of the whole first axis, given
    and wanted, of which `size` and `out_size` have a slab's rows.
    """

    batch: int
    c_in: int
    c_out: int
    size: Size
    out_size: Size
    modes: Size
    precision: str
    multiprocessors: int
    shared_bytes: int
    warpgroups: bool = False
    clusters: int = 0
    settled: bool = True
    channels_last: bool = False
    cut: tuple[int, int] | None = None

    @property
    def row_modes(self) -> int:
        """Modes of a row of the spectra."""
        return row_modes(self.modes, self.size, self.out_size)


def row_modes(kept: Size, size: Size, out_size: Size) -> int:
    """Return the modes that a row has in the spectra between two grids: the kept ones, or the next even number.

    Two complex numbers are 16 bytes, the kernels' fastest access. The weights have the kept modes only.
    """
    modes, points = kept[-1], min(size[-1], out_size[-1])
    return modes + 1 if modes % 2 and 3 <= modes <= points // 2 else modes


def launches(shape: ProductShape) -> tuple[SpectralLaunch, ...]:
    """Return the launches from spectra [batch, c_in, *others, row] to mixed spectra [batch, c_out, *others, row].

    `row` is `row_modes`. It is one launch in 2D with few batch elements, where the kernels support that and it is faster, else
    transforms, product of modes and inverse transforms. With many batch elements one launch may do the product and the
    transforms of the first axis. `mixed_channels_last` tells the layout of the result. Intermediate results have the transformed
    modes in front: [*transformed modes, batch, channels, *remaining axes, row]; with the channels last, these are behind the
    row.
    """
    if not shape.channels_last and has_one_launch(shape):
        return (_whole(shape),)
    return _separate(shape)


def has_one_launch(shape: ProductShape) -> bool:
    """Return True if one launch computes the product, with the channels first: few 2D fields, on cards with clusters."""
    if len(shape.modes) != 2 or not shape.clusters:
        return False
    return _native.refusal("spectral_unsupported", _whole(shape).arguments) is None


def channels_last_is_faster(shape: ProductShape) -> bool:
    """Return True if the kernels are faster with the channels of spectra last, measured on an H100."""
    if _batched_is_faster(shape._replace(channels_last=True)):
        return True
    # slabs are few fields, and a product of their parts has the channels first
    if shape.cut or shape.c_in % 2 or has_one_launch(shape):
        return False
    long_rows = shape.batch >= _LEAST_LAST_BATCH and shape.row_modes >= _LEAST_LAST_MODES
    return long_rows or _has_many_values(shape)


def mixed_channels_last(shape: ProductShape) -> bool:
    """Return True if the mixed spectra have the channels last: as given, or where the next products of so many are faster so.

    A product reads the few channels of a network's input in either order.
    """
    if shape.cut or shape.channels_last or shape.c_in > _FEW_CHANNELS or has_one_launch(shape):
        return shape.channels_last
    following = shape._replace(c_in=shape.c_out, channels_last=True)
    return _batched_is_faster(following) or (shape.c_out % 2 == 0 and _has_many_values(following))


def _has_many_values(shape: ProductShape) -> bool:
    values = shape.batch * shape.c_in * shape.row_modes
    return len(shape.modes) > 1 and shape.c_in > _LINE and values >= _LEAST_LAST_VALUES


def _whole(shape: ProductShape) -> SpectralLaunch:
    arguments = _native.Spectral(
        batch=shape.batch,
        c_in=shape.c_in,
        c_out=shape.c_out,
        rows=shape.size[0],
        out_rows=shape.out_size[0],
        kept=shape.modes[0],
        modes=shape.modes[1],
        row_modes=shape.row_modes,
        clusters=shape.clusters,
        weights_settled=shape.settled,
    )
    elements = shape.batch * shape.c_out * shape.out_size[0] * shape.row_modes
    return SpectralLaunch("spectral_product", arguments, elements, 0)


def _batched_is_faster(shape: ProductShape) -> bool:
    """Return True if one launch does the product with the transforms of the first axis: many fields, on cards with wgmma."""
    if len(shape.modes) < 2 or not shape.warpgroups or shape.cut or not shape.channels_last:
        return False
    if shape.c_in != shape.c_out:
        return False
    return _native.refusal("batched_spectral_unsupported", _batched(shape).arguments) is None


def _batched(shape: ProductShape) -> SpectralLaunch:
    first, *others, last = shape.modes
    row, channels = shape.row_modes, shape.c_in
    lines = shape.batch * row * channels
    out_pitch = shape.out_size[0] * lines
    arguments = _native.BatchedSpectral(
        batch=shape.batch,
        in_pitch=shape.size[0] * lines,
        out_pitch=out_pitch,
        channels=channels,
        rows=shape.size[0],
        out_rows=shape.out_size[0],
        kept=first,
        others=math.prod(others),
        modes=last,
        row_modes=row,
        precision=PRECISIONS.index(shape.precision),
        multiprocessors=shape.multiprocessors,
        shared_bytes=shape.shared_bytes,
        warpgroups=shape.warpgroups,
        weights_settled=shape.settled,
    )
    return SpectralLaunch("batched_spectral_product", arguments, math.prod(others) * out_pitch, 0)


def _separate(shape: ProductShape) -> tuple[SpectralLaunch, ...]:
    batched = _batched_is_faster(shape)
    axes = range(1 if batched else 0, len(shape.modes) - 1)
    return (
        *(_transform(shape, axis, inverse=False) for axis in reversed(axes)),
        _batched(shape) if batched else _product(shape),
        *(_transform(shape, axis, inverse=True) for axis in axes),
    )


def _product(shape: ProductShape) -> SpectralLaunch:
    *kept, last = shape.modes
    row = shape.row_modes
    out_pitch = _pitch(shape, shape.batch * shape.c_out * row)
    arguments = _native.Product(
        batch=shape.batch,
        in_pitch=_pitch(shape, shape.batch * shape.c_in * row),
        out_pitch=out_pitch,
        c_in=shape.c_in,
        c_out=shape.c_out,
        others=math.prod(kept),
        modes=last,
        row_modes=row,
        precision=PRECISIONS.index(shape.precision),
        multiprocessors=shape.multiprocessors,
        weights_settled=shape.settled,
        channels_last=mixed_channels_last(shape),
        input_channels_last=shape.channels_last,
    )
    return SpectralLaunch("multiply_modes", arguments, math.prod(kept) * out_pitch, None)


def _transform(shape: ProductShape, axis: int, *, inverse: bool) -> SpectralLaunch:
    *kept, _ = shape.modes
    channels, size, channels_last = shape.c_in, shape.size, shape.channels_last
    if inverse:
        channels, size, channels_last = shape.c_out, shape.out_size, mixed_channels_last(shape)
    inner = shape.row_modes
    outer = math.prod(kept[axis + 1 :]) * shape.batch * math.prod(size[:axis])
    if channels_last:
        inner *= channels
    else:
        outer *= channels
    pitch = _pitch(shape, outer * inner)
    elements = outer * size[axis] * inner if inverse else kept[axis] * pitch
    points = shape.cut[inverse] if shape.cut and axis == 0 else size[axis]
    if fft_is_faster(points, size[axis], kept[axis], shape.precision):
        lines = _Lines(points, size[axis], outer, inner, pitch)
        fft = _fft(shape, lines, kept[axis], inverse=inverse)
        if _native.refusal("mixed_radix_fft_unsupported", fft) is None:
            return SpectralLaunch("mixed_radix_fft", fft, elements, axis)
    arguments = _native.Transform(
        outer=outer,
        inner=inner,
        pitch=pitch,
        points=size[axis],
        modes=kept[axis],
        inverse=int(inverse),
        precision=PRECISIONS.index(shape.precision),
        multiprocessors=shape.multiprocessors,
    )
    return SpectralLaunch("transform_axis", arguments, elements, axis)


def fft_is_faster(points: int, rows: int, kept: int, precision: str) -> bool:
    """Return True if an FFT is faster than products of the kept modes with the `rows` that are there, measured on an H200.

    For a few rows an FFT takes as long as for all of them, products take less: of a slab they are slower only where two slabs keep
    half of the axis.
    """
    if points & (points - 1) or kept not in _FFT_MODES:
        return False
    if rows < points:
        return 2 * kept >= points
    return kept * (16 if precision == "fp32" else 8) > points


class _Lines(NamedTuple):
    """Lines of an axis of `points`, the first `rows` of which are there; outer and inner lines, pitch of the modes."""

    points: int
    rows: int
    outer: int
    inner: int
    pitch: int


def _fft(shape: ProductShape, lines: _Lines, kept: int, *, inverse: bool) -> _native.Fft:
    """Return the truncated FFT of a transform, zeros for rows that are not there."""
    points, rows, outer, inner, pitch = lines
    of_points, of_modes = (rows * inner, 1, inner), (inner, 1, pitch)
    there, cut = (rows, 0), ((kept + 1) // 2, kept // 2)
    fft = _native.Fft(
        outer=outer,
        inner=inner,
        points=points,
        inverse=int(inverse),
        multiprocessors=shape.multiprocessors,
        shared_bytes=shape.shared_bytes,
        scale=1.0 if inverse else 1 / points,
    )
    source, target = (of_modes, of_points) if inverse else (of_points, of_modes)
    fft.in_outer, fft.in_inner, fft.in_point = source
    fft.out_outer, fft.out_inner, fft.out_point = target
    fft.in_head, fft.in_tail = cut if inverse else there
    fft.out_head, fft.out_tail = there if inverse else cut
    return fft


def _pitch(shape: ProductShape, columns: int) -> int:
    """Return the pitch between modes: whole lines of 128 bytes in 2D; dense where another transform needs columns."""
    return -(-columns // _LINE) * _LINE if len(shape.modes) == 2 else columns


def refusal(shape: ProductShape) -> str | None:
    """Return the reason why the kernels do not support a spectral product, or None if they do."""
    asked = {
        "transform_axis": "transform_unsupported",
        "mixed_radix_fft": "mixed_radix_fft_unsupported",
        "multiply_modes": "product_unsupported",
    }
    reasons = (_native.refusal(asked[one.name], one.arguments) for one in _separate(shape))
    return next((reason for reason in reasons if reason is not None), None)
