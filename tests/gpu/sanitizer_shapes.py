"""Every kernel on a few small shapes, checked against float64: what compute-sanitizer watches (tests/gpu/run.py).

Layers run through the stages, as in a compiled model: the second one's spectra come from the first one's rows, and the
last one is projected. Sizes are odd where the kernels have edges. Every array ends at 16 bytes, because reads may
reach to the end of the last 16-byte word.
"""

from __future__ import annotations

import math
import sys

import torch

from turbofno_ops import PRECISIONS, fourier_layer, native_status
from turbofno_ops._channels import mode_major
from turbofno_ops._cuda import CudaStages, field_dtype
from turbofno_ops._stages import Layer, Projection, two_axes

# batch, channels, grid, modes
SHAPES = (
    (2, 8, (64,), (16,)),
    (3, 16, (101,), (33,)),
    (1, 20, (1024,), (64,)),
    (2, 8, (16, 16), (6, 5)),
    (1, 32, (64, 64), (24, 12)),
    (2, 20, (21, 37), (9, 19)),
    (1, 48, (85, 33), (24, 12)),
    (5, 8, (9, 130), (8, 64)),
    # arrays that end between two words of 16 bytes
    (1, 9, (13,), (5,)),
    (1, 9, (11, 13), (4, 3)),
)
PROJECTED = 4
LARGEST_ERROR = {"fp32": 2e-6, "tf32": 4e-3, "bf16": 4e-2}


def drawn(
    channels: int, modes: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """weight, skip, bias and projection on the CPU."""
    weight = torch.randn(channels, channels, *modes, dtype=torch.complex64) / math.sqrt(channels)
    skip = torch.randn(channels, channels) / math.sqrt(channels)
    projection = torch.randn(PROJECTED, channels) / math.sqrt(channels)
    return weight, skip, torch.randn(channels), projection


def error(
    batch: int, channels: int, size: tuple[int, ...], modes: tuple[int, ...], precision: str
) -> float:
    """Relative L2 error of two layers and a projection."""
    x = torch.randn(batch, channels, *size)
    weight, skip, bias, projection = drawn(channels, modes)

    truth = x.double()
    for _ in range(2):
        truth = fourier_layer(
            truth,
            weight.to(torch.complex128),
            skip_weight=skip.double(),
            bias=bias.double(),
            activation="gelu",
            backend="reference",
        )
    truth = torch.einsum("pc,bc...->bp...", projection.double(), truth)

    on, kept = two_axes(size), two_axes(modes)
    stages = CudaStages(on, kept, device=torch.device("cuda"), precision=precision)
    by_mode = mode_major(weight.cuda()).view(*kept, channels, channels).contiguous()
    layer = Layer(by_mode, skip.cuda(), bias.cuda(), "gelu")
    field = x.cuda().to(field_dtype(precision)).view(batch, channels, *on)
    first, spectra = stages.rows(stages.mix(stages.analyze(field), layer), field, layer, last=False)
    mixed = stages.mix(spectra, layer)
    second, _ = stages.rows(mixed, first, layer, last=True)
    together = stages.project(mixed, first, layer, Projection(projection.cuda(), None))
    apart = torch.einsum("pc,bchw->bphw", projection.double(), second.cpu().double())
    both = torch.stack([together.cpu().double(), apart]).view(2, *truth.shape)
    return float((both - truth).norm() / (2**0.5 * truth.norm()))


def main() -> None:
    """Exits 1 if a result is wrong or the kernels are not there."""
    if not native_status().loaded:
        raise SystemExit(native_status().detail)
    wrong = 0
    for shape in SHAPES:
        for precision in PRECISIONS:
            found = error(*shape, precision)
            verdict = "right" if found <= LARGEST_ERROR[precision] else "WRONG"
            wrong += verdict == "WRONG"
            print(f"{shape} {precision}: {found:.1e} {verdict}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
