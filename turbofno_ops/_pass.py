"""A chain on one grid: its input buffer and its forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, overload

import torch
import torch.nn.functional as F

from turbofno_ops._channels import apply_maps, mode_major
from turbofno_ops._exchange import ROW_AXIS, rearrange_rows, recut
from turbofno_ops._lower import Chain, Mix, Tile
from turbofno_ops._modes import Rows
from turbofno_ops._slab import Slab
from turbofno_ops._stages import (
    MLP,
    AddMap,
    Operands,
    Project,
    Restore,
    Results,
    Source,
    Stages,
    Window,
)
from turbofno_ops._wide_maps import stored_channels
from turbofno_ops.description import PaddingMode, Scaling, Size

MakeStages = Callable[[Size, Size, Size], Stages]
"""Makes the stages of a grid, given the modes that its mix keeps and the grid that the mix returns."""


@dataclass(frozen=True)
class PaddedGrid:
    """A grid with padding points (before, after) each axis."""

    grid: Size
    padding: tuple[tuple[int, int], ...]
    mode: PaddingMode
    slab: Slab | None = None

    @classmethod
    def of(cls, chain: Chain, size: Size, slab: Slab | None = None) -> PaddedGrid:
        """Return a grid with the padding of a chain."""
        pairs = () if chain.padding is None else tuple(chain.padding(size))
        return cls(size, pairs or ((0, 0),) * len(size), chain.padding_mode, slab)

    @property
    def padded(self) -> Size:
        """The grid's size with padding."""
        return tuple(
            n + before + after for n, (before, after) in zip(self.grid, self.padding, strict=True)
        )

    def refusal(self) -> str | None:
        """Return the reason why the grid cannot be padded, or None if it can."""
        for n, pair in zip(self.grid, self.padding, strict=True):
            most = {"reflect": n - 1, "circular": n}.get(self.mode, max(pair))
            if max(pair) > most:
                return (
                    f"the grid {'x'.join(map(str, self.grid))} has an axis of {n} points, which cannot be padded by "
                    f"{max(pair)} in the mode {self.mode!r}, at most by {most}"
                )
        return None

    @property
    def window(self) -> Window | None:
        """The points that are not padding, or None if all points are wanted or the grid is cut into slabs."""
        return None if self.padded == self.grid or self.slab is not None else self._inside

    @property
    def _inside(self) -> Window:
        """The points that are not padding."""
        return tuple(
            Rows(before, n, points)
            for n, (before, _), points in zip(self.grid, self.padding, self.padded, strict=True)
        )

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """Pad [batch, channels, *grid] to [batch, channels, *padded]."""
        if self.padded == self.grid:
            return x
        pairs = self.padding
        if self.slab is not None:
            x, pairs = self._pad_rows(x, self.slab), ((0, 0), *pairs[1:])
        if not x.numel():
            # a slab without rows; F.pad has no modes for it
            grid = (n + sum(pair) for n, pair in zip(x.shape[2:], pairs, strict=True))
            return x.new_empty(*x.shape[:2], *grid)
        # F.pad counts from the last axis
        amounts = [amount for pair in reversed(pairs) for amount in pair]
        return F.pad(x, amounts, mode="constant" if self.mode == "zeros" else self.mode)

    def crop(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, channels, *grid] of a padded field, as a view if that is whole."""
        if self.padded == self.grid:
            return x
        for axis, rows in enumerate(self._inside, start=2):
            if axis > ROW_AXIS or self.slab is None:
                x = rows.of(x, axis)
            elif rows.count < rows.points:
                x = rearrange_rows(self.slab, x, rows.points, range(rows.first, rows.stop))
        return x

    def _pad_rows(self, x: torch.Tensor, slab: Slab) -> torch.Tensor:
        (n, (before, after)) = self.grid[0], self.padding[0]
        if not before and not after:
            return x
        rows = torch.arange(n, dtype=torch.float64).view(1, 1, n)
        if self.mode == "zeros":
            rows = F.pad(rows, (before, after), value=-1)
        else:
            rows = F.pad(rows, (before, after), mode=self.mode)
        return rearrange_rows(slab, x, n, rows.flatten().to(torch.int64).tolist())


class MixOnGrid(NamedTuple):
    """A spectral product between two grids: kept modes, and its terms' weights [*modes, c_in, c_out] and phases.

    Phases are as in `SpectralTerm`; a weight may be a process's share, as in `Slab.on_sum`.
    """

    size: Size
    out_size: Size
    modes: Size
    weights: tuple[torch.Tensor, ...]
    phases: tuple[torch.Tensor | None, ...]


def size_after(frame: PaddedGrid, on_grid: list[MixOnGrid]) -> Size:
    """Return the grid of the network's output."""
    return frame.grid if frame.padded != frame.grid else on_grid[-1].out_size


