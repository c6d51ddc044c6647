"""neuraloperator's development version of 2026: its differences from 2.0.0 in results and attributes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import torch


@contextmanager
def development_version() -> Iterator[None]:
    """Make networks of 2.0.0 compute like the development version.

    Its spectral convolution undoes its shift on axes of odd size, and takes the real part of the lowest and the
    highest frequency of the last axis itself.
    """
    there = torch.fft.fftshift
    count = 0

    def shift(x: torch.Tensor, dim: Sequence[int]) -> torch.Tensor:
        nonlocal count
        count += 1
        return there(x, dim=dim) if count % 2 else torch.fft.ifftshift(x, dim=dim)

    def real(x: torch.Tensor, s: Sequence[int], dim: Sequence[int], norm: str) -> torch.Tensor:
        x = torch.fft.ifftn(x, s=list(s[:-1]), dim=list(dim[:-1]), norm=norm) if len(s) > 1 else x
        x[..., 0].imag.zero_()
        if s[-1] % 2 == 0:
            x[..., -1].imag.zero_()
        return torch.fft.irfft(x, n=s[-1], dim=dim[-1], norm=norm)

    with (
        mock.patch.object(torch.fft, "fftshift", shift),
        mock.patch.object(torch.fft, "irfftn", real),
    ):
        yield


def with_its_attributes(network: torch.nn.Module) -> torch.nn.Module:
    """The network of 2.0.0 with the additional attributes of the development version."""
    network.conv_bias_kernel = 1
    network.fno_blocks.conv_bias_kernel = 1
    network.fno_blocks.enforce_hermitian_symmetry = True
    for conv in network.fno_blocks.convs:
        conv.enforce_hermitian_symmetry = True
    return network
