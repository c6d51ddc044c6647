"""Files that `torch.load(weights_only=True)` cannot read, which is why the importers have their own reader.

If a test fails, torch or neuraloperator has changed: reconsider models/importers/torch_file.py.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from tests.attacks import honest
from turbofno.models.importers.torch_file import read_torch_file

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    honest.write_all(folder)
    return folder


@pytest.mark.parametrize("name", ["theirs_state_dict.pt", "theirs_metadata.pkl", "module.pt"])
def test_neuraloperators_files_need_our_reader(name: str, folder: Path) -> None:
    with pytest.raises(pickle.UnpicklingError, match="Unsupported global"):
        torch.load(folder / name, weights_only=True)
    assert read_torch_file(folder / name)


def test_torch_accepts_a_giant_tensor_over_one_number(folder: Path) -> None:
    torch.save({"weight": torch.zeros(1).expand(10**6, 10**6)}, folder / "giant.pt")
    found = torch.load(folder / "giant.pt", weights_only=True)
    assert found["weight"].shape == (10**6, 10**6)
    with pytest.raises(ValueError, match="in a storage of 1 numbers"):
        read_torch_file(folder / "giant.pt")