def mixes_on_grid(chain: Chain, size: Size, *, shapes_only: bool = False) -> list[MixOnGrid]:
    """Return the products of a chain on the padded grid `size`; with `shapes_only` their weights are on the meta device."""
    found = []
    for mix in chain.items:
        if isinstance(mix, Mix):
            found.append(_mix_on_grid(mix, size, shapes_only=shapes_only))
            size = found[-1].out_size
    return found


def _mix_on_grid(mix: Mix, size: Size, *, shapes_only: bool) -> MixOnGrid:
    out_size = size if mix.out_size is None else mix.out_size(size)
    weight = mix.weight.to("meta") if shapes_only else mix.weight
    if mix.terms is None:
        return MixOnGrid(size, out_size, tuple(weight.shape[:-2]), (weight,), (None,))
    n_dim = len(size)
    channels_first = weight.permute(n_dim, n_dim + 1, *range(n_dim))
    weights, phases = zip(*mix.terms(channels_first, size, out_size), strict=True)
    modes = tuple(weights[0].shape[2:])
    on_grid = tuple(mode_major(w).contiguous() for w in weights)
    return MixOnGrid(size, out_size, modes, on_grid, phases)


def _share(product: MixOnGrid, slab: Slab, device: torch.device) -> MixOnGrid:
    """Return a product with this process's share of its weights, on a device."""
    shares = (slab.share_of(weight.flatten(0, -4)).to(device) for weight in product.weights)
    return product._replace(weights=tuple(shares))


