"""The server loads native checkpoints with matching hashes, and nothing else, from a hostile model repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.attacks import payloads
from tests.service.tiny import save_tiny
from turbofno.models.core.checkpoint import CheckpointError, load_model
from turbofno.models.core.registry import discover
from turbofno.service.local import predict_local

WEIGHTS = "model.safetensors"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    save_tiny(root)
    return root


def test_pickles_in_the_repository_are_ignored(repository: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for name, content in payloads.torch_files(marker).items():
        folder = repository / name.replace(" ", "-").replace(",", "")
        folder.mkdir()
        for file in ("model.pt", "pytorch_model.bin", WEIGHTS):
            (folder / file).write_bytes(content)
        (repository / "tiny-1d" / f"{folder.name}.pt").write_bytes(content)
    assert [model.name for model in discover(repository)] == ["tiny-1d"]
    load_model(repository / "tiny-1d")
    assert not marker.exists()


def test_a_pickle_under_the_name_of_the_weights_is_refused(
    repository: Path, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    for content in payloads.torch_files(marker).values():
        (repository / "tiny-1d" / WEIGHTS).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"SHA-256 is .* but config\.json says"):
            load_model(repository / "tiny-1d")
    assert not marker.exists()


def test_other_weights_that_fit_are_refused(repository: Path) -> None:
    file = repository / "tiny-1d" / WEIGHTS
    state = load_file(file)
    save_file({key: tensor + 1e-6 for key, tensor in state.items()}, file)
    with pytest.raises(CheckpointError, match="SHA-256"):
        load_model(repository / "tiny-1d")
    with pytest.raises(CheckpointError, match="SHA-256"):
        predict_local(repository, "tiny-1d", torch.zeros(1, 16).numpy(), version=None, device="cpu")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_channels": 2_000_000}, "has shape"),
        ({"modes": [2**61]}, "no network of this architecture can be built"),
        ({"n_layers": 10**9}, "n_layers"),
    ],
)
def test_a_config_with_giant_sizes_takes_no_memory(
    changes: dict[str, object], says: str, repository: Path
) -> None:
    folder = repository / "tiny-1d"
    config = json.loads((folder / "config.json").read_text())
    config["architecture"].update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=says):
        load_model(folder)
