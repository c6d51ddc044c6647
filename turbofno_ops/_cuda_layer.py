"""A Fourier layer on its own through the CUDA kernels: whether they take it, and its two tile programs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from turbofno_ops._channels import mode_major
from turbofno_ops._cuda import (
    CudaStages,
    gpu_refusal,
    mix_refusal,
    program_refusal,
    readable,
)
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
from turbofno_ops.description import Size


def _layer_programs(
    skip: torch.Tensor | None, bias: torch.Tensor | None, activation: str
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The two tile programs of a layer on its own, before and after its mix."""
    after: list[Step] = [Synthesis()]
    if skip is not None:
        after.append(AddMap(skip))
    if bias is not None:
        after.append(Affine(None, bias))
    if activation != "none":
        after.append(Activate(activation))
    return (Source(), Analyze()), (*after, Store())


def refusal(
    x: torch.Tensor, weight: torch.Tensor, out_size: Sequence[int], precision: str
) -> str | None:
    """Why the CUDA kernels do not take this layer, in words, or None if they do."""
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
        tuple(x.shape[2:]),
        tuple(out_size),
        tuple(weight.shape[2:]),
        precision,
        x.device,
    )


@cache
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
    before, after = _layer_programs(torch.empty(c_out, c_in, device="meta"), None, "none")
    reason = mix_refusal(batch, c_in, c_out, size, out_size, modes, precision)
    for steps, many, grid in ((before, c_in, size), (after, c_out, out_size)):
        reason = reason or program_refusal(
            steps,
            batch=batch,
            channels=many,
            channels_of_x=c_in,
            size=grid,
            modes=modes[-1],
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
) -> torch.Tensor:
    """activation(spectral_conv(x, weight) + skip_weight x + bias) for a layer that `refusal` lets pass."""
    size, out, modes = tuple(x.shape[2:]), tuple(out_size), tuple(weight.shape[2:])
    before, after = _layer_programs(skip_weight, bias, activation)
    x = readable(x)
    with torch.cuda.device(x.device):
        stages = CudaStages(
            size, modes, device=x.device, precision=precision, out_size=out, settled=False
        )
        spectra = stages.tile(before, Operands(x=x)).spectra
        assert spectra is not None
        mixed = stages.mix(spectra, readable(mode_major(weight)))
        if out != size:
            stages = CudaStages(out, modes, device=x.device, precision=precision, settled=False)
        y = stages.tile(after, Operands(x=x, mixed=mixed), channel_first=True).x
    assert isinstance(y, torch.Tensor)
    return y
