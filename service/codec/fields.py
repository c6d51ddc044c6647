"""Named arrays to a checked float32 batch for a model, and back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from turbofno.models.core.config import Channel, ModelConfig
from turbofno.service.engine.interface import Fields
from turbofno.service.errors import BadRequest, InvalidField, PayloadTooLarge

INPUT = "input"
OUTPUT = "output"
MAX_RANK = 8
"""Maximum number of array axes that decoders accept; models need at most [batch, channels, x, y, z]."""

BFLOAT16 = "bfloat16"
"""A dtype that numpy does not have."""

_MAX_ARRAYS = 64
_MAX_NAME = 128

Array = NDArray[Any]
FieldTrust: TypeAlias = "Mapping[str, Sequence[float]]"
"""Signal -> its value for each field."""
FrameTrust: TypeAlias = "Mapping[str, Sequence[Sequence[float]]]"
"""Signal -> for each frame, its value for each field."""


@dataclass(frozen=True, slots=True)
class Form:
    """The layout of a request's fields, which the response repeats."""

    by_channel: bool
    """True for one array for each channel, False for one array with a channel axis."""
    batched: bool
    """True if there is a batch axis, False for a single field."""
    channel_axis: bool = True
    """False for a single field of a one-channel model without channel axis, [*grid]."""

    def leading(self, batch: int, channels: int) -> tuple[int, ...]:
        """The sizes of the axes before the grid of an array of all `channels` in this layout."""
        if self.batched:
            return batch, channels
        return (channels,) if self.channel_axis or channels > 1 else ()


class ResponseData(msgspec.Struct, frozen=True):
    """The content of a response, before it is encoded."""

    model: str
    version: str
    outputs: dict[str, NDArray[np.float32]]
    units: dict[str, str]
    """Output channel name -> physical units."""
    backend: str
    precision: str
    trust: FieldTrust | FrameTrust = msgspec.field(default_factory=dict)
    trust_status: str = ""
    """The reason why there are no trust signals, if there are none."""
    warnings: tuple[str, ...] = ()
    """Reasons why the outputs may be worse than the model's card states."""


