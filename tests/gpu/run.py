"""The whole proof that the kernels are right on this GPU: `make test-gpu`. Passes only if every part ran and passed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from turbofno_ops import native_status
from turbofno_ops.__main__ import report

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Part:
    """A command to run, and what its environment has besides ours."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def sanitizer() -> str | None:
    """compute-sanitizer, on the PATH or in the CUDA toolkit; None if there is none."""
    places = [os.environ.get("PATH", "")]
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    homes += ["/usr/local/cuda", str(Path(nvcc).resolve().parents[1]) if nvcc else None]
    places += [str(Path(home) / "bin") for home in homes if home]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def parts() -> list[Part]:
    """Random shapes and models in pytest, memcheck, racecheck, the zoo's errors."""
    python, here = sys.executable, ROOT / "tests" / "gpu"
    tool = sanitizer() or "compute-sanitizer"
    watched = ["--error-exitcode", "1", python, str(here / "sanitizer_shapes.py")]
    tests = [f"tests/{folder}" for folder in ("turbofno_ops", "service/runtime")]
    return [
        Part("tests", [python, "-m", "pytest", "-q", "-rs", *tests]),
        Part(
            "memcheck",
            [tool, "--tool", "memcheck", "--report-api-errors", "no", *watched],
            # every array an allocation of its own, so that one byte too far is seen
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        ),
        Part("racecheck", [tool, "--tool", "racecheck", *watched]),
        Part("zoo", [python, str(here / "zoo_errors.py")]),
    ]


def verdict(part: Part) -> str:
    """Run a part and say how it went; begins with 'passed' if it did."""
    print(f"\n== {part.name}: {' '.join(part.command)}", flush=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, **part.environment}
    began = time.monotonic()
    try:
        code = subprocess.run(part.command, cwd=ROOT, env=environment, check=False).returncode
    except FileNotFoundError:
        return (
            f"NOT RUN: there is no {part.command[0]}, neither on the PATH nor in the CUDA toolkit"
        )
    how = "passed" if code == 0 else f"FAILED with exit code {code}"
    return f"{how} in {time.monotonic() - began:.0f} s"


def main() -> None:
    """Run every part, even after one that failed; a line for each at the end."""
    print(report())
    if not torch.cuda.is_available():
        raise SystemExit(
            f"FAILED: PyTorch {torch.__version__} sees no GPU, and this proof is about one"
        )
    if not native_status().loaded:
        raise SystemExit(f"FAILED: the CUDA kernels are not loaded: {native_status().detail}")
    verdicts = {part.name: verdict(part) for part in parts()}
    print(f"\n{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    for name, how in verdicts.items():
        print(f"{name:10} {how}")
    sys.exit(0 if all(how.startswith("passed") for how in verdicts.values()) else 1)


if __name__ == "__main__":
    main()
