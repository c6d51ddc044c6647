"""Files that stand where a checkpoint was expected are named, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.tensor_files import read_safetensors
from turbofno.models.importers.torch_file import read_torch_file


def test_a_file_of_torch_export_is_named(tmp_path: Path) -> None:
    exported = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),))
    torch.export.save(exported, tmp_path / "model.pt2")
    with pytest.raises(ImportRefused, match=r"torch\.export wrote it: save the network's state"):
        read_torch_file(tmp_path / "model.pt2")


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        ("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("<HTML>", "download the file anew"),
    ],
)
def test_what_stands_for_a_safetensors_file_is_named(
    content: str, remedy: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text(content)
    with pytest.raises(ImportRefused, match=remedy):
        read_safetensors(path)
