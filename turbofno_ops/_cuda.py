"""The stages through the CUDA kernels: which shapes they take, the calls with their tables, a layer of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from turbofno_ops import (
    _cuda_tables,
    _stage_ops,  # noqa: F401  registers the ops
)
from turbofno_ops._activations import ACTIVATIONS
from turbofno_ops._channels import mode_major
from turbofno_ops._native import native_status, unsupported
from turbofno_ops._stages import Layer, Projection, two_axes
from turbofno_ops.description import PRECISIONS

_ALIGNMENT = 16
_OLDEST_MAJOR = 8  # compute capability: A100
# Up to so many modes along w, and channels times modes, rows that also analyze their result for the next
# layer beat an analysis of its own, on an H200 (docs/kernels.md, "With or without the next analysis").
_FUSED = {"fp32": (32, 1024), "tf32": (32, 3072), "bf16": (48, 4096)}
_ops = torch.ops.turbofno


def _run(op: Callable[..., Any], *args: object) -> Any:
    """Call a stage. Its library is behind a C interface, which passes words on, but no type of error."""
    try:
        return op(*args)
    except RuntimeError as error:
        if "out of memory" in str(error):
            raise torch.OutOfMemoryError(str(error).splitlines()[0]) from None
        raise


def field_dtype(precision: str) -> torch.dtype:
    """What fields are stored in under a precision policy."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


class CudaStages:
    """Stages on a grid of `size` (h, w) that keep `modes` (modes_h, modes_w).

    Fields are float32, under bf16 bfloat16; spectra are complex64, projections float32. With an
    `out_size` mix and rows give that grid. The object keeps its tables, so that a CUDA graph which reads
    them may.
    """

    def __init__(
        self,
        size: tuple[int, int],
        modes: tuple[int, int],
        *,
        device: torch.device,
        precision: str,
        out_size: tuple[int, int] | None = None,
    ) -> None:
        (h, w), (modes_h, modes_w) = size, modes
        h_out, w_out = out_size or size
        self._size, self._modes_w = (h_out, w_out), modes_w
        self._precision = PRECISIONS.index(precision)
        self._most_modes, self._most_products = _FUSED[precision]
        self._analysis = _cuda_tables.row_analysis(w, modes_w, device)
        self._synthesis = _cuda_tables.row_synthesis(w_out, modes_w, device)
        self._columns: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
        if not h == h_out == modes_h == 1:
            self._columns = (
                _cuda_tables.column_analysis(h, modes_h, device),
                _cuda_tables.column_synthesis(h_out, modes_h, device),
            )

    def analyze(self, x: torch.Tensor) -> torch.Tensor:
        return _run(_ops.analyze_rows, x, self._analysis, self._modes_w, self._precision)

    def mix(self, spectra: torch.Tensor, layer: Layer) -> torch.Tensor:
        columns, h_out = self._columns, self._size[0]
        return _run(_ops.spectral_mix, spectra, layer.weight, *columns, h_out, self._precision)

    def rows(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer, *, last: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        products = layer.weight.shape[-1] * self._modes_w
        fused = self._modes_w <= self._most_modes and products <= self._most_products and not last
        y, following = _run(
            _ops.fourier_rows,
            *self._summands(spectra, x, layer),
            self._analysis if fused else None,
            self._modes_w if fused else 0,
            ACTIVATIONS.index(layer.activation),
            self._size[1],
            self._precision,
        )
        return y, following if fused or last else self.analyze(y)

    def project(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer, projection: Projection
    ) -> torch.Tensor:
        return _run(
            _ops.project_rows,
            *self._summands(spectra, x, layer),
            projection.weight,
            projection.bias,
            ACTIVATIONS.index(layer.activation),
            self._size[1],
            self._precision,
        )

    def _summands(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer
    ) -> tuple[torch.Tensor | None, ...]:
        given = x if layer.skip is not None else None
        return spectra, self._synthesis, given, layer.skip, layer.bias

    @property
    def table_bytes(self) -> int:
        """Of all tables, on the device."""
        tables = (self._analysis, self._synthesis, *self._columns)
        return sum(table.nbytes for table in tables if table is not None)


def stages_refusal(
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    out_size: tuple[int, int],
    modes: tuple[int, int],
    *,
    precision: str,
    last: bool = True,
    skip: bool = True,
    projected: int = 0,
) -> str | None:
    """Why the kernels do not take one layer of these shapes, in words, or None if they do.

    All but the `last` of a chain may make the next one's spectra.
    """
    (c_in, c_out), (h, w), (modes_h, modes_w) = channels, size, modes
    code = PRECISIONS.index(precision)
    analysis = unsupported(
        "analysis", rows=batch * c_in * h, points=w, modes=modes_w, precision=code
    )
    return (
        analysis
        or unsupported(
            "mix",
            batch=batch,
            c_in=c_in,
            c_out=c_out,
            h_in=h,
            h_out=out_size[0],
            modes_h=modes_h,
            modes_w=modes_w,
            precision=code,
        )
        or unsupported(
            "rows",
            batch=batch,
            c_in=c_in if skip else 0,
            c_out=c_out,
            h=out_size[0],
            w=out_size[1],
            modes=modes_w,
            next_modes=0 if last else modes_w,
            projected=projected,
            precision=code,
        )
    )


@cache
def gpu_refusal(device: torch.device) -> str | None:
    """Why the CUDA kernels do not run on this GPU, in words, or None if they do."""
    status = native_status()
    if not status.loaded:
        return status.detail
    major, minor = torch.cuda.get_device_capability(device)
    if major < _OLDEST_MAJOR:
        return f"they need compute capability {_OLDEST_MAJOR}.0, {device} has {major}.{minor}"
    return None


def refusal(
    x: torch.Tensor, weight: torch.Tensor, out_size: Sequence[int], precision: str
) -> str | None:
    """Why the CUDA kernels do not take this layer, in words, or None if they do."""
    if not x.is_cuda:
        return f"x is on {x.device}"
    refused = gpu_refusal(x.device)
    if refused is not None:
        return refused
    if x.dtype != torch.float32:
        return f"they compute in float32, x is {x.dtype}"
    if x.ndim > 4:
        return "they serve one and two grid axes, x has three"
    return stages_refusal(
        x.shape[0],
        (weight.shape[0], weight.shape[1]),
        two_axes(x.shape[2:]),
        two_axes(out_size),
        two_axes(weight.shape[2:]),
        precision=precision,
    )


def _ready(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as kernels read them: contiguous, aligned, nothing left to negate or conjugate."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor


def layer(
    x: torch.Tensor,
    weight: torch.Tensor,
    skip_weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
    out_size: Sequence[int],
    precision: str,
) -> torch.Tensor:
    """activation(spectral_conv(x, weight) + skip_weight x + bias) for a layer that `refusal` lets pass."""
    size, modes = two_axes(x.shape[2:]), two_axes(weight.shape[2:])
    stages = CudaStages(
        size, modes, device=x.device, precision=precision, out_size=two_axes(out_size)
    )
    this = Layer(
        _ready(mode_major(weight)).view(*modes, *weight.shape[:2]),
        None if skip_weight is None else _ready(skip_weight),
        None if bias is None else _ready(bias),
        activation,
    )
    field = _ready(x.to(field_dtype(precision))).view(*x.shape[:2], *size)
    y, _ = stages.rows(stages.mix(stages.analyze(field), this), field, this, last=True)
    return y.to(x.dtype).view(x.shape[0], weight.shape[1], *out_size)
