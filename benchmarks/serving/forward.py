"""Median milliseconds of a checkpoint's network on one thread: `python -m benchmarks.serving.forward FOLDER SIDE BATCH`.

With a fourth argument, torch.fft, its layers go through that, as in the libraries that the network comes from.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.timing import medians
from models.checkpoint import load_model
from turbofno_ops import dispatch

_SECONDS = 0.7
TORCH_FFT = "torch.fft"


def main() -> None:
    """Print the median."""
    folder, side, batch = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4:] == [TORCH_FFT]:
        slow = dispatch.Choice("reference", "asked for")
        patch.object(dispatch, "_cheapest", lambda *_: slow).start()
    torch.set_num_threads(1)
    module = load_model(folder).module
    fields = torch.randn(batch, 1, side, side)
    with torch.inference_mode():
        taken = medians({"module": lambda: module(fields)}, seconds=_SECONDS)
    print(taken["module"] * 1e3)


if __name__ == "__main__":
    main()
