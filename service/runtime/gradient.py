"""Computes vector-Jacobian products of a module and measures the memory that they need."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from turbofno.service.engine.vjp import VjpShapes
from turbofno.service.errors import NotDifferentiable


class GradientMemory(NamedTuple):
    """Memory for the gradient of one field, in bytes for each grid point of the input."""

    saved: float
    """Tensors saved for the backward pass."""
    largest: float
    """The largest saved tensor. Forward and backward pass each need a temporary of that size."""

    def bytes(self, points: int) -> int:
        """Estimated bytes for a field with that many grid points."""
        return round(points * (self.saved + 2 * self.largest))


def vjp(module: torch.nn.Module, rows: torch.Tensor, shapes: VjpShapes) -> torch.Tensor:
    """Rows of input and cotangent -> rows of gradient and output, float32 [n, length]; see service/engine/vjp.py.

    Gradients are enabled within this call only, even in inference mode.
    """
    # Autograd cannot use tensors made in inference mode, so copy them.
    with torch.inference_mode(mode=False), torch.enable_grad():
        field, cotangent = (
            part.clone(memory_format=torch.contiguous_format).view(-1, *shape)
            for part, shape in zip(rows.split(shapes.split, dim=1), shapes, strict=True)
        )
        output = _forward(module, field.requires_grad_())
        power = _power_of_two(cotangent)
        gradient = _backward(output, field, cotangent / power) * power
        return torch.cat([gradient.flatten(1), output.detach().flatten(1)], dim=1)


def vjp_of_fields(module: torch.nn.Module, in_channels: int, x: torch.Tensor) -> torch.Tensor:
    """`vjp` without flattening: input and cotangent [n, in_channels + out_channels, *grid] -> gradient and output, alike."""
    grid = tuple(x.shape[2:])
    shapes = VjpShapes((in_channels, *grid), (x.shape[1] - in_channels, *grid))
    return vjp(module, x.flatten(1), shapes).view_as(x)


def measure(module: torch.nn.Module, field: torch.Tensor) -> GradientMemory:
    """Measure the memory of a gradient by computing that of one field [1, in_channels, *grid].

    Raises:
        NotDifferentiable: the module has no gradient.
    """
    weight_storages = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    sizes: dict[int, int] = {}

    def record(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in weight_storages:
            sizes[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.inference_mode(mode=False), torch.enable_grad():
        field = field.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(record, _unchanged):
            output = _forward(module, field)
        if output.shape[2:] != field.shape[2:]:
            raise NotDifferentiable(
                f"its output has the grid {list(output.shape[2:])} for an input on {list(field.shape[2:])}"
            )
        _backward(output, field, torch.ones_like(output))
    points = field[0, 0].numel()
    return GradientMemory(sum(sizes.values()) / points, max(sizes.values(), default=0) / points)


def _forward(module: torch.nn.Module, field: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = module(field)
    if not output.requires_grad:
        raise NotDifferentiable("PyTorch cannot differentiate its output by its input")
    return output


def _power_of_two(cotangent: torch.Tensor) -> torch.Tensor:
    """A power of two near each field's largest element: divided by it, neither tiny nor huge cotangents leave float32."""
    largest = cotangent.abs().amax(tuple(range(1, cotangent.ndim)), keepdim=True)
    # normal numbers, whose products are exact
    largest = largest.clamp(2.0**-126, 2.0**126)
    return largest / torch.frexp(largest).mantissa


def _backward(output: torch.Tensor, field: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
    # Stay on this thread: autograd's own GPU thread has no CUDA context yet, and cuBLAS would warn.
    with torch.autograd.set_multithreading_enabled(mode=False):
        product = _Product.apply(output, cotangent)  # type: ignore[no-untyped-call]
        (gradient,) = torch.autograd.grad(product, field)
    return gradient


class _Product(torch.autograd.Function):
    """A scalar whose derivative by its first argument is the second one.

    If `torch.autograd.grad` is given that one, it imports sympy, at the start of every engine.
    """

    @staticmethod
    def forward(context: Any, output: torch.Tensor, cotangent: torch.Tensor) -> torch.Tensor:
        context.cotangent = cotangent
        return output.new_zeros(())

    @staticmethod
    def backward(context: Any, *_: Any) -> tuple[torch.Tensor, None]:
        return context.cotangent, None


def _unchanged(saved: torch.Tensor) -> torch.Tensor:
    return saved
