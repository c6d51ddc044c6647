"""The spectral convolution by its definition, in float64 numpy, independent of the package under test."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch


def kept_frequencies(modes: Sequence[int]) -> list[list[int]]:
    """Return the kept integer frequencies of each axis, as in the docstring of `spectral_conv`."""
    *others, last = modes
    signed = [[*range((k + 1) // 2), *range(-(k // 2), 0)] for k in others]
    return [*signed, list(range(last))]


def spectral_conv_truth(
    x: torch.Tensor, weight: torch.Tensor, out_size: Sequence[int] | None = None
) -> torch.Tensor:
    """Compute numpy's rfftn, one matrix product per mode, numpy's irfftn. Returns float64."""
    field = x.detach().cpu().double().numpy()
    matrices = weight.detach().cpu().to(torch.complex128).numpy()
    size = field.shape[2:]
    out = tuple(out_size or size)
    axes = tuple(range(2, field.ndim))
    spectrum = np.fft.rfftn(field, axes=axes, norm="forward")
    mixed = np.zeros(
        (field.shape[0], matrices.shape[1], *out[:-1], out[-1] // 2 + 1), dtype=np.complex128
    )
    kept = kept_frequencies(matrices.shape[2:])
    for index in itertools.product(*(range(len(f)) for f in kept)):
        k = [f[i] for f, i in zip(kept, index, strict=True)]
        source = (*(a % n for a, n in zip(k[:-1], size, strict=False)), k[-1])
        target = (*(a % n for a, n in zip(k[:-1], out, strict=False)), k[-1])
        channels = spectrum[(slice(None), slice(None), *source)]
        mixed[(slice(None), slice(None), *target)] = (
            channels @ matrices[(slice(None), slice(None), *index)]
        )
    return torch.from_numpy(np.fft.irfftn(mixed, s=out, axes=axes, norm="forward"))


def relative_l2(value: torch.Tensor, truth: torch.Tensor) -> float:
    """Return ||value - truth|| / ||truth|| in float64, of real or complex values."""
    dtype = torch.complex128 if truth.is_complex() else torch.float64
    expected = truth.detach().to(dtype)
    return float((value.detach().to(dtype) - expected).norm() / expected.norm())
