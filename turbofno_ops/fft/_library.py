"""Registration of the transform with PyTorch: schema, implementation, fake tensors and gradients.

One op has all transforms: the adjoint of a transform is another one. The backend is chosen inside, at run time.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._C import (
    DispatchKey,
    DispatchKeySet,
    _dispatch_keys,
    _dispatch_tls_local_include_set,
    _len_torch_function_stack,
)
from torch._C._profiler import _RecordFunctionFast
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad
from torch.library import Library

from turbofno_ops._implementations import add_implementation, owned
from turbofno_ops._modes import column_weights
from turbofno_ops.fft import _kernels, _torch
from turbofno_ops.fft._choice import choose, log_fallback
from turbofno_ops.fft._transform import Axis, Transform, new_result

_NAME = "turbofno::fourier_transform"

_library = Library("turbofno", "FRAGMENT")
_library.define(
    "fourier_transform(Tensor x, str kind, bool inverse, int[] dims, SymInt[] points, SymInt[] in_tails, "
    "SymInt[] out_heads, SymInt[] out_tails, str scaling, str backend) -> Tensor"
)


_ORDINARY = (
    DispatchKey.CPU,
    DispatchKey.CUDA,
    DispatchKey.AutogradCPU,
    DispatchKey.AutogradCUDA,
    DispatchKey.AutocastCPU,
    DispatchKey.AutocastCUDA,
    DispatchKey.ADInplaceOrView,
    DispatchKey.BackendSelect,
)
_OTHERS = ~functools.reduce(operator.or_, (DispatchKeySet(of).raw_repr() for of in _ORDINARY))


def call(x: torch.Tensor, transform: Transform, backend: str) -> torch.Tensor:
    """Call the registered op, or its implementation alone where PyTorch's dispatcher has nothing to add.

    A small field takes less time than the dispatcher. Kernels that others register for the op are not looked for then.
    """
    if not torch.compiler.is_compiling() and _is_plain(x):
        with _RecordFunctionFast(_NAME):
            return _computed(x, transform, backend)
    axes = transform.axes
    return _apply(
        x,
        transform.kind,
        transform.inverse,
        [axis.dim for axis in axes],
        [axis.points for axis in axes],
        [axis.in_tail for axis in axes],
        [axis.out_head for axis in axes],
        [axis.out_tail for axis in axes],
        transform.scaling,
        backend,
    )


def _is_plain(x: torch.Tensor) -> bool:
    """True for values in memory of a CPU or a GPU, if no mode, transform of functions, tracer or gradient takes part."""
    keys = _dispatch_keys(x).raw_repr() | _dispatch_tls_local_include_set().raw_repr()
    return (
        type(x) is torch.Tensor
        and not keys & _OTHERS
        and not (x.requires_grad and torch.is_grad_enabled())
        and forward_ad._current_level < 0
        and _len_torch_function_stack() == 0
    )


def _apply(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    functional = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    run = _functional if functional else torch.ops.turbofno.fourier_transform
    result: torch.Tensor = run(x, *arguments)
    return result


@_disable_dynamo
def _functional(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    """Run what torch.compile does not trace: callers run uncompiled, or raise with fullgraph=True."""
    found: torch.Tensor = _Functional.apply(x, *arguments)  # type: ignore[no-untyped-call]
    return found


def _described(
    shape: Sequence[int],
    kind: str,
    inverse: bool,
    dims: Sequence[int],
    points: Sequence[int],
    in_tails: Sequence[int],
    out_heads: Sequence[int],
    out_tails: Sequence[int],
    scaling: str,
) -> Transform:
    axes = tuple(
        Axis(dim, count, shape[dim] - in_tail, in_tail, out_head, out_tail)
        for dim, count, in_tail, out_head, out_tail in zip(
            dims, points, in_tails, out_heads, out_tails, strict=True
        )
    )
    return Transform(kind, inverse, axes, scaling)


def _run(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    *description, backend = arguments
    return _computed(x, _described(x.shape, *description), backend)


def _computed(x: torch.Tensor, transform: Transform, backend: str) -> torch.Tensor:
    if x.numel() == 0:
        return new_result(x, transform)
    x = x.resolve_conj().resolve_neg()
    choice = choose(x, transform, backend)
    log_fallback(x, choice)
    if choice.backend == "kernels":
        return owned(_kernels.run(x, transform))
    y = _torch.run(x, transform)
    result = new_result(x, transform)
    # torch.fft leaves strides that depend on sizes and device; the op promises its own
    return owned(y if y.stride() == result.stride() and y is not x else result.copy_(y))


def _fake(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
    *description, _ = arguments
    return new_result(x, _described(x.shape, *description))


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    del output
    x, *description, ctx.backend = inputs
    ctx.transform = _described(x.shape, *description)


def _differentiate(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    transform: Transform = ctx.transform
    if transform.kind == "real_to_complex":
        grad = _weighted(grad, transform.axes[-1], inverse=True)
    found = call(grad, transform.adjoint, ctx.backend)
    if transform.kind == "complex_to_real":
        found = _weighted(found, transform.axes[-1], inverse=False)
    return found, *[None] * 9


class _Functional(torch.autograd.Function):
    """The op for torch.func and forward mode: gradients registered with an op fail in the one, and are zero in the other."""

    @staticmethod
    def forward(x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        found: torch.Tensor = torch.ops.turbofno.fourier_transform(x, *arguments)
        return found

    setup_context = staticmethod(_save)
    backward = staticmethod(_differentiate)

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        return call(tangent, ctx.transform, ctx.backend)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, ...], x: torch.Tensor, *arguments: Any
    ) -> tuple[torch.Tensor, int]:
        """Transform the whole batch in one call; its dimension stays where it is."""
        del info
        batch, (kind, inverse, dims, *rest) = in_dims[0], arguments
        dims = [dim + (dim >= batch) for dim in dims]
        return _apply(x, kind, inverse, dims, *rest), batch


def _weighted(spectrum: torch.Tensor, axis: Axis, *, inverse: bool) -> torch.Tensor:
    """Return a half spectrum times, or divided by, how often each of its values is in the whole spectrum."""
    parts = torch.view_as_real(spectrum.resolve_conj())
    weights = column_weights(
        spectrum.shape[axis.dim], axis.points, dtype=parts.dtype, device=parts.device
    )
    weights = weights.view([-1, *[1] * (spectrum.ndim - axis.dim)])
    return torch.view_as_complex((parts / weights if inverse else parts * weights).contiguous())


_library.impl("fourier_transform", add_implementation(_NAME, _run), "CompositeExplicitAutograd")
torch.library.register_fake(_NAME, _fake, lib=_library)
torch.library.register_autograd(_NAME, _differentiate, setup_context=_save, lib=_library)
