"""Median milliseconds of a checkpoint's network on one thread: `python -m benchmarks.serving.forward FOLDER SIDE BATCH [HOW]`.

HOW is torch.fft, for layers through torch.fft as in other libraries, or replayed, as turbofno serves the network.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.timing import medians
from turbofno.models.core.checkpoint import load_model
from turbofno.service.runtime.forward import Forward
from turbofno_ops import Choice, dispatch

_SECONDS = 0.7
TORCH_FFT = "torch.fft"
REPLAYED = "replayed"


def main() -> None:
    """Measure and print."""
    folder, side, batch = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if sys.argv[4:] == [TORCH_FFT]:
        slow = Choice("reference", "asked for")
        patch.object(dispatch, "_cheapest", lambda *_: slow).start()
    torch.set_num_threads(1)
    run: Callable[[torch.Tensor], torch.Tensor] = load_model(folder).module
    fields = torch.randn(batch, 1, side, side)
    with torch.inference_mode():
        if sys.argv[4:] == [REPLAYED]:
            run = _served(folder, fields)
        taken = medians({"network": lambda: run(fields)}, seconds=_SECONDS)
    print(taken["network"] * 1e3)


def _served(folder: Path, fields: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    loaded, device = load_model(folder), torch.device("cpu")
    forward = Forward(
        loaded.config.name, loaded.module, device, precision="fp32", max_batch=len(fields)
    )
    forward.prepare(fields.shape[1:])
    return lambda x: forward(x)[0]


if __name__ == "__main__":
    main()
