"""A chain on one grid: its input buffer and its forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from turbofno_ops._activations import activate
from turbofno_ops._channels import mode_major, pointwise
from turbofno_ops._lower import Chain, Mix, Tile
from turbofno_ops._stages import AddMap, Operands, Restore, Results, Source, Stages
from turbofno_ops.description import PaddingMode, PointwiseMap, Size

MakeStages = Callable[[Size, Size, Size], Stages]
"""Makes the stages of a grid, given the modes that its mix keeps and the grid that the mix returns."""


@dataclass(frozen=True)
class PaddedGrid:
    """A grid with padding points (before, after) each axis."""

    grid: Size
    padding: tuple[tuple[int, int], ...]
    mode: PaddingMode

    @classmethod
    def of(cls, chain: Chain, size: Size) -> PaddedGrid:
        """Return a grid with the padding of a chain."""
        pairs = () if chain.padding is None else tuple(chain.padding(size))
        return cls(size, pairs or ((0, 0),) * len(size), chain.padding_mode)

    @property
    def padded(self) -> Size:
        """The grid's size with padding."""
        return tuple(
            n + before + after for n, (before, after) in zip(self.grid, self.padding, strict=True)
        )

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """Pad [.., *grid] to [.., *padded]."""
        if self.padded == self.grid:
            return x
        # F.pad counts from the last axis
        amounts = [amount for pair in reversed(self.padding) for amount in pair]
        return F.pad(x, amounts, mode="constant" if self.mode == "zeros" else self.mode)

    def crop(self, x: torch.Tensor) -> torch.Tensor:
        """Return the view [batch, channels, *grid] of a padded field."""
        if self.padded == self.grid:
            return x
        for axis, (n, (before, _)) in enumerate(zip(self.grid, self.padding, strict=True), start=2):
            x = x.narrow(axis, before, n)
        return x


class MixOnGrid(NamedTuple):
    """A spectral product between two grids: its terms' weights [*modes, c_in, c_out] and phases, as in `SpectralTerm`."""

    size: Size
    out_size: Size
    weights: tuple[torch.Tensor, ...]
    phases: tuple[torch.Tensor | None, ...]

    @property
    def modes(self) -> Size:
        """Kept modes of all terms."""
        return tuple(self.weights[0].shape[:-2])


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
        return MixOnGrid(size, out_size, (weight,), (None,))
    n_dim = len(size)
    channels_first = weight.permute(n_dim, n_dim + 1, *range(n_dim))
    weights, phases = zip(*mix.terms(channels_first, size, out_size), strict=True)
    return MixOnGrid(size, out_size, tuple(mode_major(w).contiguous() for w in weights), phases)


class Pass:
    """A chain on one grid.

    Its buffers hold x - shift and, written once, the channels that depend on the grid only: positions, ones, and
    zeros in a zero-padded domain.
    """

    def __init__(
        self,
        chain: Chain,
        size: Size,
        make_stages: MakeStages,
        *,
        device: torch.device,
    ) -> None:
        self._chain, self._padded_grid = chain, PaddedGrid.of(chain, size)
        broadcast = (-1, *[1] * chain.n_dim)
        self._shift, self._scale = (
            per_channel.view(broadcast)
            if per_channel is not None and per_channel.ndim == 1
            else per_channel
            for per_channel in (chain.shift, chain.scale)
        )
        constant = [torch.empty(0, *size, dtype=torch.float64)]
        if chain.positions is not None:
            constant.append(chain.positions(size))
        if chain.ones:
            constant.append(torch.ones(1, *size, dtype=torch.float64))
        self._constant = torch.cat(constant).to(device, chain.dtype)
        self._pads_input = chain.padding_mode == "zeros" and not chain.lifting
        self._mixes = mixes_on_grid(chain, self._padded_grid.padded)
        self._factors = [
            [
                _factor(phase, weight)
                for phase, weight in zip(product.phases, product.weights, strict=True)
            ]
            for product in self._mixes
        ]
        self._stages = _stages_of(self._mixes, make_stages)

    @property
    def nbytes(self) -> int:
        """Bytes of the channels and weights that belong to this grid only."""
        given = {mix.weight.data_ptr() for mix in self._chain.items if isinstance(mix, Mix)}
        weights = [weight for product in self._mixes for weight in product.weights]
        own = sum(weight.nbytes for weight in weights if weight.data_ptr() not in given)
        return self._constant.nbytes + own

    def buffer(self, batch: int) -> torch.Tensor:
        """Allocate the input of a batch, complete except x: [batch, channels, *grid], zero-padded if the domain is."""
        shape = self._padded_grid.padded if self._pads_input else self._padded_grid.grid
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
        """Return the network's output in physical units, [batch, out_channels, *out_size]; a view if it was cropped."""
        chain = self._chain
        y = self._padded_grid.crop(self._run_items(buffer))
        if chain.tail:
            y = _apply_maps(y.to(chain.dtype), chain.tail, chain.tail_activation)
        if chain.rescaling is not None:
            y = y * chain.rescaling.std + chain.rescaling.mean
        return y

    def _run_items(self, buffer: torch.Tensor) -> torch.Tensor:
        """Run all items and return the result as [batch, channels, *grid]."""
        operands, count = self._first_operands(buffer), 0
        wrote = Results()
        for item in self._chain.items:
            stages = self._stages[count]
            if isinstance(item, Tile):
                wrote = stages.tile(item.steps, operands)
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
            x = _apply_maps(buffer, chain.lifting, chain.lifting_activation)
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
        plain = stages.plain(x).to(self._chain.dtype)
        finer = self._chain.resample(plain, self._mixes[count - 1].out_size)
        return self._stages[count].convert(finer)

    def _crop(self, buffer: torch.Tensor) -> torch.Tensor:
        return self._padded_grid.crop(buffer) if self._pads_input else buffer


def _factor(phase: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor | None:
    """Return exp(i phase) for mixed spectra [batch, channels, *others, modes]."""
    if phase is None:
        return None
    turned = torch.polar(torch.ones_like(phase), phase)
    return turned.to(weight.device, weight.dtype).unsqueeze(-1)


def _stages_of(mixes: list[MixOnGrid], make: MakeStages) -> list[Stages]:
    """Return the stages of each product, which also run the tile program before it, and those of the last program."""
    last = mixes[-1]
    wanted = [(product.size, product.modes, product.out_size) for product in mixes]
    wanted.append((last.out_size, last.modes, last.out_size))
    made = {key: make(*key) for key in dict.fromkeys(wanted)}
    return [made[key] for key in wanted]


def _apply_maps(x: torch.Tensor, maps: tuple[PointwiseMap, ...], activation: str) -> torch.Tensor:
    for i, linear in enumerate(maps):
        x = pointwise(activate(x, activation) if i else x, linear.weight, linear.bias)
    return x


def bytes_per_element(chain: Chain, on_grid: list[MixOnGrid], field_dtype: torch.dtype) -> int:
    """Estimate the peak bytes of one batch element during a pass: three fields and their spectra at a time."""
    most = 0
    for product in on_grid:
        points = max(math.prod(product.size), math.prod(product.out_size))
        lines = points // product.size[-1] + 1
        width = max(sum(weight.shape[-2:]) for weight in product.weights)
        spectra = 3 * width * product.modes[-1] * chain.dtype.to_complex().itemsize
        most = max(most, width * points * field_dtype.itemsize + lines * spectra)
    points = math.prod(on_grid[0].size)
    widths = [m.weight.shape[0] for m in (*chain.lifting, *chain.tail)]
    return most + 2 * max(widths, default=0) * chain.dtype.itemsize * points
