"""One Fourier layer on slabs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from turbofno_ops import _cuda_layer
from turbofno_ops._activations import parse_activation
from turbofno_ops._autocast import without_autocast
from turbofno_ops._choice import Choice
from turbofno_ops._slab import Slab
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
from turbofno_ops._torch_stages import TorchStages
from turbofno_ops._validation import (
    check_field_and_weight,
    check_modes_fit,
    check_precision,
    check_skip_and_bias,
    check_tensor,
    grid_of,
)
from turbofno_ops.description import Size
from turbofno_ops.dispatch import record
from turbofno_ops.distributed.agreement import agree, weight_sums
from turbofno_ops.distributed.slabs import Group, check_device, check_slab, slab_of

_OP = "distributed.fourier_layer"
"""Begins the messages of errors."""


def fourier_layer(
    x: torch.Tensor,
    weight: torch.Tensor,
    size: Sequence[int],
    *,
    skip_weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    precision: str = "fp32",
    group: Group = None,
) -> torch.Tensor:
    """Compute activation(spectral_conv(x, weight) + skip_weight . x + bias) of a field that is cut into slabs.

    `turbofno_ops.fourier_layer` with one all-reduce of the kept modes. All processes of the group call it together, with
    the same batch, grid and weights. The first call of a kind compares these. If later ones differ, the processes wait for
    each other until the group's timeout, fail, or give wrong results. No gradients. The CUDA kernels run it if they support
    all slabs, else plain torch; `last_choice` tells.

    Args:
        x: This process's slab [batch, c_in, rows, *other axes], float32 or float64, of 2 or 3 grid axes; its rows are
            `slab_rows(size[0])`.
        weight: [c_in, c_out, *modes], complex64 or complex128, the same on all processes.
        size: Grid of the whole field.
        skip_weight: [c_out, c_in], dtype of x, or None.
        bias: [c_out], dtype of x, or None.
        activation: A name of `ACTIVATIONS`.
        precision: 'fp32', 'tf32' or 'bf16'.
        group: A process group, a DeviceMesh of one dimension, or None for all processes.

    Returns:
        This process's slab [batch, c_out, rows, *other axes], dtype and device of x.

    Raises:
        TypeError: Unsupported or mismatched dtypes, `size` has other things than integers, or `group` is neither a process
            group nor a mesh.
        ValueError: Shapes or devices that do not fit, a grid too small for the kept modes, an unknown name, an argument that
            requires gradients, or processes that differ.

    Example:
        >>> _ = torch.manual_seed(0)  # the same weights in all processes
        >>> weight = torch.randn(32, 32, 24, 12, dtype=torch.complex64) / 32
        >>> x = torch.randn(2, 32, len(slab_rows(85)), 64)
        >>> fourier_layer(x, weight, (85, 64), activation="gelu").shape == x.shape
        True
    """
    slab, grid = slab_of(_OP, group), grid_of(_OP, size)
    check_tensor(_OP, "x", x)
    check_tensor(_OP, "weight", weight)
    check_device(_OP, slab, x.device)
    agree(
        _OP, slab, x.device,
        partial(_check, slab, x, weight, grid, skip_weight, bias, activation, precision),
        sums=partial(weight_sums, weight, skip_weight, bias),
        batch=next(iter(x.shape), None), size=grid, weight=tuple(weight.shape), skip_weight=skip_weight is not None,
        bias=bias is not None, dtype=x.dtype, activation=activation, precision=precision,
    )  # fmt: skip
    if x.shape[0] == 0:
        # the batch is the same on all processes, so none of them waits
        return x.new_empty(0, weight.shape[1], *x.shape[2:])
    with torch.no_grad(), without_autocast(x.device):
        refused = _refusal(x, weight, grid, precision, slab)
        if refused is None:
            record(Choice("cuda", "x is on a GPU and the CUDA kernels support every slab"))
            return _cuda_layer.layer(
                x, weight, skip_weight, bias, activation, grid, precision, slab=slab, size=grid
            )
        record(Choice("gemm", f"the CUDA kernels do not run this layer: {refused}"))
        return _plain(x, weight, skip_weight, bias, activation, grid, slab)


def _check(
    slab: Slab,
    x: torch.Tensor,
    weight: torch.Tensor,
    grid: Size,
    skip_weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
    precision: str,
) -> None:
    """Raise TypeError or ValueError unless this process's arguments fit each other and its slab."""
    check_precision(_OP, precision)
    check_field_and_weight(_OP, x, weight)
    if len(grid) != x.ndim - 2 or len(grid) < 2:
        raise ValueError(
            f"{_OP}: size must have an entry for each of x's grid axes, which are two or more, got size {grid} and x of "
            f"shape {list(x.shape)}"
        )
    check_slab(_OP, slab, x.shape[2:], grid, slab.local(grid))
    check_modes_fit(_OP, weight.shape[2:], grid, "the grid")
    try:
        parse_activation(activation)
    except ValueError as error:
        raise ValueError(f"{_OP}: {error}") from None
    check_skip_and_bias(_OP, x, weight, skip_weight, bias)
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, weight, skip_weight, bias)
    ):
        raise ValueError(f"{_OP} computes no gradients; call it under torch.no_grad()")


def _refusal(
    x: torch.Tensor, weight: torch.Tensor, size: Size, precision: str, slab: Slab
) -> str | None:
    """Return why the CUDA kernels do not support a slab of any process; all must come to the same answer."""
    refusals = (
        _cuda_layer.refusal(x, weight, local, precision, local)
        for local in dict.fromkeys(slab.all_local(size))
    )
    return next((reason for reason in refusals if reason is not None), None)


def _plain(
    x: torch.Tensor,
    weight: torch.Tensor,
    skip_weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
    size: Size,
    slab: Slab,
) -> torch.Tensor:
    stages = TorchStages(size, tuple(weight.shape[2:]), size, slab)
    spectra = stages.tile((Source(), Analyze()), Operands(x=x)).spectra
    assert spectra is not None
    mixed = stages.mix(spectra, weight.movedim((0, 1), (-2, -1)))
    after: list[Step] = [Synthesis()]
    if skip_weight is not None:
        after.append(AddMap(skip_weight))
    if bias is not None:
        after.append(Affine(None, bias))
    if activation != "none":
        after.append(Activate(activation))
    y = stages.tile((*after, Store()), Operands(x=x, mixed=mixed)).x
    assert isinstance(y, torch.Tensor)
    return y