def grid_limits(config: ModelConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The minimum and maximum number of points on each axis."""
    needed = config.architecture.smallest_input
    return tuple(map(max, config.grid.minimum, needed)), config.grid.maximum


def answered_grid(grid: tuple[int, ...], config: ModelConfig) -> tuple[int, ...]:
    """The grid of the network's output for an input on `grid`: another one if its layers change the resolution."""
    for scales in config.architecture.resolution_scaling:
        grid = tuple(round(n * scale) for n, scale in zip(grid, scales, strict=True))
    return grid


def check_shape(
    shape: Sequence[int],
    config: ModelConfig,
    *,
    max_fields: int,
    name: str = INPUT,
    added: int = 0,
) -> None:
    """Check the shape [batch, in_channels, *grid] against a model, before anything is allocated.

    Messages show it without the first `added` axes, which the caller did not send.

    Raises:
        InvalidField: wrong rank, channels or grid; the message names every wrong axis.
        PayloadTooLarge: too many fields for one request.
    """
    channels = config.architecture.in_channels
    if len(shape) != config.architecture.n_dim + 2:
        raise InvalidField(
            f"'{name}' has {_rank(shape)}, model '{config.name}' expects [batch, {channels}, {_grid_axes(config)}], "
            f"for example {[1, channels, *config.grid.training]}{_mend(shape, config)}"
        )
    if shape[1] != channels:
        names = ", ".join(channel.name for channel in config.inputs)
        raise InvalidField(
            f"'{name}' has shape {list(shape[added:])} with {shape[1]} channels on axis {1 - added}, model "
            f"'{config.name}' expects {channels} ({names}): [{'' if added else 'batch, '}{channels}, "
            f"{_grid_axes(config)}]{_mend(shape, config, added)}"
        )
    check_grid(shape[2:], config, name=name)
    if shape[0] < 1:
        raise InvalidField(f"'{name}' has no fields, expected at least one field in the batch")
    if shape[0] > max_fields:
        raise PayloadTooLarge(
            f"'{name}' has {shape[0]} fields, one request may have at most {max_fields}: split it "
            f"into several requests, or raise TURBOFNO_MAX_FIELDS_PER_REQUEST on the server"
        )


def fields_from_tensor(
    array: Array, config: ModelConfig, *, max_fields: int, added: int = 0
) -> Fields:
    """Check one array [batch, in_channels, *grid] and convert it to float32; a view if it is float32 already.

    `added` is as for `check_shape`.

    Returns:
        float32 [batch, in_channels, *grid], C-contiguous and aligned; may be read-only.

    Raises:
        InvalidField: wrong shape or dtype, NaN, infinity, or a value beyond float32.
        PayloadTooLarge: too many fields for one request.
    """
    check_dtype(array, name=INPUT)
    check_shape(array.shape, config, max_fields=max_fields, added=added)
    with np.errstate(over="ignore", invalid="ignore"):
        fields = np.require(array, dtype=np.float32, requirements=("C", "A"))
    check_finite(fields, config.inputs)
    check_bounds(fields, config.inputs)
    return fields


def fields_from_arrays(
    arrays: Mapping[str, Array], config: ModelConfig, *, max_fields: int
) -> tuple[Fields, Form]:
    """Turn a request's named arrays into a batch.

    Either the key "input" holds all channels: [batch, channels, *grid], one field [channels, *grid], or, for a model
    with one channel, one field [*grid]. Or the keys are exactly the names of the model's input channels, each
    [batch, *grid] or [*grid].

    Returns:
        float32 [batch, in_channels, *grid], C-contiguous, in the model's channel order; and the layout of the request.

    Raises:
        InvalidField: names, shapes, dtypes or values that the model cannot take.
        PayloadTooLarge: too many fields for one request.
    """
    n_dim = config.architecture.n_dim
    if set(arrays) == {INPUT}:
        array = arrays[INPUT]
        missing = n_dim + 2 - array.ndim
        if missing not in range(3 if len(config.inputs) == 1 else 2):
            axes, several = _grid_axes(config), len(config.inputs)
            bare = f", which may also be [{axes}]" if several == 1 else ""
            raise InvalidField(
                f"'{INPUT}' has {_rank(array.shape)}, model '{config.name}' expects [batch, {several}, "
                f"{axes}] or one field [{several}, {axes}]{bare}"
            )
        tensor = array[(np.newaxis,) * missing]
        fields = fields_from_tensor(tensor, config, max_fields=max_fields, added=missing)
        return fields, Form(by_channel=False, batched=not missing, channel_axis=missing < 2)
    channels = [channel.name for channel in config.inputs]
    if set(arrays) != set(channels):
        raise InvalidField(
            f"inputs are named {sorted(arrays)}, model '{config.name}' expects either ['{INPUT}'] "
            f"with shape [batch, {len(channels)}, {_grid_axes(config)}], or each of {channels} "
            f"with shape [{_grid_axes(config)}] or [batch, {_grid_axes(config)}]"
        )
    return _stack_channels(arrays, config, max_fields=max_fields)


def arrays_from_fields(
    fields: Fields, config: ModelConfig, form: Form
) -> dict[str, NDArray[np.float32]]:
    """Named views of an output [batch, out_channels, *grid] in the layout of the request."""
    return laid_out(fields, config.outputs, form, whole=OUTPUT)


def laid_out(
    fields: Fields, channels: Sequence[Channel], form: Form, *, whole: str, prefix: str = ""
) -> dict[str, NDArray[np.float32]]:
    """Named views of [batch, channels, *grid] in this layout: one named `whole`, or one for each channel, with prefix."""
    if form.by_channel:
        named = {f"{prefix}{channel.name}": fields[:, i] for i, channel in enumerate(channels)}
        return named if form.batched else {name: array[0] for name, array in named.items()}
    if form.batched:
        return {whole: fields}
    return {whole: fields.reshape(*form.leading(1, len(channels)), *fields.shape[2:])}


def array_from_bytes(data: memoryview, dtype: str) -> Array:
    """View bytes as a flat array of a numpy dtype; little-endian bfloat16 is copied to float32."""
    if dtype == BFLOAT16:
        # bfloat16 is the upper half of a float32.
        return (np.frombuffer(data, dtype="<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, dtype=dtype)


def bytes_of(array: NDArray[np.float32]) -> memoryview:
    """The bytes of an array as little-endian float32 in C order; a view if it is that."""
    contiguous = np.ascontiguousarray(array, "<f4")
    # An empty view cannot be cast.
    return contiguous.data.cast("B") if contiguous.size else memoryview(b"")


def shaped(
    flat: Array, shape: Sequence[int], *, name: str, order: Literal["C", "F"] = "C"
) -> Array:
    """View a flat array in `shape`, which must have the same number of values.

    Raises:
        InvalidField: no values, and sizes too large even for an empty array.
    """
    try:
        return flat.reshape(shape, order=order)
    except ValueError:
        raise InvalidField(f"{name} has shape {list(shape)}, which no model accepts") from None


def check_names(names: Collection[str]) -> None:
    """Refuse too many or too long names, which error messages would repeat.

    Raises:
        BadRequest: more than 64 names, or one longer than 128 characters.
    """
    if len(names) > _MAX_ARRAYS:
        raise BadRequest(f"the request has {len(names)} arrays, expected at most {_MAX_ARRAYS}")
    longest = max(map(len, names), default=0)
    if longest > _MAX_NAME:
        raise BadRequest(
            f"the name of an array has {longest} characters, expected at most {_MAX_NAME}"
        )


def check_dtype(array: Array, *, name: str) -> None:
    """Raise InvalidField unless the dtype is a float of 2, 4 or 8 bytes."""
    if array.dtype.kind != "f" or array.dtype.itemsize not in (2, 4, 8):
        raise InvalidField(
            f"'{name}' has dtype {array.dtype}, expected float32 (float16, bfloat16 and float64 "
            f"are converted): use array.astype('float32')"
        )


def first_nonfinite(array: NDArray[np.float32]) -> tuple[int, ...] | None:
    """Index of the first NaN or infinity in row-major order; None if all values are finite."""
    # Twice as fast: a finite sum of squares implies finite values. (The sum may also overflow; `vdot` does not warn of it. On
    # x86 OpenBLAS has one thread for float32, however many the values are.)
    if math.isfinite(np.vdot(array, array)):
        return None
    finite = np.isfinite(array)
    if finite.all():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmin(finite)), array.shape))


