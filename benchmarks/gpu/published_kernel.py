"""The TurboFNO paper's own program: https://github.com/shixun404/TurboFNO, as its authors build and time it.

The program of variant D (all steps fused) reads its cases from a file whose path is compiled in, draws its own inputs, and
prints the mean time of five launches. It does not give out its result, so the result is not checked here.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PROGRAM = Path("fusion_variants/1D_D_exp_fused_fft_cgemm_ifft/build/TurboFNO_1D_D")
_CONFIG = Path("benchmark_config/problem_size_1d.txt")
_LONGEST_SECONDS = 300
_LINE = re.compile(
    r"bs=(\d+)\s*, dimX=1\s*, DY=(\d+)\s*, N=(\d+)\s*, K=(\d+)\s*, TIME=\s*([\d.]+)ms"
)


def published_milliseconds(checkout: Path, *, batch: int, channels: int, points: int) -> float:
    """Milliseconds that the program of a built checkout prints for a case; 64 modes are kept.

    The case is written to the checkout's list of cases, and the list is restored afterwards.

    Raises:
        RuntimeError: The program is not built, fails, or does not print the case.
    """
    program, config = checkout / PROGRAM, checkout / _CONFIG
    if not program.is_file():
        raise RuntimeError(f"the published program is not built: {program} is missing")
    before = config.read_text()
    config.write_text(
        f"bs_list = {batch}\ndimX_list = 1\nDY_list = {points}\nN_list = {channels}\nK_list = {channels}\n"
    )
    try:
        done = subprocess.run(
            [program], capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False
        )
    finally:
        config.write_text(before)
    return printed_milliseconds(done.stdout, batch=batch, channels=channels, points=points)


def printed_milliseconds(output: str, *, batch: int, channels: int, points: int) -> float:
    """The time of a case in the program's output. Raises RuntimeError if it is not there."""
    wanted = (batch, points, channels, channels)
    for *sizes, ms in _LINE.findall(output):
        if tuple(map(int, sizes)) == wanted:
            return float(ms)
    raise RuntimeError(f"the published program printed no time of batch {batch}: {output[-500:]!r}")
