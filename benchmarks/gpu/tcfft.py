"""The tcFFT paper's own programs: https://github.com/rox906/tcFFT, as its authors time them.

Build them in a checkout, without FFTW, which only its tests of accuracy need:

    nvcc -O3 -std=c++17 -arch=native -Xcompiler -fopenmp speed.cpp tcfft_doit_half.cpp tcfft_half.cu -o tcfft_half_speed
    nvcc -O3 -std=c++17 -arch=native -Xcompiler -fopenmp speed_2d.cpp tcfft_doit_half_2d.cpp tcfft_half_2d.cu -o tcfft_half_2d_speed

A program draws its own inputs, transforms them in place, again and again, and prints the mean time. The host brings the
inputs into digit-reversed order before: that is not in its time, and is in ours. Its results are not checked here.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

_REPEATS = 1024
"""Most launches. It runs 1, 2, 4.. until four seconds have passed, and prints the last mean."""
_LONGEST_SECONDS = 120
_LINES = {256, 512, 1024, 2**17}
_PLANES = {256, 512}
"""Those of our cases that its plans are written for; with others it computes nothing, and says so by no word."""
_TIME = re.compile(r"time per iter: ([\d.]+)")


def tcfft_milliseconds(checkout: Path, size: Sequence[int], batch: int) -> float | None:
    """Milliseconds of a complex float16 transform of one or two axes; None if tcFFT has no plan for it.

    Raises:
        RuntimeError: The program is not built, fails, or prints no time.
    """
    planned, letters, name = _LINES, "n", "tcfft_half_speed"
    if len(size) > 1:
        planned, letters, name = _PLANES, "xy", "tcfft_half_2d_speed"
    if not planned.issuperset(size):
        return None
    program = checkout / name
    if not program.is_file():
        raise RuntimeError(f"tcFFT's program is not built: {program} is missing")
    options = [f"-{letter}{points}" for letter, points in zip(letters, size, strict=True)]
    done = subprocess.run(
        [program.resolve(), *options, f"-b{batch}", f"-m{_REPEATS}"],
        capture_output=True,
        text=True,
        timeout=_LONGEST_SECONDS,
        check=False,
    )
    found = _TIME.search(done.stdout)
    if done.returncode or found is None:
        raise RuntimeError(
            f"tcFFT printed no time of {'x'.join(map(str, size))}: {done.stdout[-500:]!r} {done.stderr[-500:]!r}"
        )
    return float(found[1]) * 1e3
