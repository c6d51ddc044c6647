"""The stages through the CUDA kernels: which shapes they take, a tile program as launches, the mix."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch

from turbofno_ops import _cuda_tables
from turbofno_ops._architecture import code_refusal
from turbofno_ops._native import (
    Moments,
    Norm,
    Product,
    Transform,
    launch,
    native_status,
    unsupported,
    workspace_bytes,
)
from turbofno_ops._stages import (
    AddGate,
    AddMap,
    Analyze,
    Field,
    Held,
    Hold,
    Normalize,
    Operands,
    Project,
    Results,
    Source,
    Step,
    Store,
    Synthesis,
)
from turbofno_ops._tile_program import (
    ChannelsLast,
    Shape,
    encode,
    pieces,
    prepared,
    round_up,
)
from turbofno_ops.description import PRECISIONS, Size

_ALIGNMENT = 16
_OLDEST_MAJOR = 8  # compute capability: A100
_SHARED_MEMORY = 160 * 1024  # of a block
_MODES_AT_ONCE = 32  # of an analysis of its own
_LINE = 16  # complex numbers of a line of 128 bytes


class Device(NamedTuple):
    """The device limits that the kernels' plans depend on."""

    multiprocessors: int
    shared_bytes: int


A100 = Device(108, 163 * 1024)
"""The limits that shapes are judged by where there is no GPU."""


@cache
def device_limits(device: torch.device) -> Device:
    """Of a CUDA device."""
    found = torch.cuda.get_device_properties(device)
    # an attribute that builds of PyTorch with CUDA have and its annotations leave out
    shared_bytes: int = getattr(found, "shared_memory_per_block_optin")  # noqa: B009
    return Device(found.multi_processor_count, shared_bytes)


