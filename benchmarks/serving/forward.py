"""Median milliseconds of a checkpoint's module on one thread: `python -m benchmarks.serving.forward FOLDER SIDE BATCH`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from benchmarks.timing import medians
from models.checkpoint import load_model

_SECONDS = 1.0


def main() -> None:
    """Print the median."""
    folder, side, batch = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    module = load_model(folder).module
    fields = torch.randn(batch, 1, side, side)
    with torch.inference_mode():
        taken = medians({"module": lambda: module(fields)}, seconds=_SECONDS)
    print(taken["module"] * 1e3)


if __name__ == "__main__":
    main()
