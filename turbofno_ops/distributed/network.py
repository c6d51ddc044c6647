"""`compile_fno` for fields that are cut into slabs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from turbofno_ops._graphs import GraphCache, batch_buckets
from turbofno_ops._lower import Mix
from turbofno_ops._validation import grid_of
from turbofno_ops.description import ChainRefused, FNODescription, Size
from turbofno_ops.distributed.agreement import agree, structure, weight_sums
from turbofno_ops.distributed.slabs import Group, check_device, check_slab, slab_of
from turbofno_ops.plan import CompiledChain, lowered

WEIGHTS = ("auto", "replicated", "sharded")
_NETWORK = "the network"
"""Begins the messages of errors."""
REPLICATED_BYTES = 2 * 2**20
"""A layer's weights above which 'auto' shares them out: reading more takes longer than a second barrier."""


class SlabFNO(CompiledChain):
    """A Fourier neural operator compiled for one process of a group, made by `distributed.compile_fno`. No gradients.

    All processes of the group call it together, in the same order, with the same batch and grid. The first call with a
    batch and grid compares these, the networks and their weights. If later calls differ, the processes wait for each other
    until the group's timeout, fail, or give wrong results. On a GPU the collectives are part of the CUDA graphs, with
    batches and graphs as in `turbofno_ops.CompiledFNO`. Call `clear()` before the group is destroyed, because NCCL waits
    for the graphs that hold its collectives.

    Attributes:
        device: The device.
        dtype: Dtype of input and output: float32, or float64 on a CPU if the description's weights are float64.
        backend: 'cuda' (the CUDA kernels) or 'gemm' (plain torch).
        precision: 'fp32', 'tf32' or 'bf16'; always 'fp32' on a CPU.
    """

    def __init__(self, structure: str, sums: Sequence[float], *compiled: Any) -> None:
        super().__init__(*compiled)
        self._structure, self._sums = structure, sums

    def __call__(self, x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
        """Apply the network to a field of which every process has a slab.

        Args:
            x: This process's slab [batch, in_channels, rows, *other axes] of `dtype` on `device`, in physical units; its
                rows are `slab_rows(size[0])`.
            size: Grid of the whole field.

        Returns:
            This process's slab [batch, out_channels, rows, *other axes] of the result in physical units. If layers change
            the resolution, it is a slab of another grid.

        Raises:
            TypeError: x is not of `dtype`, or `size` has other things than integers.
            ValueError: The shape or device of x does not fit the network or the slab, or processes differ.
            ChainRefused: The grid is not supported (`refusal` tells in advance).
            torch.OutOfMemoryError: A graph or its buffers do not fit; use more processes or a smaller batch.
        """
        return self._apply(x, grid_of(_NETWORK, size))

    def out_size(self, size: Sequence[int]) -> tuple[int, ...]:
        """Return the grid of the whole result for fields on a grid that is supported."""
        return self._grid_check(grid_of(_NETWORK, size)).out_size

    def field_bytes(self, size: Sequence[int]) -> int:
        """Return an estimate of the most bytes that a field on a supported grid takes on any of the devices."""
        return self._grid_check(grid_of(_NETWORK, size)).field_bytes

    def _check(self, x: torch.Tensor, size: Size) -> None:
        assert self._slab is not None
        agree(
            _NETWORK, self._slab, self.device, partial(self._check_own, x, size), sums=lambda: self._sums, of=self._owner,
            network=self._structure, batch=next(iter(getattr(x, "shape", ())), None), size=size,
        )  # fmt: skip

    def _check_own(self, x: torch.Tensor, size: Size) -> None:
        super()._check(x, size)
        assert self._slab is not None
        check_slab(_NETWORK, self._slab, x.shape[2:], size, self._slab.local(size))


def compile_fno(
    description: FNODescription,
    *,
    device: torch.device | str,
    group: Group = None,
    precision: str = "fp32",
    max_batch: int = 1,
    graphs: GraphCache | None = None,
    weights: str = "auto",
) -> SlabFNO:
    """Compile a Fourier neural operator for fields that are cut along their first grid axis, one slab a process.

    A layer needs one all-reduce of its kept modes: every process transforms its own rows to a part of their sum. So the
    communication does not grow with the grid. A norm adds a few numbers for each channel; a padding of the first axis and
    a layer that changes the grid move rows between processes.

    Args:
        description: The network, of two or more grid axes.
        device: This process's CUDA device, or the CPU.
        group: A process group (NCCL for GPUs, gloo for CPUs), a DeviceMesh of one dimension, or None for all processes.
        precision: As in `turbofno_ops.compile_fno`.
        max_batch: The largest batch bucket.
        graphs: The cache of the CUDA graphs; by default a new one. Networks that share it are called in the same order
            by all processes.
        weights: 'replicated': every device has all spectral weights. 'sharded': it has those of its share of the modes and
            multiplies only these, which moves as much as the all-reduce; the host has all weights. 'auto': sharded in
            layers whose weights exceed 2 MiB.

    Returns:
        The network as a function of a slab.

    Raises:
        ChainRefused: The description is inconsistent or of one grid axis, or the device cannot run it.
        TypeError: `description` is no FNODescription, or `group` is neither a process group nor a mesh.
        ValueError: Unknown `precision` or `weights`, `max_batch` below 1, or a group that does not serve the device.

    Example:
        >>> from turbofno_ops import FNODescription, PointwiseMap, Spectral
        >>> _ = torch.manual_seed(0)  # the same weights in all processes
        >>> layer = (Spectral(torch.randn(8, 8, 12, 7, dtype=torch.complex64)),)
        >>> network = FNODescription(
        ...     in_channels=1,
        ...     lifting=(PointwiseMap(torch.randn(8, 1)),),
        ...     blocks=(layer,) * 2,
        ...     projection=(PointwiseMap(torch.randn(1, 8)),),
        ... )
        >>> compiled = compile_fno(network, device="cpu")
        >>> rows = len(slab_rows(33))
        >>> compiled(torch.randn(2, 1, rows, 64), size=(33, 64)).shape == (2, 1, rows, 64)
        True
    """
    op = "distributed.compile_fno"
    if weights not in WEIGHTS:
        raise ValueError(f"{op}: weights must be one of {WEIGHTS}, got {weights!r}")
    slab = slab_of(op, group)
    check_device(op, slab, torch.device(device))
    chain, target, precision = lowered(description, device, precision, max_batch)
    if chain.n_dim < 2:
        raise ChainRefused(
            "fields of one grid axis are not cut: a layer's kept modes are as many as the points of a slab"
        )
    items = tuple(
        _shared_out(item, weights) if isinstance(item, Mix) else item for item in chain.items
    )
    graphs = GraphCache() if graphs is None else graphs
    return SlabFNO(
        structure([description, precision, weights, max_batch]), weight_sums(description),
        replace(chain, items=items), target, precision, batch_buckets(max_batch), graphs, slab,
    )  # fmt: skip


def _shared_out(mix: Mix, weights: str) -> Mix:
    """Return a product that shares out its modes if that is wanted."""
    wanted = weights == "sharded" or (weights == "auto" and mix.weight.nbytes > REPLICATED_BYTES)
    return replace(mix, weight=mix.weight.cpu(), sharded=True) if wanted else mix
