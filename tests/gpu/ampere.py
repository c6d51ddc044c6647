"""Test the A100 code path on any newer GPU: `python -m tests.gpu.ampere PYTEST_ARGUMENTS`.

Builds the library in a separate folder from PTX for compute capability 8.0, as machine code for this GPU, and runs pytest
with it. Code paths for newer GPUs are then neither compiled nor chosen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from turbofno_ops._native import LIBRARY, LIBRARY_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "ampere"


def cmake() -> str:
    """Return the cmake of this Python environment, or the one on the PATH."""
    beside = Path(sys.executable).with_name("cmake")
    return str(beside) if beside.is_file() else shutil.which("cmake") or "cmake"


def build_commands(capability: tuple[int, int]) -> list[list[str]]:
    """Return the commands that configure and build for a GPU of that compute capability."""
    code = "".join(map(str, capability))
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = [
        *(cmake(), "-S", str(ROOT), "-B", str(FOLDER), *generator),
        "-DTURBOFNO_CUDA=ON",
        # CMake cannot express machine code of one architecture from PTX of another
        "-DTURBOFNO_CUDA_ARCHITECTURES=OFF",
        f"-DCMAKE_CUDA_FLAGS=-gencode=arch=compute_80,code=sm_{code}",
    ]
    jobs = str(os.cpu_count() or 1)
    return [configure, [cmake(), "--build", str(FOLDER), "--parallel", jobs]]


def main() -> None:
    """Build and become pytest. Exits with 1 if the build fails."""
    for command in build_commands(torch.cuda.get_device_capability()):
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"FAILED: {' '.join(command)}")
    environment = {**os.environ, LIBRARY_VARIABLE: str(FOLDER / LIBRARY)}
    sys.stdout.flush()
    os.chdir(ROOT)
    # in this process, which gets the signal that stops the part
    os.execve(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
