"""Support of a chain by the CUDA kernels on a card that is not there: their host plans, with that card's limits.

The plans (csrc/plan) are plain C++ that decide which shapes the kernels run. They are compiled for the CPU here, so that no GPU
and no CUDA is needed.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

import torch

from turbofno_ops import (
    CompiledFNO,
    FNODescription,
    GraphCache,
    _native,
    _support,
    compile_fno,
)
from turbofno_ops._support import Device
from turbofno_ops._zero_channels import with_zero_channels
from turbofno_ops.description import Size

CARDS = {"H200": Device(132, 227 * 1024, True), "A100": _support.A100}
"""Name -> limits. An H100 has those of an H200."""
PLANS = Path(__file__).parents[1] / "csrc" / "plan"


@contextmanager
def host_plans() -> Iterator[None]:
    """Answer support checks by the plans of this tree instead of those of the installed CUDA library. Needs g++."""
    library = compiled(*sorted(PLANS.glob("*.cpp")))
    _native.declare_host(library, _native.REFUSALS, ctypes.c_char_p)
    with mock.patch.object(_native, "_library", return_value=library):
        yield


@cache
def compiled(*sources: Path) -> ctypes.CDLL:
    """Compile host code and load it, once in a process. Needs g++."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "host.so"
        subprocess.run(
            ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", *sources, "-o", file], check=True
        )
        return ctypes.CDLL(str(file))


def refusals(description: FNODescription, card: Device, grids: Sequence[Size]) -> list[str | None]:
    """Reasons why the kernels do not run a network on grids on a card at float32, None where they do. Within `host_plans`.

    Args:
        description: Of a network that compiles for the CPU.
        card: One of `CARDS`.
        grids: Grids of the network's input.
    """
    if card.warpgroups:
        description = with_zero_channels(description)
    chain = compile_fno(description, device="cpu")
    # asking what a chain supports starts nothing on its device
    on_card = CompiledFNO(
        chain._chain, torch.device("cuda", 0), "fp32", chain.buckets(), GraphCache()
    )
    with mock.patch.object(_support, "device_limits", return_value=card):
        return [on_card.refusal(grid) for grid in grids]
