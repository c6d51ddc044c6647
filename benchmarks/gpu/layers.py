"""Fourier layers: ours at each precision, alone and in a chain, against PyTorch and against cuFFT and cuBLAS.

Every candidate is checked on the inputs it is timed on, against float64 on the CPU. "alone" is one layer: analysis, mix,
rows. "in a chain" is what it costs in a compiled model: a CUDA graph of several such layers back to back, mix and rows
with the next layer's analysis in it, divided by how many.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu import published
from benchmarks.gpu.candidates import Candidate, checked_error, published_candidates
from benchmarks.gpu.device import (
    Call,
    each,
    ends,
    floor_ms,
    in_graph,
    milliseconds,
    relative_l2,
    rotating,
)
from benchmarks.gpu.direct import DirectLayer
from benchmarks.ops import Layer
from turbofno_ops import PRECISIONS, _cuda, fourier_layer
from turbofno_ops._channels import mode_major
from turbofno_ops._stages import Layer as StageLayer
from turbofno_ops._stages import two_axes

LARGEST_ERROR = {"fp32": 2e-6, "tf32": 2e-3, "bf16": 2e-2}
_CHAIN = 8


def _square(batch: int, channels: int, n: int, m: int) -> Layer:
    return Layer(batch, channels, (n, n), (2 * m, m))


LAYERS = (
    _square(1, 32, 64, 12),
    _square(64, 32, 64, 12),
    _square(32, 64, 128, 12),
    _square(32, 64, 128, 32),
    _square(128, 32, 85, 12),
    _square(32, 32, 421, 12),
    _square(8, 64, 256, 16),
    _square(8, 128, 256, 64),
    Layer(1024, 64, (1024,), (16,)),
    Layer(256, 64, (8192,), (16,)),
    Layer(4096, 64, (256,), (64,)),
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What every candidate gets: several fields, one weight (complex, mode by mode in memory), skip, bias."""

    fields: list[torch.Tensor]
    weight: torch.Tensor
    skip: torch.Tensor
    bias: torch.Tensor


def draw(layer: Layer) -> Inputs:
    """Fresh random inputs."""
    n, c = len(layer.modes), layer.channels
    weight = torch.randn(*layer.modes, c, c, dtype=torch.complex64, device="cuda") / math.sqrt(c)
    return Inputs(
        rotating((layer.batch, c, *layer.size)),
        weight.permute(n, n + 1, *range(n)),
        torch.randn(c, c, device="cuda") / math.sqrt(c),
        torch.randn(c, device="cuda"),
    )


def truth(inputs: Inputs, *, layers: int = 1) -> torch.Tensor:
    """One layer or several in float64 through torch.fft on the CPU, for the checked batch elements of the first field."""
    x = ends(inputs.fields[0]).cpu().double()
    weight = inputs.weight.cpu().to(torch.complex128)
    skip, bias = inputs.skip.cpu().double(), inputs.bias.cpu().double()
    for _ in range(layers):
        x = fourier_layer(
            x, weight, skip_weight=skip, bias=bias, activation="gelu", backend="reference"
        )
    return x


def ours(inputs: Inputs, precision: str) -> Call:
    """The library's layer on the kernels; at bf16 on a field that is stored in bfloat16."""
    weight, skip, bias = inputs.weight, inputs.skip, inputs.bias
    if precision == "bf16":
        return lambda x: _cuda.layer(x, weight, skip, bias, "gelu", x.shape[2:], precision)
    return partial(
        fourier_layer,
        weight=weight,
        skip_weight=skip,
        bias=bias,
        activation="gelu",
        backend="cuda",
        precision=precision,
    )


