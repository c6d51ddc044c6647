"""Fourier layers: ours at each precision, alone and in a chain, against PyTorch and against cuFFT and cuBLAS.

Every candidate runs on the inputs that it is checked on, against float64 on the CPU. "alone" is one call of
`fourier_layer`: analysis, mix, rows. "in a chain" is what one more layer costs a compiled model: the difference of two
models that differ only in how many such layers they have, divided by how many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.gpu import published
from benchmarks.gpu.device import (
    FIELD_DTYPES,
    Call,
    each,
    ends,
    floor_ms,
    in_graph,
    milliseconds,
    relative_l2,
    rotating,
    strict_float32,
)
from benchmarks.gpu.direct import DirectLayer
from benchmarks.ops import Layer
from turbofno_ops import (
    PRECISIONS,
    FNODescription,
    FourierMap,
    PointwiseMap,
    compile_fno,
    explain,
    fourier_layer,
)

LARGEST_ERROR = {"fp32": 2e-6, "tf32": 2e-3, "bf16": 2e-2}
_LARGE_WEIGHT = 2**26


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
    """The library's layer; at bf16 its field, skip and bias are bfloat16."""
    dtype = FIELD_DTYPES[precision]
    return partial(
        fourier_layer,
        weight=inputs.weight,
        skip_weight=inputs.skip.to(dtype),
        bias=inputs.bias.to(dtype),
        activation="gelu",
        precision=precision,
    )


def eager(inputs: Inputs) -> Call:
    """The layer of the published codes."""
    return partial(
        published.fourier_layer,
        corners=published.corners_of(inputs.weight),
        skip=inputs.skip,
        bias=inputs.bias,
    )


def checked_error(what: str, error: float, limit: float) -> float:
    """The error itself; raises RuntimeError if it is over the limit or not a number."""
    if not error <= limit:
        raise RuntimeError(f"{what}: wrong result, relative L2 error {error:.1e} over {limit:.0e}")
    return error


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that computes the layer: what it is called, its precision in words, its error, how to run it."""

    name: str
    backend: str
    precision: str
    error: float
    run: Callable[[], object]
    bytes_each: int = 4


def _own(layer: Layer, inputs: Inputs, expected: torch.Tensor) -> Iterator[Candidate]:
    for precision in PRECISIONS:
        dtype = FIELD_DTYPES[precision]
        call = ours(inputs, precision)
        fields = [x.to(dtype) for x in inputs.fields]
        error = checked_error(
            f"{layer.label} {precision}",
            relative_l2(call(fields[0]), expected),
            LARGEST_ERROR[precision],
        )
        backend = explain(fields[0], inputs.weight).backend
        for name, run in (("call", each(call, fields)), ("graph", in_graph(call, fields))):
            yield Candidate(
                f"turbofno alone, {name}", backend, precision, error, run, dtype.itemsize
            )


def _others(
    layer: Layer, inputs: Inputs, expected: torch.Tensor, *, compiled: bool
) -> Iterator[Candidate]:
    fields = inputs.fields
    default = eager(inputs)
    strict = strict_float32(default)
    convolves = "fp32, 1x1 convolution TF32" if torch.backends.cudnn.allow_tf32 else "fp32"
    for call, precision in ((default, convolves), (strict, "fp32")):
        error = relative_l2(call(fields[0]), expected)
        for name, run in (("call", each(call, fields)), ("graph", in_graph(call, fields))):
            yield Candidate(f"eager, {name}", "torch.fft", precision, error, run)
    if compiled:
        torch._dynamo.reset()
        call = torch.compile(default, dynamic=False)
        error = relative_l2(call(fields[0]), expected)
        for name, run in (("call", each(call, fields)), ("graph", in_graph(call, fields))):
            yield Candidate(f"torch.compile, {name}", "torch.fft", convolves, error, run)
    direct = DirectLayer(fields[0].shape, inputs.weight, inputs.skip, inputs.bias)
    error = relative_l2(direct(fields[0]), expected)
    checked_error(f"{layer.label} cuFFT and cuBLAS", error, LARGEST_ERROR["fp32"])
    run = in_graph(direct, fields)
    yield Candidate("cuFFT+cuBLAS, graph", "cuFFT+cuBLAS", "fp32", error, run)


def chain_lengths(weight_bytes: int) -> tuple[int, int]:
    """Layers of the two models whose difference is the cost of a layer; few where weights are large."""
    return (2, 6) if weight_bytes > _LARGE_WEIGHT else (2, 18)


def _chain(inputs: Inputs, length: int) -> FNODescription:
    c = inputs.skip.shape[0]
    device = inputs.skip.device
    layer = FourierMap(inputs.weight, inputs.skip, inputs.bias)
    return FNODescription(
        in_channels=1,
        lifting=(PointwiseMap(torch.randn(c, 1, device=device)),),
        layers=(layer,) * length,
        projection=(PointwiseMap(torch.randn(1, c, device=device) / c),),
        activation="gelu",
    )


def chained_ms(layer: Layer, inputs: Inputs, precision: str, *, seconds: float) -> float:
    """Milliseconds that one more layer costs a compiled model."""
    short, long = chain_lengths(inputs.weight.nbytes)
    x = torch.randn(layer.batch, 1, *layer.size, device="cuda")
    models = {
        length: compile_fno(
            _chain(inputs, length), device="cuda", precision=precision, max_batch=layer.batch
        )
        for length in (short, long)
    }
    times = milliseconds(
        {str(length): partial(model, x) for length, model in models.items()},
        calls=1,
        seconds=seconds,
    )
    return (times[str(long)] - times[str(short)]) / (long - short)


def measure(
    layer: Layer, bandwidth: float, *, compiled: bool, seconds: float
) -> list[dict[str, object]]:
    """The rows of one layer. Raises RuntimeError if our result, or that of cuFFT and cuBLAS, is wrong."""
    inputs = draw(layer)
    values = inputs.fields[0].numel()
    expected = truth(inputs)
    candidates = [
        *_own(layer, inputs, expected),
        *_others(layer, inputs, expected, compiled=compiled),
    ]
    times = milliseconds(
        {f"{c.name} {c.precision}": c.run for c in candidates},
        calls=len(inputs.fields),
        seconds=seconds,
    )

    def row(c: Candidate, ms: float) -> dict[str, object]:
        floor = partial(floor_ms, values, c.bytes_each, bandwidth)
        return {
            "layer": layer.label,
            "what": c.name,
            "backend": c.backend,
            "precision": c.precision,
            "ms": ms,
            "floor ms": floor(),
            "floor with weights ms": floor(weight_bytes=inputs.weight.nbytes),
            "relative L2 error": c.error,
        }

    rows = [row(c, times[f"{c.name} {c.precision}"]) for c in candidates]
    for alone in candidates:
        if alone.name == "turbofno alone, graph":
            ms = chained_ms(layer, inputs, alone.precision, seconds=seconds / 5)
            chained = {**row(alone, ms), "what": "turbofno in a chain"}
            rows.append(chained)
    return rows
