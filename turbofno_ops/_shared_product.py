"""The product of modes of slabs in memory that all processes reach, instead of between two collectives."""

from __future__ import annotations

import torch

from turbofno_ops._native import MAX_SLABS, Product, launch
from turbofno_ops._peer_memory import PeerMemory, aligned
from turbofno_ops._slab import Slab

_DTYPE = torch.complex64


class SharedProduct:
    """Multiplies this process's share of the modes: the kernel reads their parts from all processes and writes to all of them.

    All processes run it together. It owns its memory, so that CUDA graphs can use it, one at a time.

    Attributes:
        part: Complex64, for this process's part of the sums, [modes, in_pitch], flat.
        nbytes: Of its memory on this device.
    """

    def __init__(
        self,
        slab: Slab,
        memory: PeerMemory,
        structure: Product,
        to_start: torch.Tensor,
        from_start: torch.Tensor,
    ) -> None:
        """Lay the parts and the products out in the memory.

        `to_start` and `from_start`: this process's factors of the modes of the cut axis, before the sum and after the product.
        """
        self._memory, self.nbytes = memory, memory.nbytes
        modes, share = structure.others, slab.share(structure.others)
        products_at = _sums_bytes(structure, slab)

        def whole(process: int, at: int, pitch: int) -> torch.Tensor:
            return memory.of(process, (slab.count * share * pitch,), _DTYPE, at)

        parts = [whole(process, 0, structure.in_pitch) for process in range(slab.count)]
        products = [whole(p, products_at, structure.out_pitch) for p in range(slab.count)]
        self.part = parts[slab.rank]
        self._result = products[slab.rank][: modes * structure.out_pitch]
        kept = to_start.numel()
        # the last share may have rows beyond the last mode
        row = torch.arange(slab.rank * share, (slab.rank + 1) * share, device=to_start.device)
        mode = row.div(modes // kept, rounding_mode="floor").clamp_max(kept - 1)
        factors = slab.gather(torch.stack([to_start.flatten(), from_start.flatten()]))
        factors = factors.unflatten(0, (slab.count, 2)).transpose(0, 1)
        self._factors = factors[..., mode].contiguous()

        self._launch = Product.from_buffer_copy(structure)
        self._launch.others, self._launch.slabs = share, slab.count
        for process in range(slab.count):
            first = slab.rank * share
            self._launch.parts[process] = _address(parts[process], first * structure.in_pitch)
            self._launch.products[process] = _address(
                products[process], first * structure.out_pitch
            )
        self._launch.part_factors, self._launch.product_factors = (
            of.data_ptr() for of in self._factors
        )

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the product of the sums of all parts, [modes, out_pitch], flat; the weight is that of this process's share."""
        arguments = Product.from_buffer_copy(self._launch)
        arguments.weight = weight.data_ptr()
        self._memory.barrier()
        launch("multiply_modes", arguments)
        self._memory.barrier()
        return self._result


def shared_product(
    slab: Slab, structure: Product, to_start: torch.Tensor, from_start: torch.Tensor
) -> SharedProduct | None:
    """Return the product in memory that all slabs reach, or None where there is none; see `SharedProduct`."""
    if slab.count > MAX_SLABS:
        return None
    products = slab.share(structure.others) * slab.count * structure.out_pitch
    nbytes = _sums_bytes(structure, slab) + products * _DTYPE.itemsize
    # PyTorch keeps free memory that this allocation needs
    torch.cuda.empty_cache()
    memory = slab.peer_memory(nbytes, to_start.device)
    if memory is None:
        return None
    return SharedProduct(slab, memory, structure, to_start, from_start)


def _sums_bytes(structure: Product, slab: Slab) -> int:
    modes = slab.share(structure.others) * slab.count
    return aligned(modes * structure.in_pitch * _DTYPE.itemsize)


def _address(tensor: torch.Tensor, element: int) -> int:
    return tensor.data_ptr() + element * tensor.itemsize
