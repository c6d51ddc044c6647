"""The stages on the CUDA kernels. Plans are made at the first use of a shape and kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from turbofno_ops import _cuda_tables, _spectra
from turbofno_ops._cuda_product import CudaProduct
from turbofno_ops._native import (
    Moments,
    Norm,
    RowAnalysis,
    Tile,
    TilePlan,
    bytes_of,
    launch,
    refusal,
)
from turbofno_ops._slab import Slab
from turbofno_ops._spectral_product import row_modes
from turbofno_ops._stages import (
    AddGate,
    AddMap,
    Analyze,
    Field,
    Normalize,
    Operands,
    Project,
    Restore,
    Results,
    Save,
    Source,
    Step,
    Store,
    Synthesis,
)
from turbofno_ops._support import device_clusters, device_limits
from turbofno_ops._tile_program import (
    TILE_POINTS,
    ChannelsLast,
    Piece,
    Shape,
    Weighted,
    cached_operands,
    operands_of,
    pieces,
    plan_kernel,
    readable,
)
from turbofno_ops.description import PRECISIONS, Size
from turbofno_ops.fft import _kernels as _fft_kernels
from turbofno_ops.fft import _plan as _fft_plan
from turbofno_ops.fft._plan import Launch
from turbofno_ops.fft._rule import MIXED_RADIX
from turbofno_ops.fft._transform import Axis, Transform

_MODES_PER_KERNEL = 32  # of a kernel that only analyses
# A tile program of at least so many channels and at most so many modes, with whole tiles, runs on warpgroups.
_WARPGROUP_CHANNELS, _WARPGROUP_MODES = 64, 16


def field_dtype(precision: str) -> torch.dtype:
    """Return the dtype of fields between stages. The network's input and output are float32."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


class _Kernel(NamedTuple):
    """One planned launch of a tile program. Its structure has no pointers yet but those of its tables."""

    steps: tuple[Step, ...]
    shape: Shape
    tile: Tile
    plan: TilePlan
    tables: tuple[torch.Tensor, ...]


class _Analysis(NamedTuple):
    """One planned launch that analyses a stored field. Its structure has no pointers yet."""

    shape: Shape
    structure: RowAnalysis
    table: torch.Tensor
    workspace_bytes: int


class _Planned(NamedTuple):
    """A piece with its launches.

    A stored field is analysed by one launch on cards with wgmma, elsewhere by kernels of a few modes each. The rows of a field
    with its channel first are contiguous: these are lines of a transform.
    """

    piece: Piece
    launches: tuple[_Kernel, ...] | _Analysis | Transform


class TileProgram(NamedTuple):
    """A tile program planned for one shape: its pieces in order."""

    steps: tuple[Step, ...]
    pieces: tuple[_Planned, ...]


