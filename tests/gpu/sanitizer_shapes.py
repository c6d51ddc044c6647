"""Every kernel on a few small shapes, checked on the CPU, to run under compute-sanitizer (tests/gpu/run.py).

Networks of two layers run as compiled chains without graphs. Odd sizes cover the kernels' boundaries, and some arrays end
within a 16-byte word, up to which reads may reach. Arguments are the groups to check (GROUPS); without one, all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from tests.turbofno_ops.fourier_truth import relative_l2
from tests.turbofno_ops.random_fno import field, network, truth
from turbofno.models.core.architecture import ChannelMLP, FNOArchitecture
from turbofno_ops import PRECISIONS, ChainRefused, compile_fno, native_status
from turbofno_ops import fft as transforms
from turbofno_ops.fft import PRECISIONS as FFT_PRECISIONS
from turbofno_ops.ntt import BABY_BEAR, GOLDILOCKS, _cuda, ntt
from turbofno_ops.ntt._arithmetic import FIELDS

Shape = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""Batch, channels, grid, modes."""

SHAPES: tuple[Shape, ...] = (
    (2, 8, (64,), (16,)),
    (3, 16, (101,), (33,)),
    (1, 20, (1024,), (64,)),
    (2, 8, (16, 16), (6, 5)),
    (1, 32, (64, 64), (24, 12)),
    (2, 20, (21, 37), (9, 19)),
    (1, 48, (85, 33), (24, 12)),
    (5, 8, (9, 130), (8, 64)),
    (3, 20, (200,), (65,)),
    (1, 129, (3, 70), (2, 33)),
    (1, 9, (13,), (5,)),
    (1, 9, (11, 13), (4, 3)),
    (2, 8, (8, 9, 10), (4, 5, 3)),
    (1, 9, (7, 5, 11), (4, 3, 4)),
    # warpgroups of 32 channels: whole and cut rows, several tiles and a part of one
    (32, 32, (9, 250), (4, 9)),
    (3, 27, (1000,), (16,)),
    # many batch elements: one launch for the product and the first axis
    (9, 32, (37, 24), (17, 5)),
    (12, 64, (16, 9, 12), (5, 3, 4)),
)
PLAIN: dict[str, Any] = {}
# norms before and after a channel MLP; lifting and projection with a hidden layer
BLOCKS: dict[str, dict[str, Any]] = {
    "channel MLP": {
        "channel_mlp": ChannelMLP(hidden_channels=6),
        "lifting_channels": (12,),
        "projection_channels": (12,),
    },
    "instance norm": {"norm": "instance_norm", "channel_mlp": ChannelMLP(hidden_channels=6)},
    "group norm": {"norm": "group_norm", "channel_mlp": ChannelMLP(hidden_channels=6)},
}
IN_BLOCKS: tuple[Shape, ...] = (
    (2, 8, (64,), (16,)),
    (1, 9, (13,), (5,)),
    (2, 20, (21, 37), (9, 19)),
    (1, 9, (7, 5, 11), (4, 3, 4)),
    # common programs: few rows, rows in segments, many rows
    (2, 32, (5, 64), (4, 5)),
    (1, 64, (1000,), (17,)),
    (8, 64, (64, 80), (8, 9)),
)
# lines and values of number-theoretic transforms: one stage, several, two launches
NTT_SHAPES = ((3, 64), (5, 1024), (2, 2**15))
# of a transform: name, precision, shape of the field, kept modes; both kernels, short and long lines, strided axes
FFT_SHAPES: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...] | None], ...] = (
    *(
        (name, p, (5, n), None)
        for name in ("fft", "rfft")
        for n in (9, 61, 64)
        for p in FFT_PRECISIONS
    ),
    ("fft", "fp32", (3, 421), (50,)),
    ("rfft", "fp32", (3, 1000), (64,)),
    ("fft", "fp32", (1, 2018), None),
    *(("fft", "fp16", (5, 2**k), None) for k in range(7, 14)),
    # more lines than the groups of an H200 transform at once
    *(("fft", "fp16", (270, 2**k), None) for k in (12, 13)),
    ("fft", "fp16", (140, 2**14), None),
    ("fft", "fp16", (1, 2**15), None),
    *(("fft2", "fp16", (1, rows, 128), None) for rows in (128, 256, 512)),
    *(("rfft2", p, (3, 20, 31), None) for p in FFT_PRECISIONS),
    *(("rfft2", p, (2, 85, 64), (24, 12)) for p in FFT_PRECISIONS),
    ("fft2", "fp32", (2, 37, 19), (5, 4)),
)
GROUPS = ("plain", "blocks", "transforms")
PROJECTED = 4
# for a network that does not amplify rounding
LARGEST_ERROR = {"fp32": 5e-6, "tf32": 5e-3, "bf16": 4e-2}
_ROUNDING = 5e-7


