"""Networks saved by neuraloperator 0.3.0 and 1.0.2 give the same results after the import."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from neuralop.data.transforms import data_processors as neuralop_processors
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer

from tests.models.importers.neuraloperator_runs import assert_parity, imported_exactly, read_saved
from tests.models.importers.old_release import draw_and_save
from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.fno import FNO
from turbofno.models.importers.detect import convert, read_checkpoint
from turbofno.models.importers.normalizers import normalizing, read_normalizer
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Options


class Encoding:
    """Coordinates of neuraloperator 0.3 in other ranges than usual."""

    def __init__(self) -> None:
        self.grid_boundaries = [[0, 1], [-1, 1]]


Encoding.__module__, Encoding.__qualname__ = neuralop_processors.__name__, "PositionalEmbedding2D"

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


def test_coordinates_of_a_data_processor_are_added_by_the_server(tmp_path: Path) -> None:
    draw_and_save("0.3.0", tmp_path, 0)
    checkpoint = read_checkpoint(tmp_path / "darcy_state_dict.pt")
    sides = read_normalizer(tmp_path / "darcy_processor.pt")
    with pytest.raises(
        ImportRefused, match=r"the last 2 of the network's 3 .*positional_embedding=grid"
    ):
        normalizing(sides, convert(checkpoint, Options()).architecture)
    imported = convert(checkpoint, Options({"positional_embedding": "grid"}))
    scaling = normalizing(sides, imported.architecture)
    module = FNO(imported.architecture, scaling.per_channel).eval()
    module.load_state_dict(imported.state)
    answers = torch.load(tmp_path / "darcy_answers.pt", weights_only=True)
    with torch.inference_mode():
        assert relative_l2(module(answers["fields"]), answers["outputs"]) < 1e-6


def test_patches_and_other_coordinates_of_a_data_processor_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neuralop_processors, "PositionalEmbedding2D", Encoding, raising=False)
    normalizer = UnitGaussianNormalizer(mean=torch.zeros(1), std=torch.ones(1))
    processor = neuralop_processors.DefaultDataProcessor(normalizer, normalizer)
    processor.positional_encoding = Encoding()
    torch.save(processor, tmp_path / "p.pt")
    with pytest.raises(ImportRefused, match=r"in the ranges \[\[0, 1\], \[-1, 1\]\]; only 0 to 1"):
        read_normalizer(tmp_path / "p.pt")
    patches = object.__new__(neuralop_processors.MGPatchingDataProcessor)
    torch.nn.Module.__init__(patches)
    torch.save({"processor": patches}, tmp_path / "p.pt")
    with pytest.raises(ImportRefused, match="MGPatchingDataProcessor, which cuts fields"):
        read_normalizer(tmp_path / "p.pt")
