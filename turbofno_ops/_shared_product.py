"""The product of modes of slabs in memory that all processes reach, instead of between two collectives."""

from __future__ import annotations

from collections.abc import Callable

import torch

from turbofno_ops._native import Product
from turbofno_ops._peer_memory import PeerMemory, aligned
from turbofno_ops._slab import Slab

_DTYPE = torch.complex64


class SharedProduct:
    """Adds up this process's share of the modes from the memory of all processes, multiplies it, writes the result to all.

    What moves over the links are operands and results of the kernels that add up and scale. All processes run it together.
    It owns its memory, so that CUDA graphs can use it, one at a time.

    Attributes:
        part: Complex64, for this process's part of the sums, [modes, in_pitch], flat.
    """

    def __init__(
        self,
        slab: Slab,
        memory: PeerMemory,
        structure: Product,
        to_start: torch.Tensor,
        from_start: torch.Tensor,
    ) -> None:
        """Lay the sums and the products out in `bytes_of` bytes of memory.

        `to_start` and `from_start`: this process's factors of the modes of the cut axis, before the sum and after the product.
        """
        self._memory, self._rank = memory, slab.rank
        modes, share = structure.others, _share_of(structure, slab)
        products_at = _sums_bytes(structure, slab)

        def shares(at: int, pitch: int) -> list[torch.Tensor]:
            first = at + slab.rank * share * pitch * _DTYPE.itemsize
            return [memory.of(p, (share, pitch), _DTYPE, first) for p in range(slab.count)]

        self._parts = shares(0, structure.in_pitch)
        self._products = shares(products_at, structure.out_pitch)
        self.part = memory.of(slab.rank, (modes * structure.in_pitch,), _DTYPE, 0)
        self._whole = memory.of(slab.rank, (modes * structure.out_pitch,), _DTYPE, products_at)
        kept = to_start.numel()
        # the last share may have rows beyond the last mode
        row = torch.arange(slab.rank * share, (slab.rank + 1) * share, device=to_start.device)
        mode = row.div(modes // kept, rounding_mode="floor").clamp_max(kept - 1)
        factors = slab.gather(torch.stack([to_start.flatten(), from_start.flatten()]))
        of_rows = factors.unflatten(0, (slab.count, 2))[..., mode].unsqueeze(-1)
        self._to_start, self._from_start = of_rows.unbind(1)

    def __call__(self, multiply: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the product of the sums, [modes, out_pitch], flat; `multiply` is that of this process's share of the modes."""
        own, *others = [(self._rank + i) % len(self._parts) for i in range(len(self._parts))]
        self._memory.barrier()
        total = self._parts[own] * self._to_start[own]
        for peer in others:
            total.addcmul_(self._parts[peer], self._to_start[peer])
        product = multiply(total)
        for peer in (*others, own):
            torch.mul(product, self._from_start[peer], out=self._products[peer])
        self._memory.barrier()
        return self._whole


def bytes_of(structure: Product, slab: Slab) -> int:
    """Return the bytes that a product takes of every process's memory."""
    products = _share_of(structure, slab) * slab.count * structure.out_pitch
    return _sums_bytes(structure, slab) + products * _DTYPE.itemsize


def _share_of(structure: Product, slab: Slab) -> int:
    return -(-structure.others // slab.count)


def _sums_bytes(structure: Product, slab: Slab) -> int:
    return aligned(_share_of(structure, slab) * slab.count * structure.in_pitch * _DTYPE.itemsize)
