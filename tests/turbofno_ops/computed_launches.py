"""Launches of a spectral product, computed by torch from their structures, as turbofno.h describes them."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch

from tests.turbofno_ops.test_axis_tables import transform
from turbofno_ops._native import BatchedSpectral, Fft, Product, Spectral, Transform

TABLES: dict[int, torch.Tensor] = {}
"""Tables of launches, by address."""


def memory(address: int, count: int) -> torch.Tensor:
    """Return the complex numbers at an address."""
    floats = (ctypes.c_float * (2 * count)).from_address(address)
    return torch.frombuffer(floats, dtype=torch.complex64)


def computed(name: str, a: Any) -> None:
    """Compute a launch, as turbofno.h describes it."""
    if isinstance(a, Transform):
        columns = a.outer * a.inner
        modes = a.modes, a.pitch
        if a.inverse:
            given = memory(a.input, a.modes * a.pitch).view(modes)[:, :columns]
        else:
            given = memory(a.input, a.points * columns).view(a.outer, a.points, a.inner)
            given = given.movedim(1, 0).reshape(a.points, columns)
        count = a.points if a.inverse else a.modes
        table = TABLES[a.table]
        done = transform(table, given.cdouble(), count).to(torch.complex64)
        if a.inverse:
            out = memory(a.out, a.points * columns).view(a.outer, a.points, a.inner)
            out.copy_(done.view(a.points, a.outer, a.inner).movedim(0, 1))
        else:
            memory(a.out, a.modes * a.pitch).view(modes)[:, :columns] = done
        return
    if isinstance(a, Spectral):
        computed_whole(a)
        return
    if isinstance(a, BatchedSpectral):
        computed_batched(a)
        return
    if isinstance(a, Fft):
        computed_fft(a)
        return
    assert isinstance(a, Product)

    def modes_of(address: int, pitch: int, channels: int, channels_last: int) -> torch.Tensor:
        rows = memory(address, a.others * pitch).view(a.others, pitch)
        rows = rows[:, : a.batch * channels * a.row_modes]
        if channels_last:
            return rows.unflatten(1, (a.batch, a.row_modes, channels)).transpose(-1, -2)
        return rows.unflatten(1, (a.batch, channels, a.row_modes))

    def factors_of(address: int) -> torch.Tensor:
        return memory(address, a.slabs * a.others).view(a.slabs, a.others, 1, 1, 1)

    if a.slabs:
        assert not a.channels_last
        parts = [modes_of(address, a.in_pitch, a.c_in, 0) for address in a.parts[: a.slabs]]
        z = (torch.stack(parts) * factors_of(a.part_factors)).sum(0)
        results = [
            (address, factors_of(a.product_factors)[s])
            for s, address in enumerate(a.products[: a.slabs])
        ]
    else:
        z = modes_of(a.input, a.in_pitch, a.c_in, a.input_channels_last)
        results = [(a.out, torch.ones(()))]
    weight = memory(a.weight, a.others * a.modes * a.c_in * a.c_out)
    weight = weight.view(a.others, a.modes, a.c_in, a.c_out)
    product = torch.einsum("kbcm,kmco->kbom", z[..., : a.modes], weight)
    for address, factor in results:
        out = modes_of(address, a.out_pitch, a.c_out, a.channels_last)
        out[..., a.modes :] = 0
        out[..., : a.modes] = product * factor


def computed_fft(a: Fft) -> None:
    """Compute truncated complex FFTs of lines."""

    def lines(address: int, outer: int, inner: int, point: int, count: int) -> torch.Tensor:
        last = (a.outer - 1) * outer + (a.inner - 1) * inner + (count - 1) * point
        shape, strides = (a.outer, a.inner, count), (outer, inner, point)
        return memory(address, last + 1).as_strided(shape, strides)

    given = a.in_head + a.in_tail, a.out_head + a.out_tail
    z = lines(a.input, a.in_outer, a.in_inner, a.in_point, given[0])
    out = lines(a.out, a.out_outer, a.out_inner, a.out_point, given[1])
    line = torch.zeros(a.outer, a.inner, a.points, dtype=torch.complex64)
    line[..., : a.in_head] = z[..., : a.in_head]
    line[..., a.points - a.in_tail :] = z[..., a.in_head :]
    done = torch.fft.ifft(line, norm="forward") if a.inverse else torch.fft.fft(line)
    done *= a.scale
    out[..., : a.out_head] = done[..., : a.out_head]
    out[..., a.out_head :] = done[..., a.points - a.out_tail :]


def exponentials(table: torch.Tensor, points: int, kept: int) -> torch.Tensor:
    """Return exp(2 pi i k n / points) of kept modes k and points n, both in FFT order, from a table of half of them."""
    half = torch.view_as_complex(table.double())
    k = torch.tensor([*range((kept + 1) // 2), *range(-(kept // 2), 0)])
    n = torch.arange(points)
    n = torch.where(n < (points + 1) // 2, n, n - points)
    found = half[k.abs()[:, None], n.abs()]
    return torch.where((k[:, None] < 0) != (n < 0), found.conj(), found)


def computed_whole(a: Spectral) -> None:
    """Compute a whole spectral product."""
    z = memory(a.input, a.batch * a.c_in * a.rows * a.row_modes)
    z = z.view(a.batch, a.c_in, a.rows, a.row_modes)[..., : a.modes].cdouble()
    weight = memory(a.weight, a.kept * a.modes * a.c_in * a.c_out)
    weight = weight.view(a.kept, a.modes, a.c_in, a.c_out).cdouble()
    analysis = exponentials(TABLES[a.in_table], a.rows, a.kept).conj() / a.rows
    synthesis = exponentials(TABLES[a.out_table], a.out_rows, a.kept)
    transformed = torch.einsum("kn,bcnm->kbcm", analysis, z)
    mixed = torch.einsum("kn,kbcm,kmco->bonm", synthesis, transformed, weight)
    out = memory(a.out, a.batch * a.c_out * a.out_rows * a.row_modes)
    out = out.view(a.batch, a.c_out, a.out_rows, a.row_modes)
    out[..., a.modes :] = 0
    out[..., : a.modes] = mixed.to(torch.complex64)


def computed_batched(a: BatchedSpectral) -> None:
    """Compute a spectral product of many batch elements, with matrices from the tables."""
    k, n, m = torch.arange(a.kept), torch.arange(a.rows), torch.arange(a.out_rows)
    k = torch.where(k < (a.kept + 1) // 2, k, k - a.kept)  # frequencies in FFT order

    def terms_of(table: int) -> torch.Tensor:
        """[terms, 32 columns] of B operands [steps, high and low, 2, 4, 8 columns, 4 terms]."""
        parts = TABLES[table].double().sum(1).permute(0, 1, 4, 2, 3)
        return parts.reshape(-1, 32)

    given = terms_of(a.in_table).unflatten(1, (2, 16))
    analysis = torch.complex(given[n, 0][:, k.abs()], k.sign() * given[n, 1][:, k.abs()])
    steps = terms_of(a.out_table).unflatten(0, (-1, a.kept // 2 // 8 + 1, 2, 8))
    made = (
        steps.permute(2, 1, 3, 0, 4).flatten(3).flatten(1, 2)
    )  # cosines and sines, frequency, point
    synthesis = torch.complex(made[0][k.abs()][:, m], k.sign()[:, None] * made[1][k.abs()][:, m])

    def rows_of(address: int, pitch: int, rows: int) -> torch.Tensor:
        shape = (a.others, a.batch, rows, a.row_modes, a.channels)
        assert pitch == math.prod(shape[1:])
        return memory(address, math.prod(shape)).view(shape)

    z = rows_of(a.input, a.in_pitch, a.rows)[..., : a.modes, :].cdouble()
    weight = memory(a.weight, a.kept * a.others * a.modes * a.channels**2)
    weight = weight.view(a.kept, a.others, a.modes, a.channels, a.channels).cdouble()
    transformed = torch.einsum("nk,jbnmc->kjbmc", analysis, z)
    mixed = torch.einsum("kn,kjbmc,kjmco->jbnmo", synthesis, transformed, weight)
    out = rows_of(a.out, a.out_pitch, a.out_rows)
    out[..., a.modes :, :] = 0
    out[..., : a.modes, :] = mixed.to(torch.complex64)
