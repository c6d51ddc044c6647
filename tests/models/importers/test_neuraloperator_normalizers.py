"""A saved data processor of neuraloperator becomes part of the model, which then works in physical units."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer
from neuralop.models import FNO as TheirFNO

from tests.models.importers.neuraloperator_runs import read_saved, spread
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.checkpoint import CheckpointError, load_model, save_model
from turbofno.models.core.config import Channel, GridSpec, ModelConfig
from turbofno.models.core.fno import FNO
from turbofno.models.importers.neuraloperator import import_neuraloperator
from turbofno.models.importers.normalizers import normalizing, read_normalizer
from turbofno.models.importers.result import Options

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


def test_normalisation_fields_are_saved_and_loaded(tmp_path: Path) -> None:
    theirs = spread(TheirFNO((6, 5), 2, 1, 4, n_layers=2))
    theirs.save_checkpoint(tmp_path, "model")
    processor = DefaultDataProcessor(fitted(2, [0]), fitted(1, [0]))
    torch.save(processor, tmp_path / "normalizer.pt")
    imported = import_neuraloperator(*read_saved(tmp_path, "model"), Options())
    read = normalizing(read_normalizer(tmp_path / "normalizer.pt"), imported.architecture)
    module = FNO(imported.architecture, read.fields)
    module.load_state_dict({**imported.state, **read.tensors})
    config = ModelConfig(
        name="fields",
        description="pointwise normalisers",
        architecture=imported.architecture,
        inputs=(Channel(name="a"), Channel(name="b")),
        outputs=(Channel(name="u"),),
        grid=GridSpec(
            training=GRID, minimum=GRID, maximum=GRID, extent=(1.0, 1.0), boundary="periodic"
        ),
        field_normalization=read.fields,
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


def test_a_data_processor_that_wraps_a_network_is_read(tmp_path: Path) -> None:
    """Its network's norms have an eps too, but no mean and std."""
    theirs = TheirFNO((6, 5), 2, 1, 4, n_layers=2, norm="group_norm")
    processor = DefaultDataProcessor(fitted(2, [0, 2, 3]), fitted(1, [0, 2, 3]))
    torch.save(processor, tmp_path / "alone.pt")
    processor.wrap(theirs)
    torch.save(processor, tmp_path / "wrapping.pt")
    alone, wrapping = (read_normalizer(tmp_path / f"{name}.pt") for name in ("alone", "wrapping"))
    assert wrapping.keys() == alone.keys()
    for side, scaling in alone.items():
        assert torch.equal(wrapping[side].mean, scaling.mean)
        assert torch.equal(wrapping[side].std, scaling.std)
