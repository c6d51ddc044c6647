"""`python -m turbofno_ops`: print versions, GPUs and the state of the CUDA kernels."""

from __future__ import annotations

import platform
import sys

import torch

from turbofno_ops import BACKENDS, __version__, gpu_refusal, native_status


def report() -> str:
    """Return versions, GPUs and the state of the CUDA kernels, one per line."""
    status = native_status()
    lines = [
        f"turbofno {__version__}, Python {platform.python_version()}, PyTorch {torch.__version__}",
        f"CUDA kernels: {'loaded from' if status.loaded else 'not loaded:'} {status.detail}",
        f"backends: {', '.join(BACKENDS if status.loaded else BACKENDS[:-1])}",
    ]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        refused = gpu_refusal(torch.device("cuda", index)) if status.loaded else None
        lines.append(
            f"GPU {index}: {properties.name}, sm_{properties.major}{properties.minor}, "
            f"{properties.total_memory / 2**30:.0f} GiB"
            f"{f'; the CUDA kernels do not run there: {refused}' if refused else ''}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(report() + "\n")
