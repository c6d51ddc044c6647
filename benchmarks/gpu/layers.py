"""Fourier layers: ours at each precision, alone and in a chain, against PyTorch and against cuFFT and cuBLAS.

Every candidate is checked against float64 on the CPU, on the inputs that it is timed on. "alone" is one layer. "in a chain"
is the time that one more layer takes in a compiled model: that of ten layers minus that of two, divided by eight, each as a
CUDA graph.
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
from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.blocks import FourierBlock, Pointwise
from turbofno.models.core.fno import FNO
from turbofno_ops import PRECISIONS, _cuda, compile_fno, fourier_layer

LARGEST_ERROR = {"fp32": 2e-6, "tf32": 2e-3, "bf16": 2e-2}
_LENGTHS = (2, 10)


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
    _square(8, 64, 256, 32),
    _square(8, 128, 256, 64),
    Layer(1024, 64, (1024,), (16,)),
    Layer(256, 64, (8192,), (16,)),
    Layer(4096, 64, (256,), (64,)),
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of all candidates: several fields, one weight (complex, mode-major in memory), skip, bias."""

    fields: list[torch.Tensor]
    weight: torch.Tensor
    skip: torch.Tensor
    bias: torch.Tensor


def draw(layer: Layer) -> Inputs:
    """Random inputs."""
    n, c = len(layer.modes), layer.channels
    weight = torch.randn(*layer.modes, c, c, dtype=torch.complex64, device="cuda") / math.sqrt(c)
    return Inputs(
        rotating((layer.batch, c, *layer.size)),
        weight.permute(n, n + 1, *range(n)),
        torch.randn(c, c, device="cuda") / math.sqrt(c),
        torch.randn(c, device="cuda"),
    )


def truth(inputs: Inputs) -> torch.Tensor:
    """The layer in float64 through torch.fft on the CPU, for the checked batch elements of the first field."""
    return fourier_layer(
        ends(inputs.fields[0]).cpu().double(),
        inputs.weight.cpu().to(torch.complex128),
        skip_weight=inputs.skip.cpu().double(),
        bias=inputs.bias.cpu().double(),
        activation="gelu",
        backend="reference",
    )


def ours(inputs: Inputs, precision: str) -> Call:
    """Our layer on the kernels."""
    return partial(
        fourier_layer,
        weight=inputs.weight,
        skip_weight=inputs.skip,
        bias=inputs.bias,
        activation="gelu",
        backend="cuda",
        precision=precision,
    )


class Chain:
    """A compiled network of `length` such layers between maps from and to one channel, for the shape of the first field."""

    def __init__(self, layer: Layer, inputs: Inputs, precision: str, length: int) -> None:
        module = network(layer, inputs, length)
        x = torch.randn(layer.batch, 1, *layer.size, device="cuda")
        self._expected = module.double()(ends(x).cpu().double())
        compiled = compile_fno(module.float().description(), device="cuda", precision=precision)
        refused = compiled.refusal(layer.size)
        if refused is not None:
            raise RuntimeError(f"{layer.label} {precision} is no chain: {refused}")
        self._forward = compiled._pass(layer.size)
        self.buffer = self._forward.buffer(layer.batch)
        self._forward.load(x, self._forward.input_view(self.buffer))

    def __call__(self, buffer: torch.Tensor) -> torch.Tensor:
        """The network's output [batch, 1, *grid] for the input in the buffer."""
        return self._forward.run(buffer)

    def error(self) -> float:
        """Relative L2 error against float64."""
        return relative_l2(self(self.buffer), self._expected)


def network(layer: Layer, inputs: Inputs, length: int) -> FNO:
    """`length` layers with these weights between random maps from and to one channel, on the CPU."""
    module = FNO(
        FNOArchitecture(
            in_channels=1,
            out_channels=1,
            hidden_channels=layer.channels,
            n_layers=length,
            modes=layer.modes,
        )
    )
    with torch.no_grad():
        for block in module.blocks:
            assert isinstance(block, FourierBlock)
            assert isinstance(block.skip, Pointwise)
            assert block.skip.bias is not None
            block.spectral_weight.copy_(inputs.weight)
            block.skip.weight.copy_(inputs.skip)
            block.skip.bias.copy_(inputs.bias)
    return module.eval().requires_grad_(False)


def eager(inputs: Inputs) -> Call:
    """The layer as published FNO codes write it."""
    return partial(
        published.fourier_layer,
        corners=published.corners_of(inputs.weight),
        skip=inputs.skip,
        bias=inputs.bias,
    )


def _own(layer: Layer, inputs: Inputs, expected: torch.Tensor) -> Iterator[Candidate]:
    for precision in PRECISIONS:
        limit = LARGEST_ERROR[precision]
        what = f"{layer.label} {precision}"
        call = ours(inputs, precision)
        fields = inputs.fields
        error = checked_error(what, relative_l2(call(fields[0]), expected), limit)
        named = partial(Candidate, backend="cuda", precision=precision)
        yield named("turbofno alone, call", error=error, run=each(call, fields))
        yield named("turbofno alone, graph", error=error, run=in_graph(call, fields))
        short, long = (Chain(layer, inputs, precision, length) for length in _LENGTHS)
        for chain, length in zip((short, long), _LENGTHS, strict=True):
            checked_error(f"{what}, {length} in a chain", chain.error(), length * limit)
        yield named(
            "turbofno in a chain",
            error=error,
            run=in_graph(long, [long.buffer]),
            less=in_graph(short, [short.buffer]),
            layers_each=_LENGTHS[1] - _LENGTHS[0],
            bytes_each=_cuda.field_dtype(precision).itemsize,  # alone, fields are float32
        )


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
    """The rows of one layer. Raises RuntimeError if our result or that of cuFFT and cuBLAS is wrong."""
    inputs = draw(layer)
    expected = truth(inputs)
    candidates = [
        *_own(layer, inputs, expected),
        *_others(layer, inputs, expected, compiled=compiled),
    ]
    times = iter(milliseconds([run for c in candidates for run in c.runs], seconds=seconds))
    kept = layer.batch * layer.channels * math.prod(layer.modes)
    rows = []
    for c in candidates:
        ms = next(times) - (next(times) if c.less is not None else 0.0)
        floor = partial(floor_ms, inputs.fields[0].numel(), c.bytes_each, bandwidth)
        rows.append(
            {
                "layer": layer.label,
                "what": c.name,
                "backend": c.backend,
                "precision": c.precision,
                "ms": ms / (c.layers_each or len(inputs.fields)),
                "floor ms": floor(),
                "floor with spectra ms": floor(modes=kept),
                "relative L2 error": c.error,
            }
        )
    return rows