def _stack_channels(
    arrays: Mapping[str, Array], config: ModelConfig, *, max_fields: int
) -> tuple[Fields, Form]:
    n_dim = config.architecture.n_dim
    channels = [channel.name for channel in config.inputs]
    first = arrays[channels[0]]
    for name in channels:
        array = arrays[name]
        check_dtype(array, name=name)
        if array.ndim not in (n_dim, n_dim + 1):
            raise InvalidField(
                f"'{name}' has {_rank(array.shape)}, model '{config.name}' expects "
                f"[{_grid_axes(config)}] or [batch, {_grid_axes(config)}], for example "
                f"{list(config.grid.training)}"
            )
        if array.shape != first.shape:
            raise InvalidField(
                f"'{name}' has shape {list(array.shape)}, '{channels[0]}' has "
                f"{list(first.shape)}: all channels of a request must have the same shape"
            )
    batched = first.ndim == n_dim + 1
    batch, *grid = first.shape if batched else (1, *first.shape)
    full = (batch, len(channels), *grid)
    check_shape(full, config, max_fields=max_fields, name=channels[0])
    fields = np.empty(full, dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for i, name in enumerate(channels):
            fields[:, i] = arrays[name]
    check_finite(fields, config.inputs)
    check_bounds(fields, config.inputs)
    return fields, Form(by_channel=True, batched=batched)


def check_grid(grid: Sequence[int], config: ModelConfig, *, name: str) -> None:
    """Raise InvalidField for a grid outside the model's limits; the message names every wrong axis."""
    # The usual case, without computing the limits.
    if tuple(grid) == config.grid.training:
        return
    if wrong := _wrong_axes(grid, config):
        fixed = (
            ""
            if config.field_normalization is None
            else ", the only grid on which its normalisation is defined"
        )
        raise InvalidField(
            f"'{name}' has grid {list(grid)}, which model '{config.name}' does not accept: "
            f"{'; '.join(wrong)} (it was trained on {list(config.grid.training)}{fixed})"
        )


def check_finite(
    fields: Fields,
    channels: Sequence[Channel],
    *,
    what: str = "field",
    mend: str = "; give masked points the value that they had in training",
) -> None:
    """Raise InvalidField for NaN and infinity; the message names the first place."""
    where = first_nonfinite(fields)
    if where is not None:
        field, channel, *point = where
        raise InvalidField(
            f"{what} {field}, channel '{channels[channel].name}', grid point {point} is "
            f"{fields[where]} in float32: every value must be finite{mend}"
        )


def has_bounds(channels: Sequence[Channel]) -> bool:
    """True if a channel has a physical bound."""
    bounds = ("minimum", "exclusive_minimum", "maximum", "exclusive_maximum")
    return any(getattr(channel, bound) is not None for channel in channels for bound in bounds)


class Beyond(NamedTuple):
    """The first value of a batch that is beyond a physical bound of its channel."""

    field: int
    channel: Channel
    point: list[int]
    value: float
    words: str
    """The bound in words: at least, above, at most, below."""
    bound: float

    def told(self, unit: str = "") -> str:
        return (
            f"field {self.field}, channel '{self.channel.name}', grid point {self.point} is {self.value:g}{unit}, "
            f"expected {self.words} {self.bound:g}{unit}, the physical bound"
        )


def check_bounds(fields: Fields, channels: Sequence[Channel]) -> None:
    """Raise InvalidField if a value of [batch, channels, *grid] is beyond its channel's physical bounds.

    The values must be finite. The message names the first place.
    """
    found = first_beyond(fields, channels)
    if found is not None:
        unit = "" if found.channel.units == "1" else f" {found.channel.units}"
        raise InvalidField(f"{found.told(unit)}: check sign and units")


def first_beyond(
    fields: Fields, channels: Sequence[Channel], rounding: float = 0.0
) -> Beyond | None:
    """The first value of [batch, channels, *grid] that is beyond its channel's physical bounds.

    Args:
        rounding: share of the channel's largest value by which it may be beyond them.
    """
    for index, channel in enumerate(channels):
        for bound, words, beyond, sign in (
            (channel.minimum, "at least", np.less, -1),
            (channel.exclusive_minimum, "above", np.less_equal, -1),
            (channel.maximum, "at most", np.greater, 1),
            (channel.exclusive_maximum, "below", np.greater_equal, 1),
        ):
            if bound is None:
                continue
            values = fields[:, index]
            slack = rounding and rounding * float(np.abs(values).max())
            wrong = beyond(values, bound + sign * slack)
            if wrong.any():
                where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
                field, *point = (int(i) for i in where)
                return Beyond(field, channel, point, float(values[where]), words, bound)
    return None


def _wrong_axes(grid: Sequence[int], config: ModelConfig) -> list[str]:
    """A text for each axis of a grid that is outside the model's limits."""
    return [
        f"grid axis {axis} has {size} points, allowed are {low} to {high}"
        for axis, (size, low, high) in enumerate(zip(grid, *grid_limits(config), strict=True))
        if not low <= size <= high
    ]


def _mend(shape: Sequence[int], config: ModelConfig, added: int = 0) -> str:
    """The end of an error text: how to give an array a shape that the model takes; empty if no simple way does."""
    sent, place = tuple(shape[added:]), 1 - added
    ways = {
        "add a batch axis, fields[None]": (1, *sent),
        "add an axis of channels, fields[:, None]": (*sent[:1], 1, *sent[1:]),
        "add axes of batch and channels, fields[None, None]": (1, 1, *sent),
    }
    for axis in reversed(range(len(sent))):
        rest = sent[:axis] + sent[axis + 1 :]
        way = f"move the axis of channels, np.moveaxis(fields, {axis}, {place})"
        ways[way] = (*shape[:added], *rest[:place], sent[axis], *rest[place:])
    n_dim, channels = config.architecture.n_dim, config.architecture.in_channels
    for way, axes in ways.items():
        if len(axes) == n_dim + 2 and axes[1] == channels and not _wrong_axes(axes[2:], config):
            return f"; {way}"
    return ""


def _rank(shape: Sequence[int]) -> str:
    return f"shape {list(shape)} (rank {len(shape)})"


def _grid_axes(config: ModelConfig) -> str:
    return ", ".join("xyz"[: config.architecture.n_dim])
