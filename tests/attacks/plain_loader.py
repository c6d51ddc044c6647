"""A program that reads the files of a folder with ordinary loaders."""

from __future__ import annotations

import pickle
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch


def load(path: Path) -> None:
    """Read `path` as most programs do."""
    if path.suffix == ".pickle":
        pickle.loads(path.read_bytes())
    elif path.suffix == ".npz":
        np.load(path, allow_pickle=True)["mean"]
    elif path.suffix == ".mdlus":
        with zipfile.ZipFile(path) as archive, archive.open("model.pt") as file:
            torch.load(file, weights_only=False)
    else:
        torch.load(path, weights_only=False)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for path in sorted(Path(sys.argv[1]).iterdir()):
        try:
            load(path)
        except Exception as error:
            sys.stderr.write(f"{path.name}: {type(error).__name__}: {error}\n")
