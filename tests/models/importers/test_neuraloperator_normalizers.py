"""A saved data processor of neuraloperator goes into the model: physical units in, physical units out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer
from neuralop.models import FNO as TheirFNO

from models.checkpoint import CheckpointError, load_model, save_model
from models.config import Channel, GridSpec, ModelConfig
from models.fno import FNO
from models.importers.neuraloperator import import_neuraloperator
from models.importers.neuraloperator.normalizers import read_normalizers
from models.importers.refusal import ImportRefused
from models.importers.result import Options
from models.importers.torch_file import read_torch_file
from tests.models.importers.parity import read_saved, spread
from tests.turbofno_ops.fourier_truth import relative_l2

GRID = (10, 9)


def fitted(channels: int, dims: list[int], eps: float = 0.3) -> UnitGaussianNormalizer:
    normalizer = UnitGaussianNormalizer(dim=dims, eps=eps)
    scale = torch.rand(channels, 1, 1) * 5
    normalizer.fit(7 * torch.randn(channels, 1, 1) + scale * torch.randn(6, channels, *GRID))
    return normalizer


def answer(network: TheirFNO, processor: DefaultDataProcessor, x: torch.Tensor) -> torch.Tensor:
    network.eval()
    processor.training = False
    batch = processor.preprocess({"x": x, "y": torch.zeros(())})
    with torch.no_grad():
        return processor.postprocess(network(batch["x"]), batch)[0]


@pytest.mark.parametrize("dims", [[0, 2, 3], [0]], ids=["per channel", "per point"])
@pytest.mark.parametrize("ends", ["both", "in", "out"])
@pytest.mark.parametrize("how", ["processor", "state dict", "dict"])
def test_answers_in_physical_units(dims: list[int], ends: str, how: str, tmp_path: Path) -> None:
    theirs = spread(TheirFNO((6, 5), 2, 1, 4, n_layers=2))
    theirs.save_checkpoint(tmp_path, "model")
    eps = 1e-7 if how == "state dict" else 0.3  # which does not hold it
    processor = DefaultDataProcessor(
        fitted(2, dims, eps) if ends != "out" else None,
        fitted(1, dims, eps) if ends != "in" else None,
    )
    saved: Any = {
        "processor": processor,
        "state dict": processor.state_dict(),
        "dict": {"x": processor.in_normalizer, "y": processor.out_normalizer},
    }[how]
    torch.save(saved, tmp_path / "normalizer.pt")
    x = 7 * torch.randn(3, 2, *GRID)
    expected = answer(theirs, processor, x)

    imported = import_neuraloperator(*read_saved(tmp_path, "model"), Options())
    arch = imported.architecture
    read = read_normalizers(read_torch_file(tmp_path / "normalizer.pt"), arch)
    ours = FNO(arch, read.normalization)
    ours.load_state_dict({**imported.state, **read.state})
    assert relative_l2(ours(x), expected) < 1e-5
    assert (read.state == {}) == (len(dims) == 3)


def test_fields_survive_the_native_checkpoint(tmp_path: Path) -> None:
    theirs = spread(TheirFNO((6, 5), 2, 1, 4, n_layers=2))
    theirs.save_checkpoint(tmp_path, "model")
    processor = DefaultDataProcessor(fitted(2, [0]), fitted(1, [0]))
    torch.save(processor, tmp_path / "normalizer.pt")
    imported = import_neuraloperator(*read_saved(tmp_path, "model"), Options())
    read = read_normalizers(read_torch_file(tmp_path / "normalizer.pt"), imported.architecture)
    module = FNO(imported.architecture, read.normalization)
    module.load_state_dict({**imported.state, **read.state})
    config = ModelConfig(
        name="fields",
        description="pointwise normalisers",
        architecture=imported.architecture,
        inputs=(Channel(name="a"), Channel(name="b")),
        outputs=(Channel(name="u"),),
        grid=GridSpec(
            training=GRID, minimum=GRID, maximum=GRID, extent=(1.0, 1.0), boundary="periodic"
        ),
        field_normalization=read.normalization,
        sha256="0" * 64,
    )
    save_model(tmp_path / "native", config, module)
    x = 7 * torch.randn(2, 2, *GRID)
    loaded = load_model(tmp_path / "native").module
    assert relative_l2(loaded(x), answer(theirs, processor, x)) < 1e-5

    module.get_buffer("output_std")[0, 3, 4] = 0
    save_model(tmp_path / "native", config, module)
    with pytest.raises(CheckpointError, match="output_std must be positive"):
        load_model(tmp_path / "native")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"mean": torch.zeros(1), "std": torch.ones(1)}, "does not say of which end"),
        (
            {"x": {"mean": torch.zeros(1, 3, 1, 1), "std": torch.ones(1, 3, 1, 1)}},
            r"\[1, 3, 1, 1\]",
        ),
        ({"x": {"mean": torch.zeros(()), "std": torch.tensor(-1.0)}}, "not positive"),
        ({"x": {"mean": torch.zeros(())}}, "no mean and std"),
        ({"x": {"mean": torch.zeros(()), "std": torch.ones(()), "mask": torch.ones(1)}}, "mask"),
        ([], "neither a data processor nor a dict"),
    ],
)
def test_what_is_no_normaliser_is_refused(value: Any, message: str) -> None:
    theirs = TheirFNO((6, 5), 2, 1, 4)
    tensors = dict(theirs.state_dict())
    tensors.pop("_metadata")
    arch = import_neuraloperator(tensors, None, Options()).architecture
    with pytest.raises(ImportRefused, match=message):
        read_normalizers(value, arch)