class Chain:
    """Eight equal layers back to back as a compiled model runs them, for the first field and its spectra."""

    def __init__(self, layer: Layer, inputs: Inputs, precision: str) -> None:
        modes = two_axes(layer.modes)
        self._stages = _cuda.CudaStages(
            two_axes(layer.size), modes, device=inputs.weight.device, precision=precision
        )
        weight = mode_major(inputs.weight).view(*modes, *inputs.weight.shape[:2])
        self._layer = StageLayer(weight, inputs.skip, inputs.bias, "gelu")
        field = inputs.fields[0].to(_cuda.field_dtype(precision))
        self._field = field.view(*field.shape[:2], *two_axes(layer.size))
        self._spectra = self._stages.analyze(self._field)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """All of them; the field is the chain's own, whatever x is."""
        del x
        return self.run(_CHAIN)

    def run(self, length: int) -> torch.Tensor:
        """The field after `length` layers, the next one's spectra made too: [batch, channels, h, w]."""
        x, spectra = self._field, self._spectra
        for _ in range(length):
            mixed = self._stages.mix(spectra, self._layer)
            x, spectra = self._stages.rows(mixed, x, self._layer, last=False)
        return x


def eager(inputs: Inputs) -> Call:
    """The layer of the published codes."""
    return partial(
        published.fourier_layer,
        corners=published.corners_of(inputs.weight),
        skip=inputs.skip,
        bias=inputs.bias,
    )


def _own(layer: Layer, inputs: Inputs, expected: torch.Tensor) -> Iterator[Candidate]:
    after_two = truth(inputs, layers=2)
    for precision in PRECISIONS:
        dtype, limit = _cuda.field_dtype(precision), LARGEST_ERROR[precision]
        what = f"{layer.label} {precision}"
        call = ours(inputs, precision)
        fields = [x.to(dtype) for x in inputs.fields]
        error = checked_error(what, relative_l2(call(fields[0]), expected), limit)
        named = partial(Candidate, backend="cuda", precision=precision, bytes_each=dtype.itemsize)
        yield named("turbofno alone, call", error=error, run=each(call, fields))
        yield named("turbofno alone, graph", error=error, run=in_graph(call, fields))
        chain = Chain(layer, inputs, precision)
        twice = relative_l2(chain.run(2).view_as(fields[0]), after_two)
        checked_error(f"{what}, two in a chain", twice, 2 * limit)
        run = in_graph(chain, fields[:1])
        yield named("turbofno in a chain", error=error, run=run, layers_each=_CHAIN)


def _others(
    layer: Layer, inputs: Inputs, expected: torch.Tensor, *, compiled: bool
) -> Iterator[Candidate]:
    fields = inputs.fields
    yield from published_candidates(
        eager(inputs), fields, expected, convolution="1x1 convolution", compiled=compiled
    )
    direct = DirectLayer(fields[0].shape, inputs.weight, inputs.skip, inputs.bias)
    error = relative_l2(direct(fields[0]), expected)
    checked_error(f"{layer.label} cuFFT and cuBLAS", error, LARGEST_ERROR["fp32"])
    run = in_graph(direct, fields)
    yield Candidate("cuFFT+cuBLAS, graph", "cuFFT+cuBLAS", "fp32", error, run)


def measure(
    layer: Layer, bandwidth: float, *, compiled: bool, seconds: float
) -> list[dict[str, object]]:
    """The rows of one layer. Raises RuntimeError if our result, or that of cuFFT and cuBLAS, is wrong."""
    inputs = draw(layer)
    expected = truth(inputs)
    candidates = [
        *_own(layer, inputs, expected),
        *_others(layer, inputs, expected, compiled=compiled),
    ]
    times = milliseconds([c.run for c in candidates], seconds=seconds)
    rows = []
    for c, ms in zip(candidates, times, strict=True):
        floor = partial(floor_ms, inputs.fields[0].numel(), c.bytes_each, bandwidth)
        rows.append(
            {
                "layer": layer.label,
                "what": c.name,
                "backend": c.backend,
                "precision": c.precision,
                "ms": ms / (c.layers_each or len(inputs.fields)),
                "floor ms": floor(),
                "floor with weights ms": floor(weight_bytes=inputs.weight.nbytes),
                "relative L2 error": c.error,
            }
        )
    return rows