def field_dtype(precision: str) -> torch.dtype:
    """The dtype of fields between the stages under a precision policy; network input and output are float32."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


class CudaStages:
    """Stages on the grid `size` whose mix keeps `modes` and gives the grid `out_size`.

    Fields are channels last, float32 or under bf16 bfloat16; spectra are complex64, the network's input and
    result float32. The object keeps its tables, so that a CUDA graph which reads them may.

    `settled` promises that no kernel which may still run writes the weights.
    """

    def __init__(
        self,
        size: Size,
        modes: Size,
        *,
        device: torch.device,
        precision: str,
        out_size: Size | None = None,
        settled: bool = True,
    ) -> None:
        self.size, self.modes, self.out_size = size, modes, out_size or size
        self._device, self._precision, self._settled = device, precision, settled
        self._limits = device_limits(device)
        self._tables: dict[tuple[str, int, int], torch.Tensor] = {}
        self._columns = [
            (
                _cuda_tables.column_analysis(n, count, device),
                _cuda_tables.column_synthesis(m, count, device),
            )
            for n, m, count in zip(size[:-1], self.out_size[:-1], modes[:-1], strict=True)
        ]

    def tile(
        self, steps: tuple[Step, ...], operands: Operands, *, channel_first: bool = False
    ) -> Results:
        """Run a tile program; `channel_first` stores the field as float32 [batch, channels, *grid]."""
        stored = operands.x if len(steps) > 1 and isinstance(steps[1], Store) else None
        shape, given, done = self._shape(steps, operands), operands, Results()
        for piece in pieces(steps, shape):
            if piece.refusal is not None:
                raise ValueError(f"the CUDA kernels do not run this: {piece.refusal}")
            shape = shape._replace(channels=_channels(piece.steps[0], given))
            if isinstance(piece.steps[-1], Analyze) and len(piece.steps) == 2:
                done = self._analyzed(piece.steps, shape, given)
            else:
                done = self._launch(piece.steps, shape, given, channel_first=channel_first)
            stored = done.x if done.x is not None else stored
            held = done.x if done.held is None else done.held
            given = Operands(x=operands.x, held=held, moments=done.moments)
        return Results(stored, done.held, done.moments, done.spectra, done.out)

    def mix(self, spectra: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        batch, c_in, *others, last = spectra.shape
        *kept, _, _, c_out = weight.shape
        # [(kept so far), batch, c_in, (axes before), this one, last]: the modes of this one go to the front
        z = readable(spectra)
        pitch = batch * c_in * last
        for axis in reversed(range(len(others))):
            outer = math.prod(kept[axis + 1 :]) * batch * c_in * math.prod(others[:axis])
            pitch = self._pitch(outer * last)
            columns = _Columns(outer, last, pitch, others[axis], kept[axis], inverse=0)
            out = z.new_empty(kept[axis] * pitch)
            self._transform(columns, z, out, self._columns[axis][0])
            z = out
        many = math.prod(kept)
        in_pitch = pitch if len(others) == 1 else batch * c_in * last
        out_pitch = self._pitch(batch * c_out * last)
        product = z.new_empty(many * out_pitch)
        launch(
            "multiply_modes",
            Product(
                batch=batch,
                in_pitch=in_pitch,
                out_pitch=out_pitch,
                c_in=c_in,
                c_out=c_out,
                others=many,
                modes=last,
                precision=PRECISIONS.index(self._precision),
                multiprocessors=self._limits.multiprocessors,
                input=z.data_ptr(),
                weight=weight.data_ptr(),
                out=product.data_ptr(),
            ),
        )
        z, pitch = product, out_pitch
        for axis, points in enumerate(self.out_size[:-1]):
            outer = math.prod(kept[axis + 1 :]) * batch * c_out * math.prod(self.out_size[:axis])
            pitch = self._pitch(outer * last)
            columns = _Columns(outer, last, pitch, points, kept[axis], inverse=1)
            out = z.new_empty(outer * points * last)
            self._transform(columns, z, out, self._columns[axis][1])
            z = out
        count = batch * c_out * math.prod(self.out_size[:-1]) * last
        return z[:count].view(batch, c_out, *self.out_size[:-1], last)

    def _pitch(self, columns: int) -> int:
        """From one mode to the next: whole lines, where no other transform reads or writes them as columns."""
        return round_up(columns, _LINE) if len(self.size) == 2 else columns

    def convert(self, x: torch.Tensor) -> Field:
        field = self._field(x.shape[0], x.shape[1], tuple(x.shape[2:]))
        field.data[..., : field.channels] = x.movedim(1, -1)
        field.data[..., field.channels :] = 0
        return field

    def plain(self, field: Field) -> torch.Tensor:
        if isinstance(field, torch.Tensor):
            return field
        return field.data[..., : field.channels].movedim(-1, 1)

    @property
    def table_bytes(self) -> int:
        """Of all tables, on the device."""
        tables = [*self._tables.values(), *(table for pair in self._columns for table in pair)]
        return sum(table.nbytes for table in tables)

    def _field(self, batch: int, channels: int, grid: Size) -> ChannelsLast:
        dtype = field_dtype(self._precision)
        return ChannelsLast.empty(batch, grid, channels, dtype, self._device)

    def _shape(self, steps: tuple[Step, ...], given: Operands) -> Shape:
        mixed, x = given.mixed, given.x
        first = next(t for t in (mixed, given.held, x) if t is not None)
        return Shape(
            batch=first.data.shape[0],
            grid=self.size,
            channels=_channels(steps[0], given),
            x_channels=0 if x is None else _channels_of(x),
            modes=0 if mixed is None else mixed.shape[-1],
            next_modes=self.modes[-1],
            precision=self._precision,
            multiprocessors=self._limits.multiprocessors,
            shared_bytes=self._limits.shared_bytes,
        )

    def _launch(
        self,
        steps: tuple[Step, ...],
        shape: Shape,
        given: Operands,
        *,
        channel_first: bool,
        first_mode: int = 0,
    ) -> Results:
        """One kernel, with the kernels that find the moments before and after it."""
        tile = encode(steps, shape)
        tile.weights_settled = self._settled
        kept: list[torch.Tensor] = []  # alive until all is launched

        def pointer(tensor: torch.Tensor | None) -> int | None:
            if tensor is None:
                return None
            kept.append(tensor)
            return tensor.data_ptr()

        x: Field | None = None
        held: ChannelsLast | None = None
        out = spectra = moments = None
        for step, to in zip(steps, tile.step, strict=False):
            ready = prepared(step, tile.width, self._precision)
            for name in ready._fields:
                setattr(to, name, pointer(getattr(ready, name)))
            match step:
                case Source():
                    to.field, to.channel_first = pointer(readable(_given(given.x))), 1
                case Held():
                    to.field = pointer(_given(given.held).data)
                case Synthesis():
                    tile.mixed = pointer(given.mixed)
                    tile.synthesis = pointer(self._table("synthesis", shape.modes))
                case Normalize():
                    factor, offset = self._norm(step, steps[0], shape, given, tile.width)
                    to.scale, to.shift = pointer(factor), pointer(offset)
                case AddMap() | AddGate():
                    if isinstance(given.x, ChannelsLast):
                        to.field = pointer(given.x.data)
                    else:
                        to.field, to.channel_first = pointer(readable(_given(given.x))), 1
                case Store() | Hold():
                    if channel_first and isinstance(step, Store):
                        x = torch.empty(shape.batch, to.channels, *shape.grid, device=self._device)
                        to.field, to.channel_first = pointer(x), 1
                        continue
                    field = self._field(shape.batch, to.channels, shape.grid)
                    to.field = pointer(field.data)
                    if isinstance(step, Store):
                        x = field
                    else:
                        held = field
                case Analyze():
                    size = (shape.batch, tile.channels, *shape.grid[:-1], shape.next_modes)
                    spectra = torch.empty(size, dtype=torch.complex64, device=self._device)
                    tile.spectra = pointer(spectra)
                    tile.analysis = pointer(self._table("analysis", shape.next_modes, first_mode))
                case Project():
                    out = torch.empty(shape.batch, to.channels, *shape.grid, device=self._device)
                    to.field = pointer(out)
        tile.workspace = pointer(self._workspace(workspace_bytes("tile", tile)))
        launch("tile_program", tile)
        if held is not None and isinstance(steps[-1], Hold) and steps[-1].moments:
            moments = self._field_moments(held, shape)
        return Results(x, held, moments, spectra, out)

    def _analyzed(self, steps: tuple[Step, ...], shape: Shape, given: Operands) -> Results:
        """An analysis of its own: few modes at a time, so that many warps have room for their sums."""
        parts = []
        for first in range(0, shape.next_modes, _MODES_AT_ONCE):
            part = shape._replace(next_modes=min(_MODES_AT_ONCE, shape.next_modes - first))
            done = self._launch(steps, part, given, channel_first=False, first_mode=first)
            parts.append(_given(done.spectra))
        return Results(spectra=parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))

    def _table(self, name: str, modes: int, first: int = 0) -> torch.Tensor:
        key = (name, modes, first)
        if key not in self._tables:
            make = getattr(_cuda_tables, f"row_{name}")
            where = (self._precision, self._device)
            self._tables[key] = make(self.size[-1], modes, *where, *([first] if first else []))
        return self._tables[key]

    def _workspace(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8, device=self._device)

    def _moments(self, shape: Shape, channels: int) -> tuple[Moments, torch.Tensor]:
        moments = torch.empty(shape.batch, channels, 2, device=self._device)
        return (
            Moments(
                batch=shape.batch,
                outer=math.prod(shape.grid[:-1]),
                points=shape.grid[-1],
                channels=channels,
                modes=shape.modes,
                precision=PRECISIONS.index(self._precision),
                moments=moments.data_ptr(),
            ),
            moments,
        )

    def _field_moments(self, field: ChannelsLast, shape: Shape) -> torch.Tensor:
        arguments, moments = self._moments(shape, field.channels)
        workspace = self._workspace(workspace_bytes("moments", arguments))
        arguments.field, arguments.workspace = field.data.data_ptr(), workspace.data_ptr()
        launch("field_moments", arguments)
        return moments

    def _norm(
        self, norm: Normalize, source: Step, shape: Shape, given: Operands, width: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Factor and offset [batch, width] of a norm right after the program's first step."""
        moments = given.moments
        if isinstance(source, Synthesis):
            mixed = _given(given.mixed)
            arguments, moments = self._moments(shape, mixed.shape[1])
            arguments.spectra = mixed.data_ptr()
            launch("spectral_moments", arguments)
        moments = _given(moments)
        scale = torch.empty(shape.batch, width, device=self._device)
        shift = torch.empty_like(scale)
        vectors = [
            None if v is None else readable(v.float())
            for v in (norm.offset, norm.scale, norm.shift)
        ]
        offset, weight, bias = (None if v is None else v.data_ptr() for v in vectors)
        launch(
            "norm_affine",
            Norm(
                batch=shape.batch,
                channels=moments.shape[1],
                groups=norm.groups,
                width=width,
                eps=norm.eps,
                moments=moments.data_ptr(),
                offset=offset,
                weight=weight,
                bias=bias,
                scale=scale.data_ptr(),
                shift=shift.data_ptr(),
            ),
        )
        return scale, shift

    def _transform(
        self, columns: _Columns, z: torch.Tensor, out: torch.Tensor, table: torch.Tensor
    ) -> None:
        launch(
            "transform_axis",
            Transform(
                **columns._asdict(),
                precision=PRECISIONS.index(self._precision),
                multiprocessors=self._limits.multiprocessors,
                input=z.data_ptr(),
                out=out.data_ptr(),
                table=table.data_ptr(),
            ),
        )


