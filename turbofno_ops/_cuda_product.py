"""The mix of the CUDA stages: transforms of the axes before the last, product of modes, inverse transforms."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from turbofno_ops import _cuda_tables
from turbofno_ops._native import BatchedSpectral, Fft, Product, Spectral, launch
from turbofno_ops._shared_product import SharedProduct, shared_product
from turbofno_ops._slab import Slab
from turbofno_ops._spectra import array_of
from turbofno_ops._spectral_product import (
    BATCHED_MODES,
    BATCHED_POINTS,
    ProductShape,
    SpectralLaunch,
    channels_last_is_faster,
    fft_is_faster,
    launches,
    mixed_channels_last,
)
from turbofno_ops._support import Device
from turbofno_ops.description import Size
from turbofno_ops.fft import _kernels as fft_kernels
from turbofno_ops.fft._rule import MIXED_RADIX


class _Planned(NamedTuple):
    """The launches of a mix, and whether its result has the channels last. `shared`: what multiplies the modes of slabs.

    Without it, slabs exchange their modes by collectives.
    """

    launches: tuple[SpectralLaunch, ...]
    channels_last: bool
    shared: SharedProduct | None


class _Phases(NamedTuple):
    """Factors of a slab's kept modes, because its transforms count rows from one of its own: before the sum, after the product."""

    to_start: torch.Tensor
    from_start: torch.Tensor


