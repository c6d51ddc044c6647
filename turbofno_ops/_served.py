"""Verdicts: which GPUs, tile programs and spectral products the CUDA kernels serve, and why not, in words.

The limits themselves are those of the kernels' host code (csrc/plan) and are asked there.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from turbofno_ops import _spectral_product
from turbofno_ops._architecture import code_refusal, has_warpgroups
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
"""The limits that shapes are judged by where there is no GPU."""


@cache
def device_limits(device: torch.device) -> Device:
    """Of a CUDA device."""
    found = torch.cuda.get_device_properties(device)
    # an attribute that builds of PyTorch with CUDA have and its annotations leave out
    shared_bytes: int = getattr(found, "shared_memory_per_block_optin")  # noqa: B009
    return Device(found.multi_processor_count, shared_bytes, has_warpgroups(device))


@cache
def gpu_refusal(device: torch.device) -> str | None:
    """The reason why the CUDA kernels do not run on this GPU, in words, or None if they do."""
    status = native_status()
    if not status.loaded:
        return status.detail
    found = torch.cuda.get_device_properties(device)
    if found.major < _OLDEST_MAJOR:
        return f"they need compute capability {_OLDEST_MAJOR}.0, {device} has {found.major}.{found.minor}"
    # CUDA keeps 1 KiB of a multiprocessor's
    if found.shared_memory_per_multiprocessor <= _SHARED_MEMORY:
        return (
            f"a block needs {_SHARED_MEMORY // 1024} KiB of shared memory, as A100 and Hopper have it; {device} "
            f"({found.name}) has {found.shared_memory_per_multiprocessor // 1024} KiB a multiprocessor"
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
    """The reason why the kernels do not run a tile program, in words, or None if they do.

    `channels` are those of y after its first step; `modes` are those of the last axis that the mixed spectra have,
    `next_modes` those that an analysis keeps. Without a device an A100 is meant.
    """
    limits = A100 if device is None else device_limits(device)
    shape = Shape(batch, size, channels, channels_of_x, modes, next_modes, precision, *limits)
    refused = (piece.refusal for piece in pieces(steps, shape))
    return next((reason for reason in refused if reason is not None), None)


def product_refusal(
    batch: int, c_in: int, c_out: int, size: Size, out_size: Size, modes: Size, precision: str
) -> str | None:
    """The reason why the kernels do not run a spectral product, in words, or None if they do."""
    # how many multiprocessors there are decides nothing here
    shape = ProductShape(batch, c_in, c_out, size, out_size, modes, precision, A100.multiprocessors)
    return _spectral_product.refusal(shape)