def error(
    shape: Shape, block: dict[str, Any], precision: str, device: torch.device
) -> tuple[float, float]:
    """Return the relative L2 error of a random network and its limit, which grows with the error of PyTorch in float32.

    Raises:
        ChainRefused: The kernels do not support it.
    """
    batch, channels, size, modes = shape
    arch = FNOArchitecture(
        in_channels=2, out_channels=PROJECTED, hidden_channels=channels, n_layers=2, modes=modes, **block
    )  # fmt: skip
    module = network(arch)
    x = field(module, batch, size)
    expected = truth(module, x)
    own = relative_l2(module(x), expected)
    chain = compile_fno(module.description(), device=device, precision=precision)
    refused = chain.refusal(size)
    if refused is not None:
        raise ChainRefused(refused)
    with torch.no_grad():
        found = relative_l2(chain._run_eager(x.to(device), size).cpu(), expected)
    return found, LARGEST_ERROR[precision] * max(1.0, own / _ROUNDING)


def verdict(shape: Shape, block: dict[str, Any], precision: str, device: torch.device) -> str:
    """Return 'right' or 'WRONG' with the error, or 'REFUSED' with the reason."""
    try:
        found, allowed = error(shape, block, precision, device)
    except ChainRefused as refusal:
        return f"REFUSED: {refusal}"
    return f"{'right' if found <= allowed else 'WRONG'} {found:.1e}"


def fft_verdict(
    name: str,
    precision: str,
    shape: tuple[int, ...],
    modes: tuple[int, ...] | None,
    device: torch.device,
) -> str:
    """Return 'right' or 'WRONG' with the larger error of a transform and of its inverse."""
    real, half, several = name.startswith("r"), precision == "fp16", name.endswith("2")
    single = torch.float32 if real else torch.complex64
    x = torch.randn(shape, dtype=single).to(
        (torch.float16 if real else torch.complex32) if half else single
    )
    sizes = shape[1:] if several else shape[1]
    kept = modes if several or modes is None else modes[0]
    errors = []
    for each in (name, f"i{name}"):
        call = partial(getattr(transforms, each), norm="ortho", modes=kept)
        y = call(x.to(device), sizes, precision=precision, backend="kernels").cpu()
        expected = call(x.to(torch.complex128 if x.is_complex() else torch.float64), sizes)
        errors.append(relative_l2(y, expected))
        x = y
    return f"{'right' if max(errors) <= (2e-3 if half else 1e-6) else 'WRONG'} {max(errors):.1e}"


def ntt_verdict(
    prime: int, lines: int, points: int, radix: int, exchange: str, device: torch.device
) -> str:
    """Return 'right' or 'WRONG' for the number-theoretic transforms of random lines."""
    x = torch.randint(0, BABY_BEAR, (lines, points))
    found = _cuda.transform(
        x.to(device),
        None,
        FIELDS[prime].name,
        inverse=False,
        negacyclic=True,
        radix=radix,
        exchange=exchange,
    )
    return "right" if torch.equal(found.cpu(), ntt(x, prime, negacyclic=True)) else "WRONG"


def verdicts(group: str, device: torch.device) -> Iterator[str]:
    """Yield a line for each shape of a group."""
    if group == "transforms":
        for fft_case in FFT_SHAPES:
            yield f"transform {fft_case}: {fft_verdict(*fft_case, device)}"
        for ntt_case in product(
            (BABY_BEAR, GOLDILOCKS), NTT_SHAPES, _cuda.RADICES, _cuda.EXCHANGES
        ):
            prime, (lines, points), radix, exchange = ntt_case
            yield f"NTT {ntt_case}: {ntt_verdict(prime, lines, points, radix, exchange, device)}"
        return
    plain = [("plain", PLAIN, shape) for shape in SHAPES]
    blocks = [(name, block, shape) for name, block in BLOCKS.items() for shape in IN_BLOCKS]
    for name, block, shape in plain if group == "plain" else blocks:
        for precision in PRECISIONS:
            yield f"{name} {shape} {precision}: {verdict(shape, block, precision, device)}"


def main() -> None:
    """Check the shapes. Exits with 1 if a result is wrong or refused, or the kernels are not loaded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="group")
    groups = parser.parse_args().groups or GROUPS
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"there is no group {unknown.pop()}: the groups are {GROUPS}")
    if not native_status().loaded:
        raise SystemExit(native_status().detail)
    wrong = 0
    for group in groups:
        for line in verdicts(group, torch.device("cuda", 0)):
            wrong += ": right" not in line
            print(line, flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
