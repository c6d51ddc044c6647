"""Support checks: which GPUs, tile programs and spectral products the CUDA kernels run.

The limits of shapes are in the kernels' host code (csrc/plan), which these functions call.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from turbofno_ops import _spectral_product
from turbofno_ops._architecture import cluster_count, code_refusal, has_warpgroups
from turbofno_ops._native import native_status
from turbofno_ops._spectral_product import ProductShape
from turbofno_ops._stages import Step
from turbofno_ops._tile_program import Shape, pieces
from turbofno_ops.description import Size

_OLDEST_MAJOR = 8  # compute capability: A100
_SHARED_MEMORY = 160 * 1024  # of a block


class Device(NamedTuple):
    """The device limits that the kernels' plans depend on."""

    multiprocessors: int
    shared_bytes: int
    warpgroups: bool


A100 = Device(108, 163 * 1024, False)
"""The limits that shapes are checked against without a GPU."""


@cache
def device_limits(device: torch.device) -> Device:
    """Return the limits of a CUDA device."""
    found = torch.cuda.get_device_properties(device)
    # present in CUDA builds of PyTorch, but missing in its type annotations
    shared_bytes: int = getattr(found, "shared_memory_per_block_optin")  # noqa: B009
    return Device(found.multi_processor_count, shared_bytes, has_warpgroups(device))


@cache
def device_clusters(device: torch.device) -> int:
    """Return how many clusters of 16 thread blocks a CUDA device runs at once."""
    return cluster_count(device)


@cache
def gpu_refusal(device: torch.device) -> str | None:
    """Return the reason why the CUDA kernels do not run on a GPU, or None if they do.

    Args:
        device: A CUDA device.

    Example:
        >>> gpu_refusal(torch.device("cuda", 0))  # doctest: +SKIP
    """
    status = native_status()
    if not status.loaded:
        return status.detail
    found = torch.cuda.get_device_properties(device)
    if found.major < _OLDEST_MAJOR:
        return f"they need compute capability {_OLDEST_MAJOR}.0, {device} has {found.major}.{found.minor}"
    # CUDA reserves 1 KiB per multiprocessor
    if found.shared_memory_per_multiprocessor <= _SHARED_MEMORY:
        return (
            f"a block needs {_SHARED_MEMORY // 1024} KiB of shared memory, as A100 and Hopper have; {device} "
            f"({found.name}) has {found.shared_memory_per_multiprocessor // 1024} KiB per multiprocessor"
        )
    return code_refusal(device)


def program_refusal(
    steps: tuple[Step, ...],
    *,
    batch: int,
    channels: int,
    channels_of_x: int,
    size: Size,
    modes: int,
    next_modes: int,
    precision: str,
    device: torch.device | None = None,
) -> str | None:
    """Return the reason why the kernels do not support a tile program, or None if they do.

    Args:
        steps: The program.
        batch: Batch size.
        channels: Channels of y after the first step.
        channels_of_x: Channels of x; 0 if the program does not read x.
        size: The grid.
        modes: Modes of the last axis in the mixed spectra.
        next_modes: Modes of the last axis that an analysis keeps.
        precision: One of `PRECISIONS`.
        device: The GPU; by default the limits of an A100.
    """
    limits = A100 if device is None else device_limits(device)
    shape = Shape(batch, size, channels, channels_of_x, modes, next_modes, precision, *limits)
    refused = (piece.refusal for piece in pieces(steps, shape))
    return next((reason for reason in refused if reason is not None), None)


def product_refusal(
    batch: int, c_in: int, c_out: int, size: Size, out_size: Size, modes: Size, precision: str
) -> str | None:
    """Return the reason why the kernels do not support a spectral product, or None if they do."""
    # the number of multiprocessors does not matter here
    limits = A100.multiprocessors, A100.shared_bytes
    shape = ProductShape(batch, c_in, c_out, size, out_size, modes, precision, *limits)
    return _spectral_product.refusal(shape)
