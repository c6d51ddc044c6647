"""Spectral convolution on a CPU: matrix products against torch.fft, both checked against float64."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.timing import medians, print_table, save
from turbofno_ops import explain, spectral_conv
from turbofno_ops.dispatch import fft_flops, gemm_flops

_LARGEST_ERROR = 1e-5
_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Layer:
    """One spectral convolution: batch, channels, grid, kept modes."""

    batch: int
    channels: int
    size: tuple[int, ...]
    modes: tuple[int, ...]

    @property
    def label(self) -> str:
        grid = "x".join(map(str, self.size))
        modes = "x".join(map(str, self.modes))
        return f"{len(self.size)}D B{self.batch} C{self.channels} {grid} m{modes}"


def _square(batch: int, channels: int, n: int, m: int) -> Layer:
    return Layer(batch, channels, (n, n), (2 * m, m))


LAYERS = (
    *(_square(batch, 32, 64, 12) for batch in (1, 2, 4, 8)),
    *(_square(batch, 32, 85, 12) for batch in (1, 8)),
    *(_square(batch, 64, 128, 12) for batch in (1, 8)),
    _square(1, 64, 128, 32),
    _square(1, 32, 421, 12),
    _square(1, 64, 256, 16),
    _square(1, 128, 256, 64),
    Layer(1, 64, (1024,), (16,)),
    Layer(8, 64, (1024,), (16,)),
    Layer(8, 64, (8192,), (16,)),
    Layer(8, 64, (256,), (64,)),
    Layer(1, 20, (64, 64, 40), (16, 16, 8)),
)

# From few modes to all, to find where both backends take the same time
CROSSOVER = (
    *(Layer(4, 16, (64, 64), (2 * m, m)) for m in (8, 16, 24, 32)),
    *(Layer(4, 16, (256, 256), (2 * m, m)) for m in (16, 32, 64, 96, 128)),
    *(Layer(4, 16, (421, 421), (2 * m, m)) for m in (12, 48, 96, 192)),
    *(Layer(16, 16, (1024,), (m,)) for m in (16, 64, 128, 256, 512)),
    *(Layer(16, 16, (8192,), (m,)) for m in (16, 64, 256, 512, 1024)),
    *(Layer(1, 8, (64, 64, 64), (2 * m, 2 * m, m)) for m in (8, 16, 32)),
)


def measure(layer: Layer) -> dict[str, object]:
    """One row: error and median time of each backend. Raises RuntimeError if a result is wrong."""
    n = len(layer.modes)
    x = torch.randn(layer.batch, layer.channels, *layer.size)
    # mode-major in memory, as in a model
    weight = torch.randn(*layer.modes, layer.channels, layer.channels, dtype=torch.complex64)
    weight = (weight / layer.channels).permute(n, n + 1, *range(n))
    truth = spectral_conv(x.double(), weight.to(torch.complex128), backend="reference")
    run = {name: partial(spectral_conv, x, weight, backend=name) for name in ("reference", "gemm")}
    errors = {
        name: float((call().double() - truth).norm() / truth.norm()) for name, call in run.items()
    }
    if not max(errors.values()) <= _LARGEST_ERROR:
        raise RuntimeError(f"{layer.label}: wrong result, relative L2 errors {errors}")
    times = medians(run, seconds=_SECONDS)
    return {
        "layer": layer.label,
        "auto": explain(x, weight).backend,
        "flops ratio": 2 * gemm_flops(layer.modes, layer.size) / (2 * fft_flops(layer.size)),
        "fft ms": times["reference"] * 1e3,
        "gemm ms": times["gemm"] * 1e3,
        "speed-up": times["reference"] / times["gemm"],
        "fft error": errors["reference"],
        "gemm error": errors["gemm"],
    }


def main() -> None:
    """Measure the layers, or with --crossover the shapes from which the constant in dispatch.py is derived."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ops", description=__doc__)
    parser.add_argument("--crossover", action="store_true", help="measure from few modes to all")
    arguments = parser.parse_args()
    name, layers = ("crossover", CROSSOVER) if arguments.crossover else ("ops", LAYERS)
    torch.manual_seed(torch.seed() % 2**31)
    with torch.inference_mode():
        rows = [measure(layer) for layer in layers]
    print_table(f"spectral convolution, {torch.get_num_threads()} threads, medians", rows)
    print(f"written to {save(name, rows)}")


if __name__ == "__main__":
    main()
