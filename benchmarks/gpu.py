"""Fourier layers on a GPU: ours against PyTorch eager, in a CUDA graph and compiled, with errors and the memory floor.

Every candidate is checked against float64 on the inputs it is timed on. Inputs are random and rotated, so that
together they do not fit in the L2 cache. "floor" is the time to read the field once and write it once at the
card's own copy bandwidth, measured in the same run; "floor+w" adds reading the weights once.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.ops import Layer
from benchmarks.timing import RESULTS, print_table
from turbofno_ops import explain, fourier_layer, native_status

_LARGEST_OWN_ERROR = 2e-6
_L2_BYTES = 64 * 2**20
_MOST_INPUTS = 32


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
    """Fresh random inputs, enough fields to overflow the L2."""
    n, c = len(layer.modes), layer.channels
    field_bytes = 8 * layer.batch * c * math.prod(layer.size)
    count = min(_MOST_INPUTS, math.ceil(2 * _L2_BYTES / field_bytes))
    weight = torch.randn(*layer.modes, c, c, dtype=torch.complex64, device="cuda") / c
    return Inputs(
        [torch.randn(layer.batch, c, *layer.size, device="cuda") for _ in range(count)],
        weight.permute(n, n + 1, *range(n)),
        torch.randn(c, c, device="cuda") / math.sqrt(c),
        torch.randn(c, device="cuda"),
    )


def ours(x: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """The library's own layer."""
    return fourier_layer(
        x, inputs.weight, skip_weight=inputs.skip, bias=inputs.bias, activation="gelu"
    )


def eager_layer(
    x: torch.Tensor,
    corners: tuple[torch.Tensor, ...],
    skip: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """A Fourier layer as the original FNO code writes it: rfftn, einsum a corner, irfftn, 1x1 convolution, GELU."""
    if x.ndim == 3:
        (low,) = corners
        spectrum = torch.fft.rfft(x)
        out = torch.zeros(
            x.shape[0], low.shape[1], spectrum.shape[-1], dtype=torch.complex64, device=x.device
        )
        modes = low.shape[-1]
        out[:, :, :modes] = torch.einsum("bix,iox->box", spectrum[:, :, :modes], low)
        return F.gelu(torch.fft.irfft(out, n=x.shape[-1]) + F.conv1d(x, skip[:, :, None], bias))
    low, high = corners
    m1, m2 = low.shape[-2:]
    spectrum = torch.fft.rfft2(x)
    out = torch.zeros(
        x.shape[0], low.shape[1], *spectrum.shape[-2:], dtype=torch.complex64, device=x.device
    )
    out[:, :, :m1, :m2] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m1, :m2], low)
    out[:, :, -m1:, :m2] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m1:, :m2], high)
    skipped = F.conv2d(x, skip[:, :, None, None], bias)
    return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + skipped)


