"""The stages on the CUDA kernels. Plans are made at the first use of a shape and kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from turbofno_ops import _spectra
from turbofno_ops._cuda_product import CudaProduct
from turbofno_ops._cuda_programs import Analysis, Kernel, TileProgram, TilePrograms
from turbofno_ops._native import Moments, Norm, RowAnalysis, Tile, bytes_of, launch
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
    Window,
    part_of,
)
from turbofno_ops._support import device_clusters, device_limits
from turbofno_ops._tile_program import (
    ChannelsLast,
    Shape,
    Weighted,
    cached_operands,
    operands_of,
    readable,
)
from turbofno_ops.description import PRECISIONS, Size
from turbofno_ops.fft import _kernels as _fft_kernels
from turbofno_ops.fft._transform import Transform


def field_dtype(precision: str) -> torch.dtype:
    """Return the dtype of fields between stages. The network's input and output are float32."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


class CudaStages:
    """Stages on the grid `size` whose mix keeps `modes` and returns the grid `out_size`. Thread-safe as `CudaProduct` is.

    With a `slab` these are whole grids, and the attributes `size` and `out_size` those of the process's slab.

    Fields are channels last, float32 or split (bfloat16 under bf16). Spectra are complex64, the network's input and result
    float32. The object owns its tables, so that CUDA graphs can read them as long as it lives.

    `settled`: no kernel still in flight writes the weights.

    Attributes:
        mix: The spectral product.
        programs: The planned tile programs.
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
        self._device, self._precision = device, precision
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
        self.programs = TilePrograms(
            device=device,
            precision=precision,
            limits=self._limits,
            settled=settled,
            slab=slab,
            points=self._points,
        )

    def tile(
        self, steps: tuple[Step, ...], operands: Operands, window: Window | None = None
    ) -> Results:
        shape = self._shape(steps, operands)
        if window is None:
            return self.run(self.programs.prepare(steps, shape), operands)
        program = self.programs.prepare_part(steps, shape, window)
        if program is not None:
            return self.run(program, operands)
        done = self.tile(steps, operands)
        if done.out is not None:
            return Results(out=part_of(done.out, window))
        return Results(saved=part_of(self.plain(done.saved), window))

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
            next_modes=row_modes(self.modes, self.size, self.out_size),
            precision=self._precision,
            x_channel_first=x_channel_first,
            **self._limits._asdict(),
        )

    def run(
        self,
        program: TileProgram,
        operands: Operands,
        *,
        channel_first: bool = False,
        weights: Mapping[Weighted, Weighted] | None = None,
    ) -> Results:
        """Launch a prepared program.

        `channel_first` stores the field of a program without a channel MLP as float32 [batch, channels, *grid]; a program that
        also analyses it may keep 16 modes. `weights` replaces steps of the program by steps of the same shape for this call
        only; their packed weights are not cached.
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
            if isinstance(launches, Analysis):
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
    def peer_bytes(self) -> int:
        return self.mix.peer_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all tables on the device."""
        tables = [*self.mix.tables, *self.programs.tables()]
        return sum({table.data_ptr(): table.nbytes for table in tables}.values())

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

    def _launch_all(
        self,
        kernels: tuple[Kernel, ...],
        given: Operands,
        weights: Mapping[Weighted, Weighted],
        *,
        channel_first: bool,
    ) -> Results:
        done = [
            self._launch(kernel, given, weights, channel_first=channel_first) for kernel in kernels
        ]
        if len(done) == 1:
            return done[0]
        spectra = [_required(one.spectra) for one in done]
        if spectra[0].is_contiguous():
            return Results(spectra=torch.cat(spectra, dim=-1))
        last = torch.cat([z.movedim(1, -1) for z in spectra], dim=-2)
        return Results(spectra=last.movedim(-1, 1))

    def _analyze(self, planned: Analysis, field: ChannelsLast) -> torch.Tensor:
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
        kernel: Kernel,
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
                pack = cached_operands if given_now is None else operands_of
                operands = pack(
                    given_now or step,
                    tile.width,
                    self._precision,
                    maps_few=bool(kernel.plan.maps_few),
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
                outer=math.prod(shape.read_grid[:-1]),
                points=shape.read_grid[-1],
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
