"""A chain on one grid: the buffer it reads, how a batch gets there, and the pass over all stages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from turbofno_ops._activations import activate
from turbofno_ops._channels import pointwise
from turbofno_ops._fold import Chain
from turbofno_ops._stages import Stages, two_axes
from turbofno_ops.description import PointwiseMap, Size


@dataclass(frozen=True)
class Frame:
    """A grid (h, w) and the points of padding before and after its axes."""

    grid: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]

    @classmethod
    def of(cls, chain: Chain, size: Size) -> Frame:
        """The frame that a chain puts around a grid of one or two axes."""
        pairs = [(0, 0)] * 2
        if chain.padding is not None:
            pairs += chain.padding(size)
        (top, bottom), (left, right) = pairs[-2:]
        return cls(two_axes(size), (top, left), (bottom, right))

    @property
    def padded(self) -> tuple[int, int]:
        """Points of both axes with their padding."""
        (h, w), (top, left), (bottom, right) = self.grid, self.before, self.after
        return top + h + bottom, left + w + right

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """Zeros around [.., h, w]."""
        (top, left), (bottom, right) = self.before, self.after
        return F.pad(x, (left, right, top, bottom)) if self.padded != self.grid else x

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """The view without padding of a padded [.., h, w]."""
        (h, w), (top, left) = self.grid, self.before
        return x[..., top : top + h, left : left + w]


class Pass:
    """A chain for the fields of one grid.

    Its buffers hold x less its mean and, written once, the channels that depend on the grid alone:
    positions, ones, and zeros where the domain is padded.
    """

    def __init__(
        self,
        chain: Chain,
        size: Size,
        stages: Stages,
        *,
        device: torch.device,
        field_dtype: torch.dtype,
    ) -> None:
        self._chain, self._stages, self._field_dtype = chain, stages, field_dtype
        self._frame = Frame.of(chain, size)
        broadcast = (-1, *[1] * chain.n_dim)
        self._shift = None if chain.shift is None else chain.shift.view(broadcast)
        self._scale = None if chain.scale is None else chain.scale.view(broadcast)
        constant = [torch.empty(0, *size, dtype=torch.float64)]
        if chain.positions is not None:
            constant.append(chain.positions(size))
        if chain.ones:
            constant.append(torch.ones(1, *size, dtype=torch.float64))
        # what plain torch lifts is padded and rounded afterwards
        dtype = chain.dtype if chain.lifting else field_dtype
        self._constant = torch.cat(constant).view(-1, *self._frame.grid).to(device, dtype)

    @property
    def nbytes(self) -> int:
        """Of the channels that are the same for all batches."""
        return self._constant.nbytes

    def buffer(self, batch: int) -> torch.Tensor:
        """Room for a batch, everything in place but x: [batch, channels, h, w]."""
        shape = self._frame.grid if self._chain.lifting else self._frame.padded
        channels = self._chain.in_channels + self._constant.shape[0]
        # zeros also because a batch may fill a part only, and the rest is computed all the same
        buffer = self._constant.new_zeros(batch, channels, *shape)
        self._inside(buffer)[:, self._chain.in_channels :] = self._constant
        return buffer

    def slot(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer's view that x goes to, [batch, in_channels, *grid]."""
        slot = self._inside(buffer)[:, : self._chain.in_channels]
        return slot.squeeze(2) if self._chain.n_dim == 1 else slot

    def load(self, x: torch.Tensor, slot: torch.Tensor) -> None:
        """Write x, in physical units, to as many elements of a slot."""
        if self._shift is None:
            slot.copy_(x)
        else:
            torch.sub(x, self._shift, out=slot)
        if self._scale is not None:
            slot.mul_(self._scale)

    def run(self, buffer: torch.Tensor) -> torch.Tensor:
        """The network's output in physical units: [batch, out_channels, *grid], a view where padding was cut off."""
        y = self._chained(buffer)
        return y.squeeze(2) if self._chain.n_dim == 1 else y

    def _chained(self, buffer: torch.Tensor) -> torch.Tensor:
        chain, stages = self._chain, self._stages
        x = buffer
        if chain.lifting:
            lifted = _mapped(buffer, chain.lifting, chain.lifting_activation)
            x = self._frame.pad(lifted).to(self._field_dtype)
        spectra = stages.analyze(x)
        *inner, last = chain.layers
        for layer in inner:
            x, spectra = stages.rows(stages.mix(spectra, layer), x, layer, last=False)
        mixed = stages.mix(spectra, last)
        if chain.projection is not None:
            return self._frame.inside(stages.project(mixed, x, last, chain.projection))
        x, _ = stages.rows(mixed, x, last, last=True)
        left = self._frame.inside(x).to(chain.dtype)
        return _mapped(left, chain.tail, chain.tail_activation)

    def _inside(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer if self._chain.lifting else self._frame.inside(buffer)


def _mapped(x: torch.Tensor, maps: tuple[PointwiseMap, ...], activation: str) -> torch.Tensor:
    for i, linear in enumerate(maps):
        x = pointwise(activate(x, activation) if i else x, linear.weight, linear.bias)
    return x


def bytes_of_one(chain: Chain, frame: Frame, field_dtype: torch.dtype) -> int:
    """About the most that one element of a batch takes during a pass: two fields and their spectra at a time."""
    h, w = frame.padded
    widest = max(sum(layer.weight.shape[2:]) for layer in chain.layers)
    widths = [m.weight.shape[0] for m in (*chain.lifting, *chain.tail)]
    in_torch = 2 * max(widths, default=0) * chain.dtype.itemsize
    spectra = 3 * widest * chain.modes[1] * chain.dtype.to_complex().itemsize
    return h * w * (widest * field_dtype.itemsize + in_torch) + h * spectra