def corners_of(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The weight as the original code stores it: contiguous [c_in, c_out, *modes], one tensor a corner."""
    if weight.ndim == 3:
        return (weight.contiguous(),)
    half = weight.shape[2] // 2
    return weight[:, :, :half].contiguous(), weight[:, :, half:].contiguous()


def in_graph(
    call: Callable[[torch.Tensor], torch.Tensor], fields: list[torch.Tensor]
) -> Callable[[], object]:
    """One CUDA graph of `call` on every field."""
    for x in fields[:2]:
        call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x in fields:
            call(x)
    return graph.replay


def milliseconds(
    candidates: dict[str, Callable[[], object]], *, calls: int, seconds: float
) -> dict[str, float]:
    """Median device time of one call of each candidate, candidates in turn; each runs `calls` calls at once."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    torch.cuda.synchronize()
    spent = 0.0
    while spent < seconds or len(next(iter(taken.values()))) < 7:
        for name, run in candidates.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            ms = start.elapsed_time(end)
            taken[name].append(ms / calls)
            spent += ms / 1e3
    return {name: median(times) for name, times in taken.items()}


def copy_bandwidth() -> float:
    """Bytes read and written each second by a large copy on the device."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    ms = milliseconds({"copy": lambda: target.copy_(source)}, calls=1, seconds=0.05)["copy"]
    return 2 * source.nbytes / (ms / 1e3)


def _error(y: torch.Tensor, truth: torch.Tensor) -> float:
    return float((y.double() - truth).norm() / truth.norm())


def _every(call: Callable[[torch.Tensor], torch.Tensor], fields: list[torch.Tensor]) -> None:
    for x in fields:
        call(x)


def measure(layer: Layer, bandwidth: float, *, compiled: bool, seconds: float) -> dict[str, object]:
    """One row of the table. Raises RuntimeError if our result is wrong."""
    inputs = draw(layer)
    x = inputs.fields[0]
    corners = corners_of(inputs.weight)
    own = partial(ours, inputs=inputs)
    eager = partial(eager_layer, corners=corners, skip=inputs.skip, bias=inputs.bias)
    few = x[: max(1, layer.batch // 16)]
    truth = fourier_layer(
        few.double(),
        inputs.weight.to(torch.complex128),
        skip_weight=inputs.skip.double(),
        bias=inputs.bias.double(),
        activation="gelu",
        backend="gemm",
    )
    errors = {
        "ours": _error(own(x)[: len(few)], truth),
        "eager": _error(eager(x)[: len(few)], truth),
    }
    if not errors["ours"] <= _LARGEST_OWN_ERROR:
        raise RuntimeError(f"{layer.label}: wrong result, relative L2 error {errors['ours']:.1e}")
    candidates: dict[str, Callable[[], object]] = {
        "ours": partial(_every, own, inputs.fields),
        "ours graph": in_graph(own, inputs.fields),
        "eager": partial(_every, eager, inputs.fields),
        "eager graph": in_graph(eager, inputs.fields),
    }
    if compiled:
        torch._dynamo.reset()
        candidates["compile"] = partial(_every, torch.compile(eager), inputs.fields)
    times = milliseconds(candidates, calls=len(inputs.fields), seconds=seconds)
    floor = 2 * x.nbytes / bandwidth * 1e3
    with_weights = (2 * x.nbytes + inputs.weight.nbytes) / bandwidth * 1e3
    return {
        "layer": layer.label,
        "backend": explain(x, inputs.weight).backend,
        "floor ms": floor,
        **{f"{name} ms": ms for name, ms in times.items()},
        "ours/floor": times["ours graph"] / floor,
        "ours/floor+w": times["ours graph"] / with_weights,
        "eager/ours": times["eager"] / times["ours"],
        "eager graph/ours graph": times["eager graph"] / times["ours graph"],
        "ours error": errors["ours"],
        "eager error": errors["eager"],
    }


def _kernel_name(symbol: str) -> str:
    found = re.search(r"turbofno::[^:]*::(\w+)", symbol)
    return found.group(1) if found else symbol


def kernel_times(layer: Layer) -> dict[str, float]:
    """Mean milliseconds of each kernel of our layer."""
    inputs = draw(layer)
    own = partial(ours, inputs=inputs)
    _every(own, inputs.fields)
    repeats = 3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            _every(own, inputs.fields)
        torch.cuda.synchronize()
    calls = repeats * len(inputs.fields)
    return {
        _kernel_name(e.key): e.self_device_time_total / 1e3 / calls
        for e in profile.key_averages()
        if e.self_device_time_total > 0
    }


def environment(bandwidth: float, commit: str) -> dict[str, object]:
    """What the figures depend on."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "copy TB/s": bandwidth / 1e12,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": commit,
        "kernels": native_status().detail.rsplit("/", 1)[-1],
        "tf32 in eager's convolutions": torch.backends.cudnn.allow_tf32,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def main() -> None:
    """The table of layers; --kernels adds the time of each of our kernels."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--kernels", action="store_true", help="also time each of our kernels")
    parser.add_argument("--seconds", type=float, default=0.5, help="device time for each layer")
    parser.add_argument("--commit", default="unknown", help="commit to write beside the figures")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU here: nothing measured")
    torch.manual_seed(torch.seed() % 2**31)
    bandwidth = copy_bandwidth()
    described = environment(bandwidth, arguments.commit)
    print(json.dumps(described))
    rows = []
    with torch.inference_mode():
        for layer in LAYERS:
            rows.append(
                measure(
                    layer, bandwidth, compiled=not arguments.no_compile, seconds=arguments.seconds
                )
            )
            if arguments.kernels:
                print(layer.label, {k: round(v, 4) for k, v in kernel_times(layer).items()})
            torch.cuda.empty_cache()
    print_table(f"Fourier layers on {described['gpu']}, medians", rows)
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / "gpu.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in (described, *rows)))
    print(f"written to {file.relative_to(RESULTS.parents[1])}")


if __name__ == "__main__":
    main()
