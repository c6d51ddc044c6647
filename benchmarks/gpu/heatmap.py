"""Our float32 layer against PyTorch's over batch and channels, as in Figures 14 and 19 of the TurboFNO paper."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from benchmarks.gpu.candidates import checked_error
from benchmarks.gpu.device import each, in_graph, milliseconds, relative_l2
from benchmarks.gpu.layers import LARGEST_ERROR, draw, eager, ours, truth
from benchmarks.ops import Layer

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CHANNELS = (8, 16, 32, 64, 128)
_SHAPES = (((128, 128), (24, 12)), ((1024,), (16,)))

LAYERS = tuple(
    Layer(batch, channels, size, modes)
    for (size, modes), channels, batch in product(_SHAPES, CHANNELS, BATCHES)
)


def measure(layer: Layer, *, seconds: float) -> Iterator[dict[str, object]]:
    """The row of a cell; each side at its better of calls and CUDA graph. Raises RuntimeError if our result is wrong."""
    inputs = draw(layer)
    own, theirs = ours(inputs, "fp32"), eager(inputs)
    expected = truth(inputs)
    errors = {
        name: relative_l2(call(inputs.fields[0]), expected)
        for name, call in (("turbofno", own), ("eager", theirs))
    }
    checked_error(layer.label, errors["turbofno"], LARGEST_ERROR["fp32"])
    runs = [issue(call, inputs.fields) for call in (own, theirs) for issue in (each, in_graph)]
    times = [ms / len(inputs.fields) for ms in milliseconds(runs, seconds=seconds)]
    best = {"turbofno": min(times[:2]), "eager": min(times[2:])}
    yield {
        "layer": layer.label,
        "batch": layer.batch,
        "channels": layer.channels,
        "grid": list(layer.size),
        "modes": list(layer.modes),
        "precision": "fp32",
        "backend": "cuda",
        "1x1 convolution of eager": "TF32" if torch.backends.cudnn.allow_tf32 else "fp32",
        "turbofno ms": best["turbofno"],
        "eager ms": best["eager"],
        "speed-up": best["eager"] / best["turbofno"],
        "turbofno error": errors["turbofno"],
        "eager error": errors["eager"],
    }
