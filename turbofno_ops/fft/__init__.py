"""Fourier transforms like those of torch.fft, on CUDA kernels of our own: full or truncated, in float32 and float16."""

from turbofno_ops._choice import Choice
from turbofno_ops.fft._arguments import PRECISIONS
from turbofno_ops.fft._choice import BACKENDS
from turbofno_ops.fft._functions import (
    NAMES,
    explain,
    fft,
    fft2,
    fftn,
    ifft,
    ifft2,
    ifftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)
from turbofno_ops.fft._preferred import is_preferred, transforms_for

__all__ = [
    "BACKENDS",
    "NAMES",
    "PRECISIONS",
    "Choice",
    "explain",
    "fft",
    "fft2",
    "fftn",
    "ifft",
    "ifft2",
    "ifftn",
    "irfft",
    "irfft2",
    "irfftn",
    "is_preferred",
    "rfft",
    "rfft2",
    "rfftn",
    "transforms_for",
]
