"""Registration of the transform with PyTorch: schema, implementation, fake tensor.

The backend is chosen inside the op, at run time, so that a compiled graph does not freeze the choice.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.library import Library

from turbofno_ops._support import gpu_refusal
from turbofno_ops.ntt import _cuda
from turbofno_ops.ntt._arithmetic import BY_NAME
from turbofno_ops.ntt._arithmetic import transform as reference

_MAX_LINES = 2**24  # of the kernels

_library = Library("turbofno", "FRAGMENT")
_library.define(
    "ntt(Tensor x, Tensor? factor, str field, bool inverse, bool negacyclic, str backend) -> Tensor"
)


def refusal(x: torch.Tensor) -> str | None:
    """Return the reason why the kernels do not transform x, or None if they do."""
    if x.device.type != "cuda":
        return f"x is on {x.device}"
    if x.numel() // x.shape[-1] > _MAX_LINES:
        return "x has more than 2^24 lines"
    return gpu_refusal(x.device)


def _ntt(
    x: torch.Tensor,
    factor: torch.Tensor | None,
    field: str,
    inverse: bool,
    negacyclic: bool,
    backend: str,
) -> torch.Tensor:
    if x.numel() == 0:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    refused = refusal(x) if backend != "reference" else "another backend was asked for"
    if refused is None:
        return _cuda.transform(x, factor, field, inverse=inverse, negacyclic=negacyclic)
    if backend == "cuda":
        raise ValueError(f"backend 'cuda' cannot run this transform: {refused}")
    return _on_cpu(x, factor, field, inverse=inverse, negacyclic=negacyclic)


def _on_cpu(
    x: torch.Tensor, factor: torch.Tensor | None, name: str, *, inverse: bool, negacyclic: bool
) -> torch.Tensor:
    field = BY_NAME[name]
    values, other = (None if t is None else _lines(t) for t in (x, factor))
    assert values is not None
    if other is not None:
        values = field.multiply(values, other)
    found = reference(field, values, inverse=inverse, negacyclic=negacyclic)
    return torch.from_numpy(found.view(np.int64)).view(x.shape).to(x.device)


def _lines(x: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return x.contiguous().cpu().numpy().view(np.uint64).reshape(-1, x.shape[-1])


def _fake_ntt(
    x: torch.Tensor,
    factor: torch.Tensor | None,
    field: str,
    inverse: bool,
    negacyclic: bool,
    backend: str,
) -> torch.Tensor:
    del factor, field, inverse, negacyclic, backend
    return x.new_empty(x.shape)


_library.impl("ntt", _ntt, "CompositeExplicitAutograd")
torch.library.register_fake("turbofno::ntt", _fake_ntt, lib=_library)


def transform(
    x: torch.Tensor,
    factor: torch.Tensor | None,
    field: str,
    backend: str,
    *,
    inverse: bool,
    negacyclic: bool,
) -> torch.Tensor:
    """Call the op; arguments are checked before (__init__.py)."""
    found: torch.Tensor = torch.ops.turbofno.ntt(x, factor, field, inverse, negacyclic, backend)
    return found