class Pass:
    """A chain on one grid.

    Its buffers hold x - shift and, written once, the channels that depend on the grid only: positions, ones, and
    zeros in a zero-padded domain. With a `slab`, `size` is the whole grid, and all tensors are this process's slabs.
    """

    def __init__(
        self,
        chain: Chain,
        size: Size,
        make_stages: MakeStages,
        *,
        device: torch.device,
        slab: Slab | None = None,
    ) -> None:
        self._chain, self._slab = chain, slab
        self._padded_grid = PaddedGrid.of(chain, size, slab)
        broadcast = (-1, *[1] * chain.n_dim)
        self._shift, self._scale = (
            per_channel.view(broadcast)
            if per_channel is not None and per_channel.ndim == 1
            else self._own(per_channel)
            for per_channel in (chain.shift, chain.scale)
        )
        self._rescaling = chain.rescaling
        if chain.rescaling is not None:
            of = chain.rescaling
            self._rescaling = Scaling(self._own(of.mean), self._own(of.std))
        self._grid = size if slab is None else slab.local(size)
        # on the CPU, whatever torch's default device is
        constant = [torch.empty(0, *self._grid, dtype=torch.float64, device="cpu")]
        if chain.positions is not None:
            constant.append(self._own(chain.positions(size)).cpu())
        if chain.ones:
            constant.append(torch.ones(1, *self._grid, dtype=torch.float64, device="cpu"))
        self._constant = torch.cat(constant).to(device, chain.dtype)
        # a slab is padded in `run`, because that moves rows between processes
        self._pads_input = chain.padding_mode == "zeros" and not chain.lifting and slab is None
        self._mixes = [
            product if slab is None or not sharded else _share(product, slab, device)
            for product, sharded in zip(
                mixes_on_grid(chain, self._padded_grid.padded),
                (item.sharded for item in chain.items if isinstance(item, Mix)),
                strict=True,
            )
        ]
        self._factors = [
            [
                _factor(self._own(phase, axis=0), weight)
                for phase, weight in zip(product.phases, product.weights, strict=True)
            ]
            for product in self._mixes
        ]
        self._stages = _stages_of(self._mixes, make_stages)

    @property
    def nbytes(self) -> int:
        """Bytes of the channels, weights and memory shared with other processes that belong to this grid only."""
        given = {mix.weight.data_ptr() for mix in self._chain.items if isinstance(mix, Mix)}
        weights = [weight for product in self._mixes for weight in product.weights]
        own = sum(weight.nbytes for weight in weights if weight.data_ptr() not in given)
        return self._constant.nbytes + own + sum(of.peer_bytes for of in {*self._stages})

    def buffer(self, batch: int) -> torch.Tensor:
        """Allocate the input of a batch, complete except x: [batch, channels, *grid], zero-padded if the domain is."""
        shape = self._padded_grid.padded if self._pads_input else self._grid
        channels = self._chain.in_channels + self._constant.shape[0]
        # zeros, because the elements beyond a smaller batch are computed too
        buffer = self._constant.new_zeros(batch, channels, *shape)
        self._crop(buffer)[:, self._chain.in_channels :] = self._constant
        return buffer

    def input_view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the view of the buffer that holds x, [batch, in_channels, *grid]."""
        return self._crop(buffer)[:, : self._chain.in_channels]

    def load(self, x: torch.Tensor, input_view: torch.Tensor) -> None:
        """Write x, in physical units, to `input_view`, a view of the same batch size."""
        if self._shift is None:
            input_view.copy_(x)
        else:
            torch.sub(x, self._shift, out=input_view)
        if self._scale is not None:
            input_view.mul_(self._scale)

    def run(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the network's output in physical units, [batch, out_channels, *out_size]; it may be a view."""
        chain = self._chain
        y = self._run_items(buffer)
        if self._slab is not None:
            y = self._padded_grid.crop(y)
        if chain.tail:
            y = apply_maps(y.to(chain.dtype), chain.tail, chain.tail_activation)
        if self._rescaling is not None:
            y = y * self._rescaling.std + self._rescaling.mean
        return y

    def _run_items(self, buffer: torch.Tensor) -> torch.Tensor:
        """Run all items and return the result as [batch, channels, *grid]; the last one without the padding, but for slabs."""
        operands, count = self._first_operands(buffer), 0
        wrote = Results()
        last = self._chain.items[-1]
        for item in self._chain.items:
            stages = self._stages[count]
            if isinstance(item, Tile):
                window = self._padded_grid.window if item is last else None
                wrote = stages.tile(item.steps, operands, window)
                x = operands.x if wrote.x is None else wrote.x
                operands = Operands(x, wrote.saved, wrote.moments)
            else:
                mixed = self._mix(stages, wrote.spectra, count)
                count += 1
                x = operands.x
                if item.resamples_x:
                    x = self._resample(x, stages, count)
                # drop all other references, so that the memory is reused
                operands, wrote = Operands(x=x, mixed=mixed), Results()
                del mixed
        if wrote.out is not None:
            return wrote.out
        assert operands.saved is not None
        return self._stages[count].plain(operands.saved)

    def _first_operands(self, buffer: torch.Tensor) -> Operands:
        chain, first = self._chain, self._chain.items[0]
        assert isinstance(first, Tile)
        x = buffer
        if chain.lifting:
            x = apply_maps(buffer, chain.lifting, chain.lifting_activation)
        if not self._pads_input:
            x = self._padded_grid.pad(x)
        match first.steps[0]:
            case Source():
                return Operands(x=x)
            case AddMap():
                return Operands(x=self._stages[0].convert(x))
            case Restore():
                field = self._stages[0].convert(x)
                return Operands(x=field, saved=field)
            case other:
                raise ValueError(f"a chain cannot begin with {other}")

    def _mix(self, stages: Stages, spectra: torch.Tensor | None, count: int) -> torch.Tensor:
        assert spectra is not None
        terms = [
            stages.mix(spectra, weight) if factor is None else stages.mix(spectra, weight) * factor
            for weight, factor in zip(self._mixes[count].weights, self._factors[count], strict=True)
        ]
        return sum(terms[1:], start=terms[0])

    def _resample(self, x: torch.Tensor | None, stages: Stages, count: int) -> torch.Tensor:
        assert x is not None
        assert self._chain.resample is not None
        # PyTorch's interpolation is slow on channels-last memory
        plain = stages.plain(x).to(self._chain.dtype).contiguous()
        product = self._mixes[count - 1]
        if self._slab is None:
            finer = self._chain.resample(plain, product.out_size)
        else:
            finer = _resample_slab(self._slab, plain, product, self._chain.resample)
        return self._stages[count].convert(finer)

    @overload
    def _own(self, field: torch.Tensor, axis: int = 1) -> torch.Tensor: ...

    @overload
    def _own(self, field: torch.Tensor | None, axis: int = 1) -> torch.Tensor | None: ...

    def _own(self, field: torch.Tensor | None, axis: int = 1) -> torch.Tensor | None:
        """Return this process's rows of a whole field."""
        if field is None or self._slab is None:
            return field
        return self._slab.cut(field, axis)

    def _crop(self, buffer: torch.Tensor) -> torch.Tensor:
        return self._padded_grid.crop(buffer) if self._pads_input else buffer


