"""Number-theoretic transforms by the CUDA kernels."""

from __future__ import annotations

import torch

from turbofno_ops._native import Ntt, bytes_of, launch
from turbofno_ops._support import Device, device_limits
from turbofno_ops.ntt._arithmetic import BY_NAME
from turbofno_ops.ntt._tables import table

EXCHANGES = ("shuffle", "shared memory")
RADICES = (2, 4, 8, 16)
# Over the cases of `python -m benchmarks.gpu ntt` this pair takes 1.18 times as long as the best of each, less than any other.
RADIX, EXCHANGE = 8, "shuffle"


def structure_of(
    x: torch.Tensor,
    factor: torch.Tensor | None,
    out: torch.Tensor,
    constants: torch.Tensor,
    limits: Device,
    name: str,
    *,
    inverse: bool,
    negacyclic: bool,
    radix: int = RADIX,
    exchange: str = EXCHANGE,
) -> Ntt:
    """Return a launch's structure without its workspace. All tensors are contiguous; they must outlive the launch."""
    points = x.shape[-1]
    return Ntt(
        lines=x.numel() // points,
        points=points,
        prime=BY_NAME[name].number,
        inverse=inverse,
        negacyclic=negacyclic,
        radix=radix,
        exchange=EXCHANGES.index(exchange),
        multiprocessors=limits.multiprocessors,
        shared_bytes=limits.shared_bytes,
        input=x.data_ptr(),
        factor=None if factor is None else factor.data_ptr(),
        out=out.data_ptr(),
        table=constants.data_ptr(),
    )


def transform(
    x: torch.Tensor,
    factor: torch.Tensor | None,
    name: str,
    *,
    inverse: bool,
    negacyclic: bool,
    radix: int = RADIX,
    exchange: str = EXCHANGE,
) -> torch.Tensor:
    """Return the transforms of x, or of x times `factor`, along the last axis.

    Args:
        x: Values [..., points], int64, on a GPU.
        factor: Of the shape of x, or None.
        name: Of the field.
        inverse: The inverse transform.
        negacyclic: The transform of negacyclic products.
        radix: Values of a thread, one of `RADICES`.
        exchange: One of `EXCHANGES`.
    """
    x = x.contiguous()
    factor = None if factor is None else factor.contiguous()
    out = torch.empty_like(x)
    constants = table(name, x.shape[-1], inverse, negacyclic, x.device)
    structure = structure_of(
        *(x, factor, out, constants, device_limits(x.device), name),
        inverse=inverse,
        negacyclic=negacyclic,
        radix=radix,
        exchange=exchange,
    )
    count = bytes_of("ntt_workspace_bytes", structure)
    workspace = torch.empty(count, dtype=torch.uint8, device=x.device)
    structure.workspace = workspace.data_ptr()
    with torch.cuda.device(x.device):
        launch("number_theoretic_transform", structure)
    return out
