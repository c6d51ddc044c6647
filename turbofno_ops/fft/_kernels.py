"""Transforms on the CUDA kernels: plans kept for a shape, with their tables, and their launches."""

from __future__ import annotations

import torch

from turbofno_ops import _native
from turbofno_ops._dft_table import dense_table
from turbofno_ops._gemm import _tables
from turbofno_ops._native import Fft, PlaneAxis, PlaneTransform
from turbofno_ops.fft._plan import (
    Copy,
    Field,
    Launch,
    Problem,
    plan_of,
    problem,
)
from turbofno_ops.fft._rule import DENSE, HALF, MIXED_RADIX
from turbofno_ops.fft._tables import half_table, mixed_radix_table
from turbofno_ops.fft._transform import (
    Transform,
    complex_of,
    memory_order,
    new_result,
    permuted_back,
)

_STEP_BYTES = 512  # estimate for a step on the host


class _Prepared:
    """A plan with its tables on a device."""

    def __init__(self, of: Problem, device: torch.device) -> None:
        self.plan = plan_of(of)
        launches = [step for step in self.plan.steps if isinstance(step, Launch)]
        self._tables = {
            key: table_of(*key, device)
            for launch in launches
            for _, key in _holders(launch.kernel, launch.structure)
        }
        # the tables are counted by their own cache
        self.nbytes = _STEP_BYTES * len(self.plan.steps)

    def arguments(self, launch: Launch, buffers: list[torch.Tensor]) -> Fft | PlaneTransform:
        """Return the structure of a launch with its addresses."""
        arguments = type(launch.structure).from_buffer_copy(launch.structure)
        arguments.input = _address(buffers, *launch.source)
        arguments.out = _address(buffers, *launch.target)
        for holder, key in _holders(launch.kernel, arguments):
            holder.table = self._tables[key].data_ptr()
        return arguments


_Dense = tuple[int, int, int]
"""Kind, inverse and precision: what a table of the dense kernel depends on, beside the points."""
_Key = tuple[str, int, _Dense | None]
"""Kernel, points, and what else the table depends on; planes use tables of the mixed-radix kernel."""


def _holders(kernel: str, of: Fft | PlaneTransform) -> list[tuple[Fft | PlaneAxis, _Key]]:
    """Return the parts of a structure that have a table, and the keys of these."""
    if isinstance(of, PlaneTransform):
        return [(axis, (MIXED_RADIX, axis.points, None)) for axis in (of.height, of.width)]
    dense = (of.kind, of.inverse, of.precision) if kernel == DENSE else None
    return [(of, (kernel, of.points, dense))]


@_tables.cached
def table_of(kernel: str, points: int, dense: _Dense | None, device: torch.device) -> torch.Tensor:
    """Return the table of a kernel; only the dense one has `dense`."""
    with torch.inference_mode(False):
        if dense is not None:
            table = dense_table(points, *dense)
        else:
            table = half_table(points) if kernel == HALF else mixed_radix_table(points)
        return table.to(device)


@_tables.cached
def _prepared(of: Problem, device: torch.device) -> _Prepared:
    return _Prepared(of, device)


def run(x: torch.Tensor, transform: Transform, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the transform of x, which the kernels support.

    Args:
        x: The tensor.
        transform: The transform.
        out: The result, of any strides; no two of its values at one place, none in x. By default a new tensor.
    """
    if out is not None and not _takes_pairs(out):
        return out.copy_(run(x, transform))
    x = _aligned(x)
    prepared = _prepared(problem(x, transform, out), x.device)
    plan = prepared.plan
    result = new_result(x, transform) if out is None else out
    # as_strided and addresses do not see the order of the dimensions
    given = x.permute(plan.order).contiguous() if plan.copied else x
    dtype = complex_of(x.dtype)
    buffers = [given, result]
    buffers += [torch.empty(n, dtype=dtype, device=x.device) for n in plan.temporaries]
    with torch.cuda.device(x.device):
        for step in plan.steps:
            if isinstance(step, Copy):
                _copy(step, buffers)
                continue
            _native.launch(step.kernel, prepared.arguments(step, buffers))
    return result


def _takes_pairs(out: torch.Tensor) -> bool:
    """Return False if real values may not begin at a pair where kernels write them as pairs."""
    if out.is_complex():
        return True
    apart = {
        stride % 2 for n, stride in zip(out.shape, out.stride(), strict=True) if n > 1 < stride
    }
    return out.data_ptr() % (2 * out.element_size()) == 0 and len(apart) < 2


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """Return x, copied in its order of memory if its real values do not begin at a pair, as kernels read them."""
    if x.is_complex() or x.data_ptr() % (2 * x.element_size()) == 0:
        return x
    order = memory_order(x)
    copied = x.permute(order).clone(memory_format=torch.contiguous_format)
    return permuted_back(copied, order)


def _address(buffers: list[torch.Tensor], buffer: int, offset: int) -> int:
    tensor = buffers[buffer]
    return tensor.data_ptr() + offset * tensor.element_size()


def _copy(step: Copy, buffers: list[torch.Tensor]) -> None:
    if step.clears:
        buffers[step.target.buffer][: step.clears].zero_()
    _view(step.target, step.shape, buffers).copy_(_view(step.source, step.shape, buffers))


def _view(field: Field, shape: tuple[int, ...], buffers: list[torch.Tensor]) -> torch.Tensor:
    tensor = buffers[field.buffer]
    return tensor.as_strided(shape, field.strides, tensor.storage_offset() + field.offset)