class _Columns(NamedTuple):
    """A transform's shape: csrc/api/turbofno.h."""

    outer: int
    inner: int
    pitch: int
    points: int
    modes: int
    inverse: int


def _given(operand: Field | None) -> Field:
    if operand is None:
        raise ValueError("a tile program reads an operand that it is not given")
    return operand


def _channels_of(field: Field) -> int:
    return field.channels if isinstance(field, ChannelsLast) else int(field.shape[1])


def _channels(first: Step, given: Operands) -> int:
    """Of y after a program's first step."""
    match first:
        case Source():
            return _channels_of(_given(given.x))
        case Held():
            return _channels_of(_given(given.held))
        case Synthesis():
            return int(_given(given.mixed).shape[1])
        case AddMap(weight):
            return weight.shape[0]
    raise ValueError(f"a tile program does not begin with {type(first).__name__}")


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as kernels read them: contiguous, aligned, nothing left to negate or conjugate."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


@cache
def gpu_refusal(device: torch.device) -> str | None:
    """Why the CUDA kernels do not run on this GPU, in words, or None if they do."""
    status = native_status()
    if not status.loaded:
        return status.detail
    found = torch.cuda.get_device_properties(device)
    if found.major < _OLDEST_MAJOR:
        return f"they need compute capability {_OLDEST_MAJOR}.0, {device} has {found.major}.{found.minor}"
    # CUDA keeps 1 KiB of a multiprocessor's
    if found.shared_memory_per_multiprocessor <= _SHARED_MEMORY:
        return (
            f"a block needs {_SHARED_MEMORY // 1024} KiB of shared memory, as A100 and Hopper have it; {device} "
            f"({found.name}) has {found.shared_memory_per_multiprocessor // 1024} KiB a multiprocessor"
        )
    return code_refusal(device)


