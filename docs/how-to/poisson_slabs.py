"""Solve -div grad u = f in a periodic box that is cut over processes: `torchrun --nproc-per-node 2 poisson_slabs.py`.

The exact u is known, so the script can print the error of the solution.
"""

import math
import os

import torch
import torch.distributed as dist

from turbofno_ops.distributed import irfftn, rfftn, slab_rows

SIZE = (64, 60, 45)  # any grid, also one that the processes do not divide

if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    dist.init_process_group("nccl", device_id=device, pg_options=options)
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")


def coordinates(axis: int, points: range) -> torch.Tensor:
    """Coordinates 0 .. 2 pi of some points of an axis, to broadcast over the grid."""
    at = torch.arange(points.start, points.stop, dtype=torch.float64, device=device)
    return (at * (2 * math.pi / SIZE[axis])).view([-1 if i == axis else 1 for i in range(3)])


def wavenumbers(axis: int) -> torch.Tensor:
    """Integer wavenumbers of an axis of the spectrum, to broadcast over it."""
    kind = torch.fft.rfftfreq if axis == 2 else torch.fft.fftfreq
    k = kind(SIZE[axis], 1 / SIZE[axis], dtype=torch.float64, device=device)
    return k.view([-1 if i == axis else 1 for i in range(3)])


# every process makes its own rows of the field; none ever holds all of it
rows = slab_rows(SIZE[0])
x, y, z = coordinates(0, rows), coordinates(1, range(SIZE[1])), coordinates(2, range(SIZE[2]))
exact = torch.sin(3 * x) * torch.cos(2 * y) * torch.sin(z) + torch.cos(x + 4 * y)
f = 14 * torch.sin(3 * x) * torch.cos(2 * y) * torch.sin(z) + 17 * torch.cos(x + 4 * y)

# transposed order: the spectrum is cut along its second axis, and one exchange is enough
spectrum = rfftn(f, SIZE, output_order="transposed")
columns = slab_rows(SIZE[1])
k2 = wavenumbers(1)[:, columns.start : columns.stop].square()
k2 = k2 + wavenumbers(0).square() + wavenumbers(2).square()
k2[k2 == 0] = math.inf  # u has no mean
u = irfftn(spectrum / k2, SIZE, input_order="transposed")

error = (u - exact).abs().max()
dist.all_reduce(error, op=dist.ReduceOp.MAX)
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} processes, largest error {error.item():.1e}")
dist.destroy_process_group()
