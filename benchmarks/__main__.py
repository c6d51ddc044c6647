"""Run the CPU benchmarks of layers, models and the service."""

from __future__ import annotations

import torch

from benchmarks import models, ops, service


def main() -> None:
    """Run all three."""
    ops.main()
    models.main()
    service.main()
    if torch.cuda.is_available():
        print("\n`make bench-gpu` measures the GPU")


if __name__ == "__main__":
    main()
