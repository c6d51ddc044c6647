"""The TurboFNO paper's own case: complex fields, one weight for all modes, powers of two, the first 64 modes kept.

    y = F^-1 (W . first 64 modes of F x), x complex64 [batch, channels, points], W [channels, channels]

Our kernels take real fields and one weight a mode, as trained networks have them. They serve the case through the real
and imaginary parts of x as twice as many real channels, and a weight a mode that repeats W (`real_weight`): the same
values are read and written, the product of modes takes four times the arithmetic. The parts are given one after the other
(planar); the time to separate interleaved ones is not counted. "turbofno" is one call of `spectral_conv`, "turbofno,
channels last" the same stages on fields in the kernels' own layout, as inside a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.candidates import checked_error
from benchmarks.gpu.device import ends, floor_ms, milliseconds, rotating
from benchmarks.gpu.direct import DirectSharedWeight
from benchmarks.gpu.ladder import CudaKernels, captured, convolution
from benchmarks.gpu.layers import LARGEST_ERROR
from benchmarks.gpu.published_kernel import published_milliseconds
from benchmarks.ops import Layer
from turbofno_ops import spectral_conv
from turbofno_ops._channels import mode_major
from turbofno_ops._tile_program import ChannelsLast

MODES = 64
_POINTS = (128, 256, 512, 1024)
_CHANNELS = (32, 64, 128)
_SIGNALS = 2**21
_LEAST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class SharedWeight:
    """Sizes of a case; 64 modes are kept."""

    batch: int
    channels: int
    points: int

    @property
    def label(self) -> str:
        return f"shared weight, B{self.batch} C{self.channels} {self.points} m{MODES}"


def cases(*, quick: bool = False) -> list[SharedWeight]:
    """Batches of 2^21 points a channel: 16 384 of 128 points, as large ones in the paper; two cases if `quick`."""
    if quick:
        return [SharedWeight(256, 64, points) for points in (128, 1024)]
    return [SharedWeight(_SIGNALS // n, channels, n) for n in _POINTS for channels in _CHANNELS]


def convolved(x: torch.Tensor, weight: torch.Tensor, modes: int) -> torch.Tensor:
    """The result by torch.fft: complex [batch, c_in, points] -> [batch, c_out, points]."""
    kept = torch.fft.fft(x)[..., :modes]
    mixed = torch.einsum("bim,io->bom", kept, weight)
    return torch.fft.ifft(mixed, n=x.shape[-1])


def planar(x: torch.Tensor) -> torch.Tensor:
    """Complex [batch, channels, points] as real [batch, 2 * channels, points]: all real parts, then all imaginary parts."""
    return torch.cat([x.real, x.imag], dim=1)


def interleaved(field: torch.Tensor) -> torch.Tensor:
    """The reverse of `planar`."""
    return torch.complex(*field.chunk(2, dim=1))


def real_weight(weight: torch.Tensor, modes: int) -> torch.Tensor:
    """A weight [c_in, c_out] as that of `spectral_conv` for planar fields: [2 * c_in, 2 * c_out, modes], mode-major memory.

    Of spectra A + iB the product is W (A + iB) = Y. The real part of its inverse is that of the real spectrum Y / 2, the
    imaginary part that of -iY / 2: a real field's spectrum has the mirror images too, except in the zeroth mode.
    """
    turned = 1j * weight
    rows = torch.cat(
        [torch.cat([weight, -turned], dim=1), torch.cat([turned, weight], dim=1)], dim=0
    )
    by_mode = rows.expand(modes, -1, -1) / 2
    by_mode[0] = rows
    return by_mode.permute(1, 2, 0)


def _error(value: torch.Tensor, expected: torch.Tensor) -> float:
    return float((ends(value).to(torch.complex128) - expected).norm() / expected.norm())


def measure(
    case: SharedWeight, bandwidth: float, *, seconds: float, checkout: Path | None
) -> Iterator[dict[str, object]]:
    """The rows of a case. Raises RuntimeError if a result of ours or of cuFFT and cuBLAS is wrong."""
    c = case.channels
    weight = torch.randn(c, c, dtype=torch.complex64, device="cuda") / math.sqrt(c)
    fields = [torch.complex(x, x.flip(0)) for x in rotating((case.batch, c, case.points), most=4)]
    expected = convolved(ends(fields[0]).to(torch.complex128), weight.to(torch.complex128), MODES)
    shape = fields[0].shape
    direct = partial(DirectSharedWeight, shape, weight, MODES)
    own_weight = real_weight(weight, MODES)
    ours = partial(spectral_conv, weight=own_weight, backend="cuda")
    own_fields = [planar(x) for x in fields]
    kernels = CudaKernels(Layer(case.batch, 2 * c, (case.points,), (MODES,)), weight.device)
    inside = partial(convolution, kernels, mode_major(own_weight))
    candidates: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
        "cuFFT+cuBLAS": (direct(copies=True), fields),
        "cuFFT+cuBLAS without copies": (direct(copies=False), fields),
        "turbofno": (ours, own_fields),
        "turbofno, channels last": (inside, [kernels.convert(x) for x in own_fields]),
    }
    errors = {}
    for name, (call, given) in candidates.items():
        y = call(given[0])
        if isinstance(y, ChannelsLast):
            y = kernels.plain(y)
        error = _error(y if y.is_complex() else interleaved(y), expected)
        errors[name] = checked_error(f"{case.label}, {name}", error, LARGEST_ERROR["fp32"])
        del y
    pool = torch.cuda.graph_pool_handle()
    runs = [captured(partial(_each, *of), pool) for of in candidates.values()]
    times = milliseconds(runs, seconds=seconds, least_rounds=_LEAST_ROUNDS)
    each_ms: dict[str, float] = {
        name: ms / len(fields) for name, ms in zip(candidates, times, strict=True)
    }
    if checkout is not None:
        del candidates, runs, direct
        torch.cuda.empty_cache()
        each_ms["published kernel"] = published_milliseconds(
            checkout, batch=case.batch, channels=c, points=case.points
        )
    for name, ms in each_ms.items():
        yield {
            "layer": case.label,
            "batch": case.batch,
            "channels": c,
            "grid": [case.points],
            "modes": [MODES],
            "precision": "fp32",
            "floor ms": floor_ms(2 * math.prod(shape), 4, bandwidth),
            "rung": None,
            "what": name,
            "ms": ms,
            "relative L2 error": errors.get(name),
        }


def _each(call: Callable[[Any], Any], fields: list[Any]) -> None:
    for x in fields:
        call(x)