class CudaProduct:
    """`Stages.mix` from the grid `size` to `out_size`, callable. With a slab these are whole grids.

    Thread-safe, but for slabs whose weights are shared out: these share memory, too.

    `clusters`: that the device runs at once, 0 for separate launches. `settled`: no kernel still in flight writes the weights.

    Attributes:
        tables: All tables on the device.
    """

    def __init__(
        self,
        size: Size,
        modes: Size,
        out_size: Size,
        *,
        device: torch.device,
        precision: str,
        limits: Device,
        clusters: int,
        settled: bool,
        slab: Slab | None,
    ) -> None:
        self._size, self._modes, self._out_size = size, modes, out_size
        self._device, self._precision, self._slab = device, precision, slab
        # the product of slabs is summed over the processes before its inverse transform
        self._clusters = clusters if slab is None else 0
        self._limits, self._settled = limits, settled
        self._axis_tables = [
            (
                _cuda_tables.axis_analysis(n, count, device),
                _cuda_tables.axis_synthesis(m, count, device),
            )
            for n, m, count in zip(size[:-1], out_size[:-1], modes[:-1], strict=True)
        ]
        # of a slab, by the kernel that transforms its rows
        self._phases: dict[str, _Phases] = {}
        self._cut: tuple[int, int] | None = None
        self._folded_tables: tuple[torch.Tensor, ...] = ()
        self._batched_tables: tuple[torch.Tensor, ...] = ()
        if slab is not None:
            self._use_rows_of(slab)
        elif len(size) == 2 and clusters:
            self._folded_tables = tuple(
                _cuda_tables.folded_axis(points, modes[0], device)
                for points in (size[0], out_size[0])
            )
        batched = limits.warpgroups and len(size) > 1 and modes[0] in BATCHED_MODES
        if batched and slab is None and max(size[0], out_size[0]) in BATCHED_POINTS:
            self._batched_tables = (
                _cuda_tables.batched_analysis(size[0], modes[0], device),
                _cuda_tables.batched_synthesis(out_size[0], modes[0], device),
            )
        of_axes = [table for pair in self._axis_tables for table in pair]
        self._roots = {
            points: fft_kernels.table_of(MIXED_RADIX, points, None, device)
            for grid, local in ((size, self._size), (out_size, self._out_size))
            for points, rows, count in zip(grid[:-1], local[:-1], modes[:-1], strict=True)
            if fft_is_faster(points, rows, count, precision)
        }
        phases = [phase for pair in self._phases.values() for phase in pair]
        self.tables = [
            *of_axes,
            *phases,
            *self._folded_tables,
            *self._batched_tables,
            *self._roots.values(),
        ]
        # without locks: two threads may plan the same shape, with equal results
        self._channels_last: dict[tuple[int, int], bool] = {}
        self._launches: dict[tuple[int, int, int, bool, int], _Planned] = {}

    def _use_rows_of(self, slab: Slab) -> None:
        """Replace the grids by those of a slab, and the tables of the first axis by those of its rows, with their phases."""
        rows, out_rows = slab.rows(self._size[0]), slab.rows(self._out_size[0])
        count, device = self._modes[0], self._device
        self._axis_tables[0] = (
            _cuda_tables.axis_analysis(rows.count, count, device, rows.points),
            _cuda_tables.axis_synthesis(out_rows.count, count, device, out_rows.points),
        )
        for kernel, middle in (("mixed_radix_fft", False), ("transform_axis", True)):
            given, wanted = (
                _cuda_tables.phase_of(of, count, device, middle=middle).unsqueeze(1)
                for of in (rows, out_rows)
            )
            self._phases[kernel] = _Phases(given, wanted.conj_physical())
        self._cut = rows.points, out_rows.points
        self._size, self._out_size = slab.local(self._size), slab.local(self._out_size)

    def __call__(self, spectra: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        batch, c_in, *_, row = spectra.shape
        c_out = weight.shape[-1]
        z, channels_last = array_of(spectra, c_out)
        share = math.prod(weight.shape[:-3])
        planned, channels_last, shared = self._planned(batch, c_in, c_out, channels_last, share)
        for at, (name, structure, elements, axis) in enumerate(planned):
            if isinstance(structure, Product):
                if shared is not None:
                    z = shared(weight)
                elif self._slab is None:
                    z = self._multiply(z, weight, structure)
                else:
                    phases = self._phases_around(planned, at)
                    z.view(self._modes[0], -1).mul_(phases.to_start)
                    z = self._multiply_sum(self._slab, z, weight, structure)
                    z.view(self._modes[0], -1).mul_(phases.from_start)
                continue
            if shared is not None and axis == 0 and not structure.inverse:
                out = shared.part
            else:
                out = torch.empty(elements, dtype=torch.complex64, device=self._device)
            arguments = type(structure).from_buffer_copy(structure)
            arguments.input, arguments.out = z.data_ptr(), out.data_ptr()
            if isinstance(arguments, Spectral | BatchedSpectral):
                few = isinstance(arguments, Spectral)
                tables = self._folded_tables if few else self._batched_tables
                arguments.weight = weight.data_ptr()
                arguments.in_table, arguments.out_table = (table.data_ptr() for table in tables)
            elif isinstance(arguments, Fft):
                arguments.table = self._roots[arguments.points].data_ptr()
            else:
                assert axis is not None
                arguments.table = self._axis_tables[axis][arguments.inverse].data_ptr()
            launch(name, arguments)
            z = out
        others = self._out_size[:-1]
        if channels_last:
            return z.view(batch, *others, row, c_out).movedim(-1, 1)
        return z.view(batch, c_out, *others, row)

    @property
    def peer_bytes(self) -> int:
        """Bytes of this device that other processes use, too."""
        return sum(one.shared.nbytes for one in self._launches.values() if one.shared is not None)

    def wants_channels_last(self, batch: int, channels: int) -> bool:
        """Return True if spectra of so many channels are best given with the channels last in memory."""
        found = self._channels_last.get((batch, channels))
        if found is None:
            shape = self._shape(batch, channels, channels, channels_last=False)
            found = self._channels_last[batch, channels] = channels_last_is_faster(shape)
        return found

    def _planned(
        self, batch: int, c_in: int, c_out: int, channels_last: bool, share: int
    ) -> _Planned:
        """Plan the product with a weight of `share` modes of the axes before the last."""
        key = (batch, c_in, c_out, channels_last, share)
        found = self._launches.get(key)
        if found is None:
            shape = self._shape(batch, c_in, c_out, channels_last=channels_last)
            planned = launches(shape)
            shared = None
            if self._slab is not None and share < math.prod(self._modes[:-1]):
                shared = self._shared(self._slab, planned)
            found = _Planned(planned, mixed_channels_last(shape), shared)
            self._launches[key] = found
        return found

    def _shared(self, slab: Slab, planned: tuple[SpectralLaunch, ...]) -> SharedProduct | None:
        """Return the product in memory that all slabs reach, or None where there is none."""
        at = next(i for i, one in enumerate(planned) if isinstance(one.arguments, Product))
        product = planned[at].arguments
        assert isinstance(product, Product)
        return shared_product(slab, product, *self._phases_around(planned, at))

    def _phases_around(self, planned: tuple[SpectralLaunch, ...], at: int) -> _Phases:
        """Return the phases of a slab, of the transforms of the first axis: the launches before and after the product."""
        return _Phases(
            self._phases[planned[at - 1].name].to_start,
            self._phases[planned[at + 1].name].from_start,
        )

    def _shape(self, batch: int, c_in: int, c_out: int, *, channels_last: bool) -> ProductShape:
        return ProductShape(
            batch,
            c_in,
            c_out,
            self._size,
            self._out_size,
            self._modes,
            self._precision,
            self._limits.multiprocessors,
            self._limits.shared_bytes,
            self._limits.warpgroups,
            self._clusters,
            self._settled,
            channels_last,
            cut=self._cut,
        )

    def _multiply(self, z: torch.Tensor, weight: torch.Tensor, structure: Product) -> torch.Tensor:
        """Return the product of modes [others, ..] of z, which may be a share of all."""
        z = z.view(-1, structure.in_pitch)
        out = torch.empty(len(z), structure.out_pitch, dtype=torch.complex64, device=self._device)
        arguments = Product.from_buffer_copy(structure)
        arguments.others = len(z)
        arguments.input, arguments.out = z.data_ptr(), out.data_ptr()
        arguments.weight = weight.data_ptr()
        launch("multiply_modes", arguments)
        return out

    def _multiply_sum(
        self, slab: Slab, z: torch.Tensor, weight: torch.Tensor, structure: Product
    ) -> torch.Tensor:
        """Return the product of modes of the sum of z over the slabs."""
        return slab.on_sum(
            z.view(-1, structure.in_pitch),
            weight,
            lambda z, weight: self._multiply(z, weight, structure),
        )
