"""A grid cut into slabs along its first axis, one a process, and what the processes exchange."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist

from turbofno_ops._modes import Rows
from turbofno_ops._peer_memory import PeerMemory, peer_memory
from turbofno_ops.description import Size

if hasattr(dist, "all_gather_single"):  # their names since torch 2.13
    _all_gather, _reduce_scatter = dist.all_gather_single, dist.reduce_scatter_single
else:
    _all_gather, _reduce_scatter = dist.all_gather_into_tensor, dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Slab:
    """One process's place among those that a grid's first axis is cut over.

    All slabs have ceil(points / processes) rows, as those of `torch.chunk` and DTensor's `Shard`, but the last ones may be
    shorter or empty.

    Attributes:
        group: The processes.
        rank: This process in the group.
        count: Processes in the group.
    """

    group: dist.ProcessGroup
    rank: int
    count: int

    def share(self, points: int) -> int:
        """Return ceil(points / processes): the rows of the longest slabs, or the modes of a process's share."""
        return -(-points // self.count)

    def all_rows(self, points: int) -> list[Rows]:
        """Return every process's rows of an axis."""
        most = self.share(points)
        firsts = [min(rank * most, points) for rank in range(self.count + 1)]
        return [Rows(first, stop - first, points) for first, stop in pairwise(firsts)]

    def rows(self, points: int) -> Rows:
        """Return this process's rows of an axis."""
        return self.all_rows(points)[self.rank]

    def local(self, size: Size) -> Size:
        """Return the size of this process's slab of a grid."""
        return (self.rows(size[0]).count, *size[1:])

    def all_local(self, size: Size) -> list[Size]:
        """Return the size of every process's slab of a grid."""
        return [(rows.count, *size[1:]) for rows in self.all_rows(size[0])]

    def cut(self, field: torch.Tensor, axis: int) -> torch.Tensor:
        """Return the view of this process's rows of a whole field."""
        return self.rows(field.shape[axis]).of(field, axis)

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        """Replace a contiguous tensor by its sum over the processes, and return it."""
        dist.all_reduce(_real(part), group=self.group)
        return part

    def share_of(self, weight: torch.Tensor) -> torch.Tensor:
        """Return this process's share [ceil(modes / processes), ..] of a weight [modes, ..], zero-padded.

        A single mode is not shared out: then the weight itself.
        """
        count = self.share(weight.shape[0])
        if count == weight.shape[0]:
            return weight
        own = weight[self.rank * count : (self.rank + 1) * count]
        share = weight.new_zeros(count, *weight.shape[1:])
        share[: len(own)] = own
        return share

    def share_of_sum(self, part: torch.Tensor) -> torch.Tensor:
        """Return this process's share of the sum over the processes; `part` is [processes * share, ..]."""
        share = part.new_empty(part.shape[0] // self.count, *part.shape[1:])
        _reduce_scatter(_real(share), _real(part), group=self.group)
        return share

    def on_sum(
        self,
        part: torch.Tensor,
        weight: torch.Tensor,
        multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Return multiply(sum of `part` over the processes, weight) as [modes, ..].

        Args:
            part: Contiguous [modes, ..], one entry for all modes that differ only on the last axis.
            weight: [*modes, last modes, c_in, c_out], or this process's share [share, last modes, c_in, c_out]. With a
                share, a process gets and multiplies its share of the sum, and the products are gathered.
            multiply: Function of such a sum and a weight [modes, last modes, c_in, c_out].
        """
        weight = weight.flatten(0, -4)
        modes, own = part.shape[0], weight.shape[0]
        if own == modes:
            return multiply(self.add_up(part), weight)
        missing = own * self.count - modes
        if missing:
            part = torch.cat([part, part.new_zeros(missing, *part.shape[1:])])
        return self.gather(multiply(self.share_of_sum(part), weight))[:modes]

    def gather(self, share: torch.Tensor) -> torch.Tensor:
        """Return the shares [share, ..] of all processes, in the order of ranks, as [processes * share, ..]."""
        whole = share.new_empty(self.count * share.shape[0], *share.shape[1:])
        _all_gather(_real(whole), _real(share), group=self.group)
        return whole

    def peer_memory(self, nbytes: int, device: torch.device) -> PeerMemory | None:
        """Allocate so many bytes of every process that all of them reach; see there."""
        return peer_memory(self, nbytes, device)

    def moments(
        self, mean: torch.Tensor, variance: torch.Tensor, points: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance over the grid from those over each slab; `points` are those of the cut axis."""
        found = self.gather(torch.stack([mean, variance])).unflatten(0, (self.count, 2))
        # Numbers instead of a tensor of shares, because a CUDA graph cannot contain a copy from the host. An empty slab has no
        # moments.
        slabs = [
            (rows.count / points, *moments)
            for rows, moments in zip(self.all_rows(points), found, strict=True)
            if rows.count
        ]
        whole = torch.stack([share * one for share, one, _ in slabs]).sum(0)
        spread = [share * (within + (one - whole).square()) for share, one, within in slabs]
        return whole, torch.stack(spread).sum(0)

    def most(self, number: int, device: torch.device) -> int:
        """Return the largest of the processes' numbers. Waits for all of them."""
        value = torch.tensor([number], device=device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.group)
        return int(value.item())

    def alike(self, text: str, device: torch.device) -> bool:
        """True if all processes have the same text. Waits for all of them."""
        number = zlib.crc32(text.encode())
        return self.most(number, device) == -self.most(-number, device)

    def swap(
        self, sends: Sequence[torch.Tensor], receives: Sequence[torch.Tensor]
    ) -> list[dist.Work]:
        """Begin to send a tensor to every process and to receive one from each.

        The tensors are contiguous and may be empty. Those of this process for itself are left alone.
        """
        operations = []
        for peer in range(self.count):
            if peer == self.rank:
                continue
            for operation, tensor in ((dist.isend, sends[peer]), (dist.irecv, receives[peer])):
                if tensor.numel():
                    operations.append(
                        dist.P2POp(operation, _real(tensor), group=self.group, group_peer=peer)
                    )
        return dist.batch_isend_irecv(operations) if operations else []


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a real view: not every collective takes complex numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
