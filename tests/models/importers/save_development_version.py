"""Writes the files that test_development_version.py reads: networks saved whole by neuraloperator's main branch.

It is on no package index, so the files are kept. To make them again, with weights and fields of their own:

    git clone https://github.com/neuraloperator/neuraloperator && git -C neuraloperator checkout COMMIT
    PYTHONPATH=neuraloperator:build/importable:. python -m tests.models.importers.save_development_version
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import neuralop.models
import torch
import torch.nn.functional as F

from tests.models.importers.neuraloperator_runs import outputs, spread

COMMIT = "93d3f0633e048c915004cd782cb339acf06e1157"
FOLDER = Path(__file__).parent / "files"

_COMMON: dict[str, Any] = {
    "in_channels": 2,
    "out_channels": 1,
    "hidden_channels": 4,
    "n_layers": 2,
    "lifting_channel_ratio": 1,
    "projection_channel_ratio": 1,
}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "main-fno": ("FNO", {"n_modes": (5, 4), "non_linearity": F.silu}),
    "main-tfno": ("TFNO", {"n_modes": (4, 4), "rank": 0.3, "norm": "group_norm"}),
    "main-finer": ("FNO", {"n_modes": (4, 5), "resolution_scaling_factor": 1.5}),
}


def main() -> None:
    if "enforce_hermitian_symmetry" not in inspect.signature(neuralop.models.FNO).parameters:
        raise SystemExit(f"{neuralop.__file__} is not the main branch at {COMMIT}")
    torch.manual_seed(0)
    for name, (kind, arguments) in NETWORKS.items():
        network = spread(getattr(neuralop.models, kind)(**_COMMON, **arguments))
        fields = [torch.randn(1, 2, 9, 11), torch.randn(1, 2, 12, 10)]
        torch.save(network, FOLDER / f"{name}.pt")
        answers = {"fields": fields, "outputs": outputs(network, fields)}
        torch.save(answers, FOLDER / f"{name}-answers.pt")


if __name__ == "__main__":
    main()
