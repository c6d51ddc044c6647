"""The slabs of a process group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from turbofno_ops._slab import Slab
from turbofno_ops.description import Size

Group = dist.ProcessGroup | DeviceMesh | None
"""A process group, a DeviceMesh of one dimension, or None for all processes."""


def slab_rows(points: int, group: Group = None) -> range:
    """Return this process's rows of a grid axis of `points`.

    Every process has ceil(points / processes) rows, in the order of ranks; the last ones have fewer or none. These are the
    slabs of `torch.chunk`, and of a DTensor with `Shard`.

    Args:
        points: Points of the whole axis.
        group: A process group, a DeviceMesh of one dimension, or None for all processes.

    Raises:
        TypeError: `group` is neither.
        ValueError: `torch.distributed` is not initialised, this process is not in the group, the mesh has several dimensions,
            or `points` is negative.

    Example:
        >>> slab_rows(85)  # on rank 3 of 4  # doctest: +SKIP
        range(66, 85)
    """
    if points < 0:
        raise ValueError(f"slab_rows: points must be 0 or more, got {points}")
    rows = slab_of("slab_rows", group).rows(points)
    return range(rows.first, rows.stop)


def slab_of(op: str, group: Group) -> Slab:
    """Return this process's place in a group; `op` begins the messages of errors."""
    if not dist.is_initialized():
        raise ValueError(
            f"{op}: torch.distributed is not initialised; call torch.distributed.init_process_group first"
        )
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"{op}: the mesh has the dimensions {group.mesh_dim_names or group.ndim}; a field is cut over one of "
                "them, for example mesh['slab']"
            )
        group = group.get_group()
    found: object = dist.group.WORLD if group is None else group
    if found is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{op}: this process is not in the group")
    if not isinstance(found, dist.ProcessGroup):
        raise TypeError(
            f"{op}: group must be a ProcessGroup, a DeviceMesh or None, got {type(found).__name__}"
        )
    return Slab(found, dist.get_rank(found), dist.get_world_size(found))


def check_device(op: str, slab: Slab, device: torch.device) -> None:
    """Raise ValueError if the group has no backend for tensors on `device`."""
    served = {torch.device(of).type for of in slab.group._device_types}
    if device.type not in served:
        raise ValueError(
            f"{op}: the group's backend ({dist.get_backend(slab.group)}) does not serve tensors on {device}; use 'nccl' "
            "for GPUs and 'gloo' for CPUs"
        )


def check_slab(
    op: str, slab: Slab, shape: Sequence[int], size: Size, expected: Sequence[int]
) -> None:
    """Raise ValueError unless the last axes of `shape` are `expected`, this process's part of the grid `size`."""
    if tuple(shape) != tuple(expected):
        grid = "x".join(map(str, size))
        raise ValueError(
            f"{op}: rank {slab.rank} of {slab.count} must give {list(expected)} of the grid {grid}, its slab, got "
            f"{list(shape)}; see slab_rows"
        )