def program_refusal(
    steps: tuple[Step, ...],
    *,
    batch: int,
    channels: int,
    channels_of_x: int,
    size: Size,
    modes: int,
    precision: str,
    device: torch.device | None = None,
) -> str | None:
    """Why the kernels do not run a tile program, in words, or None if they do.

    `channels` are those of y after its first step, `modes` those of the last axis, before and after. Without a
    device an A100 is meant.
    """
    limits = A100 if device is None else device_limits(device)
    shape = Shape(batch, size, channels, channels_of_x, modes, modes, precision, *limits)
    refused = (piece.refusal for piece in pieces(steps, shape))
    return next((reason for reason in refused if reason is not None), None)


def mix_refusal(
    batch: int, c_in: int, c_out: int, size: Size, out_size: Size, modes: Size, precision: str
) -> str | None:
    """Why the kernels do not run a spectral product, in words, or None if they do."""
    code = PRECISIONS.index(precision)
    product = Product(
        batch=batch,
        c_in=c_in,
        c_out=c_out,
        others=math.prod(modes[:-1]),
        modes=modes[-1],
        precision=code,
    )
    reason = unsupported("product", product)
    for many, grid in ((c_in, size), (c_out, out_size)):
        for axis, count in enumerate(modes[:-1]):
            columns = batch * many * math.prod(grid[:axis]) * math.prod(modes[axis + 1 : -1])
            shape = Transform(
                outer=columns, inner=modes[-1], points=grid[axis], modes=count, precision=code
            )
            reason = reason or unsupported("transform", shape)
    return reason