class CudaStages:
    """Stages on the grid `size` whose mix keeps `modes` and returns the grid `out_size`. Thread-safe.

    With a `slab` these are whole grids, and the attributes `size` and `out_size` those of the process's slab.

    Fields are channels last, float32 or split (bfloat16 under bf16). Spectra are complex64, the network's input and result
    float32. The object owns its tables, so that CUDA graphs can read them as long as it lives.

    `settled`: no kernel still in flight writes the weights.
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
        slab: Slab | None = None,
    ) -> None:
        self._slab, self._points, out_size = slab, size[0], out_size or size
        self.size, self.out_size, self.modes = size, out_size, modes
        if slab is not None:
            self.size, self.out_size = slab.local(size), slab.local(out_size)
        self._device, self._precision, self._settled = device, precision, settled
        self._limits = device_limits(device)
        self.mix = CudaProduct(
            size,
            modes,
            out_size,
            device=device,
            precision=precision,
            limits=self._limits,
            clusters=device_clusters(device),
            settled=settled,
            slab=slab,
        )
        # without a lock: two threads may plan the same shape, with equal results
        self._programs: dict[tuple[tuple[Step, ...], Shape], TileProgram] = {}

    def tile(self, steps: tuple[Step, ...], operands: Operands) -> Results:
        return self.run(self.prepare(steps, self._shape(steps, operands)), operands)

    def shape(
        self, *, batch: int, channels: int, x_channels: int, x_channel_first: bool, modes: int
    ) -> Shape:
        """Return the Shape of a tile program on these stages."""
        return Shape(
            batch=batch,
            grid=self.size,
            channels=channels,
            x_channels=x_channels,
            modes=modes,
            next_modes=row_modes(self.modes[-1], min(self.size[-1], self.out_size[-1])),
            precision=self._precision,
            x_channel_first=x_channel_first,
            **self._limits._asdict(),
        )

    def prepare(self, steps: tuple[Step, ...], shape: Shape) -> TileProgram:
        """Plan a tile program and make its tables, once per shape.

        Raises:
            ValueError: The kernels do not support it.
        """
        found = self._programs.get((steps, shape))
        if found is None:
            planned = tuple(
                _Planned(
                    piece, self._transform(piece) or self._analysis(piece) or self._parts(piece)
                )
                for piece in pieces(steps, shape)
            )
            found = self._programs[steps, shape] = TileProgram(steps, planned)
        return found

    def run(
        self,
        program: TileProgram,
        operands: Operands,
        *,
        channel_first: bool = False,
        weights: Mapping[Weighted, Weighted] | None = None,
    ) -> Results:
        """Launch a prepared program.

        `channel_first` stores the field as float32 [batch, channels, *grid]. `weights` replaces steps of the program by
        steps of the same shape for this call only; their packed weights are not cached.
        """
        steps = program.steps
        stored = operands.x if len(steps) > 1 and isinstance(steps[1], Store) else None
        fields: dict[str, Field | None] = {"x": operands.x, "saved": operands.saved}
        given, done = operands, Results()
        for piece, launches in program.pieces:
            if isinstance(launches, Transform):
                assert isinstance(operands.x, torch.Tensor)
                done = Results(spectra=_fft_kernels.run(operands.x, launches))
                continue
            if isinstance(launches, _Analysis):
                done = Results(spectra=self._analyze(launches, _required(fields[piece.y])))
                continue
            makes_result = piece.to == "out"
            if piece.to == "hidden":
                fields.pop("hidden", None)
            given = replace(given, x=fields[piece.x], saved=fields.get(piece.y))
            done = self._launch_all(
                launches, given, weights or {}, channel_first=channel_first or makes_result
            )
            if makes_result:
                done = Results(out=done.x)
            stored = done.x if done.x is not None else stored
            if piece.to in ("saved", "out"):
                # memory for what follows
                fields.pop("hidden", None)
                fields.pop("sum", None)
            fields[piece.to] = done.x if done.saved is None else done.saved
            given = Operands(moments=done.moments)
        return Results(stored, done.saved, done.moments, done.spectra, done.out)

    def convert(self, x: torch.Tensor) -> Field:
        field = self._field(x.shape[0], x.shape[1], tuple(x.shape[2:]))
        field.data[..., : field.channels] = x.movedim(1, -1)
        field.data[..., field.channels :] = 0
        return field

    def plain(self, field: Field) -> torch.Tensor:
        if isinstance(field, torch.Tensor):
            return field
        return field.values().movedim(-1, 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables on the device."""
        found = [*self.mix.tables]
        for program in self._programs.values():
            for _, launches in program.pieces:
                if isinstance(launches, Transform):
                    continue  # its tables are counted by their own cache
                if isinstance(launches, _Analysis):
                    found.append(launches.table)
                    continue
                found += [table for one in launches for table in one.tables]
        return sum({table.data_ptr(): table.nbytes for table in found}.values())

    def _field(self, batch: int, channels: int, grid: Size) -> ChannelsLast:
        dtype = field_dtype(self._precision)
        return ChannelsLast.empty(batch, grid, channels, dtype, self._device)

    def _split_field(self, batch: int, channels: int, grid: Size) -> ChannelsLast:
        return ChannelsLast.empty_split(batch, grid, channels, self._device)

    def _shape(self, steps: tuple[Step, ...], given: Operands) -> Shape:
        first = next(t for t in (given.mixed, given.saved, given.x) if t is not None)
        return self.shape(
            batch=first.data.shape[0],
            channels=_channels(steps[0], given),
            x_channels=0 if given.x is None else _channels_of(given.x),
            x_channel_first=isinstance(given.x, torch.Tensor),
            modes=0 if given.mixed is None else given.mixed.shape[-1],
        )

    def _transform(self, piece: Piece) -> Transform | None:
        """Return the analysis of the rows of the network's input as a transform, or None where a tile program is faster (H200) or
        serves alone."""
        shape = piece.shape
        points, modes = shape.grid[-1], shape.next_modes
        if [type(step) for step in piece.steps] != [Source, Analyze] or self._slab is not None:
            return None
        by_warpgroups = self._limits.warpgroups and shape.channels >= _WARPGROUP_CHANNELS
        if by_warpgroups and modes <= _WARPGROUP_MODES and points % TILE_POINTS == 0:
            return None
        axis = Axis(1 + len(shape.grid), points, points, 0, modes, 0)
        transform = Transform("real_to_complex", inverse=False, axes=(axis,), scaling="whole")
        # asked without memory, with the limits of an A100
        x = torch.empty(shape.batch, shape.channels, *shape.grid, device="meta")
        if _fft_plan.refusal(x, transform) is not None:
            return None
        (step,) = _fft_plan.plan_of(_fft_plan.problem(x, transform)).steps
        # That kernel takes odd real lines in pairs, and rounds them otherwise where one near them is not finite: a batch element
        # would change with another one.
        in_pairs = points % 2 == 1 and isinstance(step, Launch) and step.kernel == MIXED_RADIX
        return None if in_pairs else transform

    def _analysis(self, piece: Piece) -> _Analysis | None:
        """Plan the analysis of a stored field, or return None if the piece is another or needs a tile program."""
        if [type(step) for step in piece.steps] != [Restore, Analyze]:
            return None
        shape = piece.shape
        structure = RowAnalysis(
            batch=shape.batch,
            outer=math.prod(shape.grid[:-1]),
            points=shape.grid[-1],
            channels=shape.channels,
            modes=shape.next_modes,
            precision=PRECISIONS.index(self._precision),
            weights_settled=self._settled,
            **self._limits._asdict(),
        )
        if refusal("analyze_rows_unsupported", structure) is not None:
            return None
        where = (self._precision, self._device)
        table = _cuda_tables.field_analysis(structure.points, structure.modes, *where)
        workspace_bytes = bytes_of("analyze_rows_workspace_bytes", structure)
        return _Analysis(shape, structure, table, workspace_bytes)

    def _parts(self, piece: Piece) -> tuple[_Kernel, ...]:
        if piece.refusal is not None:
            raise ValueError(f"the CUDA kernels do not support this: {piece.refusal}")
        shape = piece.shape
        if not isinstance(piece.steps[-1], Analyze) or len(piece.steps) > 2:
            return (self._kernel(piece.steps, shape, 0),)
        # few modes per kernel, so that the sums of many warps fit
        parts = []
        for first in range(0, shape.next_modes, _MODES_PER_KERNEL):
            modes = min(_MODES_PER_KERNEL, shape.next_modes - first)
            parts.append(self._kernel(piece.steps, shape._replace(next_modes=modes), first))
        return tuple(parts)

    def _kernel(self, steps: tuple[Step, ...], shape: Shape, first_mode: int) -> _Kernel:
        tile, plan, refusal = plan_kernel(steps, shape)
        assert refusal is None
        tile.weights_settled = self._settled
        points, segment, device = tile.points, plan.segment_points, self._device
        tables = {}
        if tile.modes:
            of = (points, tile.modes, segment)
            tables["synthesis"] = _cuda_tables.row_synthesis(*of, self._precision, device)
            if segment < points:
                tables["synthesis_phases"] = _cuda_tables.segment_phases(*of, device)
        if tile.next_modes:
            of = (points, tile.next_modes, segment)
            tables["analysis"] = _cuda_tables.row_analysis(*of, self._precision, device, first_mode)
            if segment < points:
                tables["analysis_phases"] = _cuda_tables.segment_phases(*of, device, first_mode)
        for name, table in tables.items():
            setattr(tile, name, table.data_ptr())
        return _Kernel(steps, shape, tile, plan, tuple(tables.values()))

    def _launch_all(
        self,
        parts: tuple[_Kernel, ...],
        given: Operands,
        weights: Mapping[Weighted, Weighted],
        *,
        channel_first: bool,
    ) -> Results:
        done = [
            self._launch(kernel, given, weights, channel_first=channel_first) for kernel in parts
        ]
        if len(done) == 1:
            return done[0]
        spectra = [_required(one.spectra) for one in done]
        if spectra[0].is_contiguous():
            return Results(spectra=torch.cat(spectra, dim=-1))
        last = torch.cat([z.movedim(1, -1) for z in spectra], dim=-2)
        return Results(spectra=last.movedim(-1, 1))

    def _analyze(self, planned: _Analysis, field: ChannelsLast) -> torch.Tensor:
        arguments = RowAnalysis.from_buffer_copy(planned.structure)
        of = (arguments.batch, arguments.channels, *planned.shape.grid[:-1], arguments.modes)
        last = self.mix.wants_channels_last(*of[:2])
        spectra = _spectra.empty(of, self._device, channels_last=last)
        arguments.channels_last = last
        workspace = self._workspace(planned.workspace_bytes)
        arguments.field, arguments.spectra = field.unsplit().data_ptr(), spectra.data_ptr()
        arguments.table, arguments.workspace = planned.table.data_ptr(), workspace.data_ptr()
        launch("analyze_rows", arguments)
        return spectra

    def _launch(
        self,
        kernel: _Kernel,
        given: Operands,
        weights: Mapping[Weighted, Weighted],
        *,
        channel_first: bool,
    ) -> Results:
        """Launch one kernel, and the kernels that compute the moments before and after it."""
        steps, shape = kernel.steps, kernel.shape
        # a copy, because other threads may launch the same kernel
        tile = Tile.from_buffer_copy(kernel.tile)
        alive: list[torch.Tensor] = []  # keeps operands alive until all kernels are launched

        def pointer(tensor: torch.Tensor) -> int:
            alive.append(tensor)
            return tensor.data_ptr()

        x: Field | None = None
        saved: ChannelsLast | None = None
        out = spectra = moments = None
        for step, to in zip(steps, tile.step, strict=False):
            if isinstance(step, Weighted):
                given_now = weights.get(step)
                operands = (
                    cached_operands(step, tile.width, self._precision)
                    if given_now is None
                    else operands_of(given_now, tile.width, self._precision)
                )
                for name, operand in zip(operands._fields, operands, strict=True):
                    if operand is not None:
                        setattr(to, name, pointer(operand))
            match step:
                case Source():
                    to.field = pointer(readable(_required(given.x)))
                case Restore():
                    to.field = pointer(_required(given.saved).unsplit())
                case Synthesis():
                    mixed, tile.channels_last = _spectra.array_of(_required(given.mixed))
                    tile.mixed = pointer(mixed)
                case Normalize():
                    factor, offset = self._norm(step, steps[0], shape, given, tile.width)
                    to.scale, to.shift = pointer(factor), pointer(offset)
                case AddMap() | AddGate():
                    of_x = _required(given.x)
                    if isinstance(of_x, ChannelsLast):
                        if of_x.scales is not None:
                            tile.x_scales = pointer(of_x.scales)
                        of_x = of_x.data
                    to.field = pointer(readable(of_x))
                case Store() | Save():
                    if channel_first and isinstance(step, Store):
                        x = torch.empty(shape.batch, to.channels, *shape.grid, device=self._device)
                        to.field, to.channel_first = pointer(x), 1
                        continue
                    allocate = self._split_field if kernel.plan.stores_split else self._field
                    field = allocate(shape.batch, to.channels, shape.grid)
                    if field.scales is not None:
                        tile.scales = pointer(field.scales)
                    to.field = pointer(field.data)
                    if isinstance(step, Store):
                        x = field
                    else:
                        saved = field
                case Analyze():
                    of = (shape.batch, tile.channels, *shape.grid[:-1], shape.next_modes)
                    if not tile.modes:
                        tile.channels_last = self.mix.wants_channels_last(
                            shape.batch, tile.channels
                        )
                    last = bool(tile.channels_last)
                    spectra = _spectra.empty(of, self._device, channels_last=last)
                    tile.spectra = pointer(spectra)
                case Project():
                    out = torch.empty(shape.batch, to.channels, *shape.grid, device=self._device)
                    to.field = pointer(out)
        if kernel.plan.workspace_bytes:
            tile.workspace = pointer(self._workspace(kernel.plan.workspace_bytes))
        launch("tile_program", tile, kernel.plan)
        if saved is not None and isinstance(steps[-1], Save) and steps[-1].moments:
            moments = self._field_moments(saved, shape)
        return Results(x, saved, moments, spectra, out)

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
        workspace = self._workspace(bytes_of("moments_workspace_bytes", arguments))
        arguments.field, arguments.workspace = field.unsplit().data_ptr(), workspace.data_ptr()
        launch("field_moments", arguments)
        return self._of_all(moments)

    def _of_all(self, moments: torch.Tensor) -> torch.Tensor:
        """Return the moments [batch, channels, 2] over all slabs."""
        if self._slab is None:
            return moments
        mean, variance = moments.unbind(-1)
        return torch.stack(self._slab.moments(mean, variance, self._points), dim=-1)

    def _norm(
        self, norm: Normalize, source: Step, shape: Shape, given: Operands, width: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and shift [batch, width] of a norm right after the program's first step."""
        moments = given.moments
        if isinstance(source, Synthesis):
            mixed = _required(given.mixed)
            arguments, moments = self._moments(shape, mixed.shape[1])
            array, arguments.channels_last = _spectra.array_of(mixed)
            arguments.spectra = array.data_ptr()
            launch("spectral_moments", arguments)
            moments = self._of_all(moments)
        moments = _required(moments)
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


def _required(operand: Field | None) -> Field:
    if operand is None:
        raise ValueError("an operand of the tile program is missing")
    return operand


def _channels_of(field: Field) -> int:
    return field.channels if isinstance(field, ChannelsLast) else int(field.shape[1])


def _channels(first: Step, given: Operands) -> int:
    """Return the channels of y after the first step."""
    match first:
        case Source():
            return _channels_of(_required(given.x))
        case Restore():
            return _channels_of(_required(given.saved))
        case Synthesis():
            return int(_required(given.mixed).shape[1])
        case AddMap(weight):
            return weight.shape[0]
    raise ValueError(f"a tile program cannot begin with {type(first).__name__}")
