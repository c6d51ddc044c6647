"""Tile programs as launches of the CUDA kernels. They are planned at the first use of a shape and kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from turbofno_ops import _cuda_tables
from turbofno_ops._native import RowAnalysis, Tile, TilePlan, bytes_of, refusal
from turbofno_ops._slab import Slab
from turbofno_ops._stages import Analyze, Restore, Source, Step, Window
from turbofno_ops._support import Device
from turbofno_ops._tile_program import TILE_POINTS, Piece, Shape, pieces, plan_kernel
from turbofno_ops.description import PRECISIONS
from turbofno_ops.fft import _plan as _fft_plan
from turbofno_ops.fft._plan import Launch
from turbofno_ops.fft._rule import MIXED_RADIX
from turbofno_ops.fft._transform import Axis, Transform

_MODES_PER_KERNEL = 32  # of a kernel that only analyses
# The network's input with at least so many channels and at most so many modes, in whole tiles, is analysed faster by warpgroups.
_WARPGROUP_CHANNELS, _WARPGROUP_MODES = 64, 16


class Kernel(NamedTuple):
    """One planned launch of a tile program. Its structure has no pointers yet but those of its tables."""

    steps: tuple[Step, ...]
    shape: Shape
    tile: Tile
    plan: TilePlan
    tables: tuple[torch.Tensor, ...]


class Analysis(NamedTuple):
    """One planned launch that analyses a stored field. Its structure has no pointers yet."""

    shape: Shape
    structure: RowAnalysis
    table: torch.Tensor
    workspace_bytes: int


class Planned(NamedTuple):
    """A piece with its launches.

    A stored field is analysed by one launch on cards with wgmma, elsewhere by kernels of a few modes each. The rows of a field
    with its channel first are contiguous: these are lines of a transform.
    """

    piece: Piece
    launches: tuple[Kernel, ...] | Analysis | Transform


class TileProgram(NamedTuple):
    """A tile program planned for one shape: its pieces in order."""

    steps: tuple[Step, ...]
    pieces: tuple[Planned, ...]


class TilePrograms:
    """The tile programs of a device and a precision, with their tables. Thread-safe.

    `slab`: the grids of shapes are this process's slabs of grids whose first axis has `points`. `settled`: no kernel still in
    flight writes the weights.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        precision: str,
        limits: Device,
        settled: bool,
        slab: Slab | None,
        points: int,
    ) -> None:
        self._device, self._precision, self._limits = device, precision, limits
        self._settled = settled
        # All processes cut a program alike, by the largest slab, because they add up spectra of one layout.
        self._most_rows = None if slab is None else slab.all_rows(points)[0].count
        # without a lock: two threads may plan the same shape, with equal results
        self._programs: dict[tuple[tuple[Step, ...], Shape], TileProgram] = {}
        self._parts: dict[tuple[tuple[Step, ...], Shape, Window], TileProgram | None] = {}

    def prepare(self, steps: tuple[Step, ...], shape: Shape) -> TileProgram:
        """Plan a tile program and make its tables, once per shape.

        Raises:
            ValueError: The kernels do not support it.
        """
        found = self._programs.get((steps, shape))
        if found is None:
            planned = tuple(self._planned(piece, shape) for piece in self._pieces(steps, shape))
            found = self._programs[steps, shape] = TileProgram(steps, planned)
        return found

    def prepare_part(
        self, steps: tuple[Step, ...], shape: Shape, window: Window
    ) -> TileProgram | None:
        """Plan a tile program for a window of the grid, once per shape. Return None unless one kernel computes it."""
        key = (steps, shape, window)
        if key not in self._parts:
            self._parts[key] = self._part(steps, shape, window)
        return self._parts[key]

    def _part(self, steps: tuple[Step, ...], shape: Shape, window: Window) -> TileProgram | None:
        part = shape.part(window)
        if part is None or len(tuple(pieces(steps, shape))) > 1:
            return None
        (first, *others) = pieces(steps, part)
        return None if others or first.refusal is not None else self.prepare(steps, part)

    def _pieces(self, steps: tuple[Step, ...], shape: Shape) -> Iterator[Piece]:
        """Yield the pieces of a program on the largest slab, or on the whole grid."""
        if self._most_rows is not None:
            shape = shape._replace(grid=(self._most_rows, *shape.grid[1:]))
        yield from pieces(steps, shape)

    def _planned(self, of_most: Piece, shape: Shape) -> Planned:
        """Plan a piece of the largest slab for the grid of `shape`."""
        piece = of_most._replace(shape=of_most.shape._replace(grid=shape.grid))
        launches = self._transform(of_most) or self._analysis(piece) or self._kernels(piece)
        return Planned(piece, launches)

    def tables(self) -> list[torch.Tensor]:
        """Return the tables of all programs; those of transforms are counted by their own cache."""
        found = []
        for program in self._programs.values():
            for _, launches in program.pieces:
                if isinstance(launches, Analysis):
                    found.append(launches.table)
                elif not isinstance(launches, Transform):
                    found += [table for one in launches for table in one.tables]
        return found

    def _transform(self, piece: Piece) -> Transform | None:
        """Return the analysis of the rows of the network's input as a transform, or None where a tile program is faster (H200) or
        serves alone. On slabs `piece` is that of the largest."""
        shape = piece.shape
        points, modes = shape.grid[-1], shape.next_modes
        if [type(step) for step in piece.steps] != [Source, Analyze]:
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

    def _analysis(self, piece: Piece) -> Analysis | None:
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
        return Analysis(shape, structure, table, workspace_bytes)

    def _kernels(self, piece: Piece) -> tuple[Kernel, ...]:
        if piece.refusal is not None:
            raise ValueError(f"the CUDA kernels do not support this: {piece.refusal}")
        shape = piece.shape
        if not isinstance(piece.steps[-1], Analyze) or len(piece.steps) > 2:
            return (self._kernel(piece.steps, shape, 0),)
        # few modes per kernel, so that the sums of many warps fit
        kernels = []
        for first in range(0, shape.next_modes, _MODES_PER_KERNEL):
            modes = min(_MODES_PER_KERNEL, shape.next_modes - first)
            kernels.append(self._kernel(piece.steps, shape._replace(next_modes=modes), first))
        return tuple(kernels)

    def _kernel(self, steps: tuple[Step, ...], shape: Shape, first_mode: int) -> Kernel:
        tile, plan, refusal = plan_kernel(steps, shape)
        assert refusal is None
        tile.weights_settled = self._settled
        points, segment, device = tile.points, plan.segment_points, self._device
        tables = {}
        if tile.modes:
            of = (tile.window.points, tile.modes, segment)
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
        return Kernel(steps, shape, tile, plan, tuple(tables.values()))