def _factor(phase: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor | None:
    """Return exp(i phase) for mixed spectra [batch, channels, *others, modes]."""
    if phase is None:
        return None
    turned = torch.polar(torch.ones_like(phase), phase)
    return turned.to(weight.device, weight.dtype).unsqueeze(-1)


def _resample_slab(
    slab: Slab,
    x: torch.Tensor,
    product: MixOnGrid,
    resample: Callable[[torch.Tensor, Size], torch.Tensor],
) -> torch.Tensor:
    """Resample a slab: each process resamples whole fields of some channels, because all are treated alike."""
    channels = x.flatten(0, 1)
    whole = recut(slab, channels, cut=1, to=0, points=product.size[0])
    finer = whole.new_empty(len(whole), *product.out_size)
    if len(whole):
        finer = resample(whole.unsqueeze(0), product.out_size).squeeze(0)
    back = recut(slab, finer, cut=0, to=1, points=len(channels))
    return back.unflatten(0, x.shape[:2])


def _stages_of(mixes: list[MixOnGrid], make: MakeStages) -> list[Stages]:
    """Return the stages of each product, which also run the tile program before it, and those of the last program."""
    last = mixes[-1]
    wanted = [(product.size, product.modes, product.out_size) for product in mixes]
    wanted.append((last.out_size, last.modes, last.out_size))
    made = {key: make(*key) for key in dict.fromkeys(wanted)}
    return [made[key] for key in wanted]


def bytes_per_element(chain: Chain, on_grid: list[MixOnGrid], field_dtype: torch.dtype) -> int:
    """Estimate the peak bytes of one batch element during a pass: three fields and their spectra at a time.

    Channel MLPs that no kernel holds store further fields.
    """
    most = 0
    steps = [step for item in chain.items if isinstance(item, Tile) for step in item.steps]
    stored = max((stored_channels(s) for s in steps if isinstance(s, MLP | Project)), default=0)
    for product in on_grid:
        points = max(math.prod(product.size), math.prod(product.out_size))
        lines = points // product.size[-1] + 1
        width = max(sum(weight.shape[-2:]) for weight in product.weights)
        spectra = 3 * width * product.modes[-1] * chain.dtype.to_complex().itemsize
        most = max(most, (width + stored) * points * field_dtype.itemsize + lines * spectra)
    points = math.prod(on_grid[0].size)
    widths = [m.weight.shape[0] for m in (*chain.lifting, *chain.tail)]
    return most + 2 * max(widths, default=0) * chain.dtype.itemsize * points
