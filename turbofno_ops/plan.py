"""`compile_fno`: a whole Fourier neural operator as one chain of stages, replayed as CUDA graphs."""

from __future__ import annotations

import torch

from turbofno_ops.description import FNODescription, Size


class CompiledFNO:
    """A Fourier neural operator ready to run on one device; made by `compile_fno`.

    Any thread and any CUDA stream may call it: work is queued on the caller's current stream, calls run one
    after the other. The result is a tensor of the caller's own.
    """

    precision: str
    device: torch.device
    dtype: torch.dtype
    """Of input and output: float32, or float64 on a CPU if the description's weights are."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, in_channels, *grid] -> [batch, out_channels, *grid], physical units, on `device`.

        Raises:
            ChainRefused: the grid does not run on the kernels (`refusal` tells in advance).
            ValueError, TypeError: shape, device or dtype do not fit the network.
            torch.OutOfMemoryError: a graph or its buffers do not fit; a smaller batch may.
        """
        raise NotImplementedError

    def refusal(self, size: Size) -> str | None:
        """Why this grid does not run as a chain, in words, or None if it does."""
        raise NotImplementedError

    def buckets(self) -> tuple[int, ...]:
        """Batch sizes that graphs are made for; a batch is padded up to the next."""
        raise NotImplementedError

    def device_bytes(self) -> int:
        """Bytes held on the device: weights, tables and graphs with their buffers."""
        raise NotImplementedError

    def clear(self) -> None:
        """Give the memory of all graphs back; the next calls capture them anew."""
        raise NotImplementedError


def compile_fno(
    description: FNODescription,
    *,
    device: torch.device | str,
    precision: str = "fp32",
    max_batch: int = 64,
    max_graphs: int = 16,
    max_graph_bytes: int = 4 * 2**30,
) -> CompiledFNO:
    """Fold, cast and move a network's weights, for one chain of stages on `device`.

    Raises:
        ChainRefused: the network is no plain chain, or the device cannot run it.
        ValueError: unknown precision, or numbers under 1.
    """
    raise NotImplementedError
