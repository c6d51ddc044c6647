"""A single Fourier layer on the CUDA kernels: support check, plan, launches.

Plans are cached by shape and hold no weights. Weights are packed at every call: PyTorch does not report every change of a
tensor (`weight.data.mul_(..)` leaves `_version` unchanged), and a CUDA graph must read the current weights at each replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from turbofno_ops._channels import mode_major
from turbofno_ops._cuda import CudaStages
from turbofno_ops._gemm import _tables
from turbofno_ops._slab import Slab
from turbofno_ops._spectral_product import row_modes
from turbofno_ops._stages import (
    Activate,
    AddMap,
    Affine,
    Analyze,
    Operands,
    Source,
    Step,
    Store,
    Synthesis,
)
from turbofno_ops._support import gpu_refusal, product_refusal, program_refusal
from turbofno_ops._tile_program import Weighted, readable
from turbofno_ops.description import Size

_MAX_CHECKED_SHAPES = 4096
_HOST_BYTES = 32 * 1024  # estimate for a plan's structures and steps
_BEFORE: tuple[Step, ...] = (Source(), Analyze())


class _LayerShape(NamedTuple):
    """Cache key of a plan: shapes and steps of a layer. With a slab, the sizes are of the whole grids."""

    batch: int
    channels: tuple[int, int]
    size: Size
    out_size: Size
    modes: Size
    has_skip: bool
    has_bias: bool
    activation: str
    precision: str
    device: torch.device
    slab: Slab | None


class _Plan:
    """Stages and programs of a layer shape. `skip` and `bias` are placeholders for the weights of a call."""

    def __init__(self, shape: _LayerShape) -> None:
        c_in, c_out = shape.channels
        self.skip = AddMap(torch.empty(c_out, c_in, device="meta"))
        self.bias = Affine(None, torch.empty(c_out, device="meta"))
        after: list[Step] = [Synthesis()]
        if shape.has_skip:
            after.append(self.skip)
        if shape.has_bias:
            after.append(self.bias)
        if shape.activation != "none":
            after.append(Activate(shape.activation))
        after.append(Store())
        self.stages = self.stages_after = _stages(shape, shape.size)
        if shape.out_size != shape.size:
            self.stages_after = _stages(shape, shape.out_size)
        in_shape = self.stages.shape(
            batch=shape.batch, channels=c_in, x_channels=c_in, x_channel_first=True, modes=0
        )
        self._before = self.stages.programs.prepare(_BEFORE, in_shape)
        mixed_shape = in_shape._replace(
            grid=self.stages_after.size, channels=c_out, modes=in_shape.next_modes
        )
        self.after = self.stages_after.programs.prepare(tuple(after), mixed_shape)
        tables = sum(stages.nbytes for stages in {self.stages, self.stages_after})
        self.nbytes = tables + _HOST_BYTES

    def analyze(self, x: torch.Tensor) -> torch.Tensor:
        """Return the spectra of the rows of a contiguous field."""
        spectra = self.stages.run(self._before, Operands(x=x)).spectra
        assert spectra is not None
        return spectra


def _stages(shape: _LayerShape, size: Size) -> CudaStages:
    return CudaStages(
        size,
        shape.modes,
        out_size=shape.out_size,
        device=shape.device,
        precision=shape.precision,
        settled=False,
        slab=shape.slab,
    )


@_tables.cached
def _plan(shape: _LayerShape) -> _Plan:
    return _Plan(shape)


def refusal(
    x: torch.Tensor,
    weight: torch.Tensor,
    out_size: Sequence[int],
    precision: str,
    size: Sequence[int] | None = None,
) -> str | None:
    """Return the reason why the CUDA kernels do not support this layer, or None if they do; on `size` instead of x's grid."""
    if not x.is_cuda:
        return f"x is on {x.device}"
    refused = gpu_refusal(x.device)
    if refused is not None:
        return refused
    if x.dtype != torch.float32:
        return f"they compute in float32, x is {x.dtype}"
    return _layer_refusal(
        x.shape[0],
        (weight.shape[0], weight.shape[1]),
        tuple(x.shape[2:] if size is None else size),
        tuple(out_size),
        tuple(weight.shape[2:]),
        precision,
        x.device,
    )


@lru_cache(_MAX_CHECKED_SHAPES)
def _layer_refusal(
    batch: int,
    channels: tuple[int, int],
    size: Size,
    out_size: Size,
    modes: Size,
    precision: str,
    device: torch.device,
) -> str | None:
    c_in, c_out = channels
    row = row_modes(modes, size, out_size)
    skip = AddMap(torch.empty(c_out, c_in, device="meta"))
    reason = product_refusal(batch, c_in, c_out, size, out_size, modes, precision)
    for steps, many, grid in (
        (_BEFORE, c_in, size),
        ((Synthesis(), skip, Store()), c_out, out_size),
    ):
        reason = reason or program_refusal(
            steps,
            batch=batch,
            channels=many,
            channels_of_x=c_in,
            size=grid,
            modes=row,
            next_modes=row,
            precision=precision,
            device=device,
        )
    return reason


def layer(
    x: torch.Tensor,
    weight: torch.Tensor,
    skip_weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
    out_size: Sequence[int],
    precision: str,
    *,
    slab: Slab | None = None,
    size: Sequence[int] | None = None,
) -> torch.Tensor:
    """Return activation(spectral_conv(x, weight) + skip_weight x + bias), for a layer without `refusal`.

    With a slab, x and the result are its part of the whole grids `size` and `out_size`.
    """
    batch = x.shape[0]
    c_in, c_out, *modes = weight.shape
    plan = _plan(
        _LayerShape(
            batch,
            (c_in, c_out),
            tuple(x.shape[2:] if size is None else size),
            tuple(out_size),
            tuple(modes),
            skip_weight is not None,
            bias is not None,
            activation,
            precision,
            x.device,
            slab,
        )
    )
    weights: dict[Weighted, Weighted] = {}
    if skip_weight is not None:
        weights[plan.skip] = AddMap(skip_weight)
    if bias is not None:
        weights[plan.bias] = Affine(None, bias)
    x = readable(x)
    with torch.cuda.device(x.device):
        mixed = plan.stages.mix(plan.analyze(x), readable(mode_major(weight)))
        given = Operands(x=x, mixed=mixed)
        y = plan.stages_after.run(plan.after, given, channel_first=True, weights=weights).x
    assert isinstance(y, torch.Tensor)
    return y
