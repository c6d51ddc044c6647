"""The stages in plain PyTorch, on the matrix products of _gemm: float32 or float64, any device, any number of axes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from turbofno_ops import _gemm
from turbofno_ops._activations import activate_in_place
from turbofno_ops._channels import apply_maps, mix, pointwise
from turbofno_ops._modes import Rows, column_weights
from turbofno_ops._slab import Slab
from turbofno_ops._stages import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Analyze,
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
from turbofno_ops.description import Size


@dataclass(frozen=True)
class TorchStages:
    """Stages on the grid `size` whose mix keeps `modes` and returns the grid `out_size`; fields are `slab`'s of them."""

    size: Size
    modes: Size
    out_size: Size
    slab: Slab | None = None
    peer_bytes = 0

    def tile(
        self, steps: tuple[Step, ...], operands: Operands, window: Window | None = None
    ) -> Results:
        run = _TileRun(self, operands, window)
        for step in steps:
            run.step(step)
        return Results(run.stored, run.saved, run.moments, run.spectra, run.out)

    def mix(self, spectra: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        others = self.modes[:-1]
        if self.slab is None:
            z = mix(_gemm.analyze_others(spectra, others), weight)
            return _gemm.synthesize_others(z, self.out_size[:-1])
        part = _gemm.analyze_others(spectra, others, self.slab.rows(self.size[0])).contiguous()
        z = self.slab.on_sum(part.flatten(0, -4), weight, mix).unflatten(0, others)
        sizes = self.slab.local(self.out_size[:-1])
        return _gemm.synthesize_others(z, sizes, self.slab.rows(self.out_size[0]))

    def convert(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous()

    def plain(self, field: torch.Tensor) -> torch.Tensor:
        return field


class _TileRun:
    """State of a running tile program: y and the results so far."""

    def __init__(self, stages: TorchStages, operands: Operands, window: Window | None) -> None:
        self._stages, self._window = stages, window
        x, saved = (self._part(field) for field in (operands.x, operands.saved))
        self._operands = replace(operands, x=x, saved=saved)
        self._y = torch.empty(0)
        self._shared = False
        self.stored: torch.Tensor | None = None
        self.saved: torch.Tensor | None = None
        self.moments: torch.Tensor | None = None
        self.spectra: torch.Tensor | None = None
        self.out: torch.Tensor | None = None

    def step(self, step: Step) -> None:
        """Run one step, in place if y is not shared."""
        size, given, y = self._stages.size, self._operands, self._y
        match step:
            case Source():
                self._y, self._shared = _required(given.x), True
            case Restore():
                self._y, self._shared = _required(given.saved), True
            case Synthesis():
                self._y = self._synthesis(_required(given.mixed))
            case Affine(scale, shift):
                if scale is not None:
                    self._own().mul_(_channelwise(scale, y))
                if shift is not None:
                    self._own().add_(_channelwise(shift, y))
            case Normalize():
                moments = given.moments
                if moments is None:
                    moments = self._of_all(_moments_of_mixed(_required(given.mixed), size[-1]))
                _normalize(self._own(), moments, step)
            case AddMap(weight):
                x = _required(given.x)
                if y.numel() == 0:
                    self._y = pointwise(x, weight, None)
                else:
                    matrices = weight.expand(x.shape[0], -1, -1)
                    self._own().flatten(2).baddbmm_(matrices, x.flatten(2))
            case AddGate(weight):
                self._own().addcmul_(_required(given.x), _channelwise(weight, y))
            case Activate(activation):
                self._y = activate_in_place(self._own(), activation)
            case MLP(first, activation, second):
                self._y, self._shared = apply_maps(y, (first, second), activation), False
            case Store():
                self.stored, self._shared = y, True
            case Save(moments):
                self.saved = y
                self.moments = self._of_all(_moments(y)) if moments else None
            case Analyze():
                self.spectra = _gemm.analyze_last(y, self._stages.modes[-1])
            case Project(maps, activation):
                self.out = apply_maps(y, maps, activation)

    def _part(self, field: torch.Tensor | None) -> torch.Tensor | None:
        return field if field is None or self._window is None else part_of(field, self._window)

    def _synthesis(self, mixed: torch.Tensor) -> torch.Tensor:
        if self._window is None:
            return _gemm.synthesize_last(mixed, Rows.whole(self._stages.size[-1]))
        *others, last = self._window
        return _gemm.synthesize_last(part_of(mixed, others), last)

    def _of_all(self, moments: torch.Tensor) -> torch.Tensor:
        """Return the moments over the whole grid."""
        slab = self._stages.slab
        if slab is None:
            return moments
        mean, variance = moments
        return torch.stack(slab.moments(mean, variance, self._stages.size[0]))

    def _own(self) -> torch.Tensor:
        """Return y, contiguous and in memory of its own."""
        if self._shared:
            self._y, self._shared = self._y.clone(memory_format=torch.contiguous_format), False
        return self._y


def _required(operand: torch.Tensor | None) -> torch.Tensor:
    if operand is None:
        raise ValueError("an operand of the tile program is missing")
    return operand


def _channelwise(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.view(-1, *[1] * (like.ndim - 2))


def _moments(y: torch.Tensor) -> torch.Tensor:
    """Return mean and variance over the grid, [2, batch, channels]."""
    variance, mean = torch.var_mean(y.flatten(2), dim=2, correction=0)
    return torch.stack([mean, variance])


def _moments_of_mixed(mixed: torch.Tensor, points: int) -> torch.Tensor:
    """Return the moments of the field with the mixed spectra [batch, channels, *others, modes], by Parseval.

    Only the real part of the DC and Nyquist columns is in the field.
    """
    count = mixed.shape[-1]
    lines = mixed.reshape(*mixed.shape[:2], -1, count)
    constant = lines[..., 0].real
    mean = constant.mean(-1)
    power = (constant - mean[..., None]).square()
    weights = column_weights(count, points, dtype=mean.dtype, device=mean.device)
    weights = weights.unsqueeze(-1).repeat(1, 2)
    weights[:, 1] *= weights[:, 0] == 2
    squares = torch.view_as_real(lines[..., 1:]).square() * weights[1:]
    return torch.stack([mean, (power + squares.sum((-1, -2))).mean(-1)])


def _normalize(y: torch.Tensor, moments: torch.Tensor, norm: Normalize) -> None:
    """Normalize y in place."""
    mean, variance = moments
    if norm.offset is not None:
        mean = mean + norm.offset
    batch, channels = mean.shape
    grouped = (batch, norm.groups, channels // norm.groups)
    means = mean.view(grouped)
    group_mean = means.mean(-1, keepdim=True)
    spread = variance.view(grouped) + (means - group_mean).square()
    factor = (spread.mean(-1, keepdim=True) + norm.eps).rsqrt().expand(grouped).reshape(mean.shape)
    center = group_mean.expand(grouped).reshape(mean.shape)
    if norm.offset is not None:
        center = center - norm.offset
    if norm.scale is not None:
        factor = factor * norm.scale
    grid = (1,) * (y.ndim - 2)
    y.sub_(center.view(batch, channels, *grid)).mul_(factor.view(batch, channels, *grid))
    if norm.shift is not None:
        y.add_(_channelwise(norm.shift, y))
