"""Networks saved by neuraloperator 0.3.0 and 1.0.2 give the same results after the import."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.importers.neuraloperator_runs import assert_parity, imported_exactly, read_saved
from tests.models.importers.old_release import draw_and_save
from tests.thorough import tried
from turbofno.models.importers.detect import read_checkpoint

COUNT = tried(15, thoroughly=40)


@pytest.mark.parametrize("version", ["0.3.0", "1.0"])
def test_random_networks_give_the_releases_results(version: str, tmp_path: Path) -> None:
    draw_and_save(version, tmp_path, COUNT)
    for i in range(COUNT):
        if i % 2:
            whole = read_checkpoint(tmp_path / f"{i}_whole.pt")
            tensors, metadata = whole.tensors, whole.settings
        else:
            tensors, metadata = read_saved(tmp_path, str(i))
        imported = imported_exactly(tensors, metadata)
        assert imported.format.startswith(f"neuraloperator {version} ")
        answers = torch.load(tmp_path / f"{i}_answers.pt", weights_only=True)
        assert_parity(imported, answers["fields"], answers["outputs"])
