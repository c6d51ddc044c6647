"""Run every benchmark that this machine can run, and say what was left out."""

from __future__ import annotations

import torch

from benchmarks import models, ops, service


def main() -> None:
    """The layers, the whole models, the service."""
    ops.main()
    models.main()
    service.main()
    if torch.cuda.is_available():
        print("\nleft out: the GPU; `make bench-gpu` measures its kernels")
    else:
        print("\nleft out: `make bench-gpu`, there is no GPU here")


if __name__ == "__main__":
    main()
