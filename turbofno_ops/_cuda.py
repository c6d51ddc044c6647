"""The stages through the CUDA kernels: which shapes they take, the calls with their tables, a layer of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch

from turbofno_ops import (
    _cuda_tables,
    _stage_ops,  # noqa: F401  registers the ops
)
from turbofno_ops._activations import parse_activation
from turbofno_ops._channels import mode_major
from turbofno_ops._native import native_status, unsupported, workspace_bytes
from turbofno_ops._stages import Layer, Projection, two_axes
from turbofno_ops.description import PRECISIONS

_ALIGNMENT = 16
_OLDEST_MAJOR = 8  # compute capability: A100
_SHARED_MEMORY = 160 * 1024  # of a block of the row kernels (csrc/plan/rows_plan.h)
# Up to so many modes along w, and channels times modes, rows that also analyze their result for the next
# layer beat an analysis of its own, on an H200 (docs/kernels.md, "With or without the next analysis").
_FUSED = {"fp32": (32, 1024), "tf32": (32, 3072), "bf16": (48, 4096)}
_ops = torch.ops.turbofno


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
        self._device = device
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
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
        *rows, points = x.shape
        spectra = x.new_empty((*rows, self._modes_w), dtype=torch.complex64)
        workspace = self._workspace(
            "analysis", rows=math.prod(rows), points=points, modes=self._modes_w
        )
        _ops.analyze_rows(x, self._analysis, self._modes_w, self._precision, spectra, workspace)
        return spectra

    def mix(self, spectra: torch.Tensor, layer: Layer) -> torch.Tensor:
        (batch, _, h, _), h_out = spectra.shape, self._size[0]
        modes_h, modes_w, c_in, c_out = layer.weight.shape
        mixed = spectra.new_empty(batch, c_out, h_out, modes_w)
        workspace = self._workspace(
            "mix",
            batch=batch,
            c_in=c_in,
            c_out=c_out,
            h_in=h,
            h_out=h_out,
            modes_h=modes_h,
            modes_w=modes_w,
        )
        _ops.spectral_mix(spectra, layer.weight, *self._columns, self._precision, mixed, workspace)
        return mixed

    def rows(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer, *, last: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        products = spectra.shape[1] * self._modes_w
        fused = self._modes_w <= self._most_modes and products <= self._most_products and not last
        y = x.new_empty((*spectra.shape[:3], self._size[1]))
        following = torch.empty_like(spectra) if fused else None
        _ops.fourier_rows(
            *self._summands(spectra, x, layer),
            self._analysis if fused else None,
            parse_activation(layer.activation).number,
            self._precision,
            y,
            following,
            self._rows_workspace(spectra, x, layer, next_modes=self._modes_w if fused else 0),
        )
        if following is None:
            following = spectra[..., :0] if last else self.analyze(y)
        return y, following

    def project(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer, projection: Projection
    ) -> torch.Tensor:
        (batch, _, h, _), projected = spectra.shape, projection.weight.shape[0]
        out = projection.weight.new_empty(batch, projected, h, self._size[1])
        _ops.project_rows(
            *self._summands(spectra, x, layer),
            projection.weight,
            projection.bias,
            parse_activation(layer.activation).number,
            self._precision,
            out,
            self._rows_workspace(spectra, x, layer, projected=projected),
        )
        return out

    def _summands(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer
    ) -> tuple[torch.Tensor | None, ...]:
        given = x if layer.skip is not None else None
        return spectra, self._synthesis, given, layer.skip, layer.bias

    def _rows_workspace(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer, **results: int
    ) -> torch.Tensor:
        batch, c_out, h, modes_w = spectra.shape
        c_in = x.shape[1] if layer.skip is not None else 0
        w = self._size[1]
        return self._workspace(
            "rows", batch=batch, c_in=c_in, c_out=c_out, h=h, w=w, modes=modes_w, **results
        )

    def _workspace(self, stage: str, **sizes: int) -> torch.Tensor:
        count = workspace_bytes(
            stage, precision=self._precision, multiprocessors=self._multiprocessors, **sizes
        )
        return torch.empty(count, dtype=torch.uint8, device=self._device)

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
    found = torch.cuda.get_device_properties(device)
    if found.major < _OLDEST_MAJOR:
        return f"they need compute capability {_OLDEST_MAJOR}.0, {device} has {found.major}.{found.minor}"
    # CUDA keeps 1 KiB of a multiprocessor's
    if found.shared_memory_per_multiprocessor <= _SHARED_MEMORY:
        return (
            f"a block needs {_SHARED_MEMORY // 1024} KiB of shared memory, as A100 and Hopper have it; {device} "
            f"({found.name}) has {found.shared_memory_per_multiprocessor // 1024} KiB a multiprocessor"
        )
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
