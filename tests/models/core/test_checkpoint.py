"""Native checkpoints: save and load round trip; errors name the fault."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.checkpoint import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    CheckpointError,
    load_model,
    save_model,
    sha256_of,
)
from turbofno.models.core.config import Channel, GridSpec, ModelConfig, Normalization
from turbofno.models.core.fno import FNO

ARCH = FNOArchitecture(
    in_channels=2,
    out_channels=1,
    hidden_channels=4,
    n_layers=2,
    modes=(6, 4),
    positional_grid="endpoint_excluded",
    norm="group_norm",
)
NORMALIZATION = Normalization(
    input_mean=(0.5, 1.0), input_std=(2.0, 3.0), output_mean=(-1.0,), output_std=(0.25,)
)
CONFIG = ModelConfig(
    name="tiny",
    description="a tiny model",
    architecture=ARCH,
    inputs=(Channel(name="a", units="Pa"), Channel(name="b", units="m", minimum=1.0, maximum=1.0)),
    outputs=(Channel(name="u", units="K"),),
    grid=GridSpec(
        training=(16, 16), minimum=(8, 8), maximum=(64, 64), extent=(1.0, 2.0), boundary="periodic"
    ),
    normalization=NORMALIZATION,
    sha256="0" * 64,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_model(tmp_path / "tiny", CONFIG, FNO(ARCH, NORMALIZATION))
    return tmp_path / "tiny"


def rewrite_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / CONFIG_FILE).read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        target = config
        for step in path:
            target = target[step]
        if value is None:
            del target[last]
        else:
            target[last] = value
    (folder / CONFIG_FILE).write_text(json.dumps(config))


def rewrite_weights(folder: Path, state: dict[str, torch.Tensor]) -> None:
    save_file(state, folder / WEIGHTS_FILE)
    rewrite_config(folder, sha256=sha256_of(folder / WEIGHTS_FILE))


def test_saved_model_is_loaded_equal(tmp_path: Path) -> None:
    module = FNO(ARCH, NORMALIZATION).eval()
    written = save_model(tmp_path, CONFIG, module)
    loaded = load_model(tmp_path)
    assert loaded.config == written
    for name, tensor in module.state_dict().items():
        assert torch.equal(loaded.module.state_dict()[name], tensor), name
    x = torch.randn(2, 2, 16, 15)
    torch.testing.assert_close(loaded.module(x), module(x))
    assert not loaded.module.training
    assert not any(p.requires_grad for p in loaded.module.parameters())


def test_the_quantity_of_a_channel_has_its_units() -> None:
    named = (*CONFIG.inputs, Channel(name="c"))
    assert [channel.quantity for channel in named] == ["a [Pa]", "b [m]", "c"]


def test_a_default_dtype_changes_nothing(folder: Path) -> None:
    expected = load_model(folder).module.state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        found = load_model(folder).module.state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_loaded_spectral_weight_is_stored_mode_by_mode(folder: Path) -> None:
    weight = load_model(folder).module.blocks[0].spectral_weight
    assert weight.permute(2, 3, 0, 1).is_contiguous()


def test_saved_weights_can_be_read_by_another_user(folder: Path) -> None:
    assert (folder / WEIGHTS_FILE).stat().st_mode & 0o044 == 0o044


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"no {CONFIG_FILE}"):
        load_model(tmp_path / "nowhere")
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(CheckpointError, match=f"no {WEIGHTS_FILE}"):
        load_model(folder)


def test_damaged_weights_fail_the_hash(folder: Path) -> None:
    raw = bytearray((folder / WEIGHTS_FILE).read_bytes())
    raw[-1] ^= 1
    (folder / WEIGHTS_FILE).write_bytes(raw)
    with pytest.raises(CheckpointError, match="SHA-256"):
        load_model(folder)


def test_a_pointer_of_git_lfs_in_the_place_of_weights_is_named(folder: Path) -> None:
    (folder / WEIGHTS_FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"colour": "blue"}, "colour: Extra inputs"),
        ({"format": "turbofno/9"}, "format"),
        ({"architecture__modes": [6]}, "grid.training has 2 axes"),
        ({"architecture__modes": [6, 4, 2, 2]}, "architecture.modes"),
        ({"architecture__hidden_channels": 0}, "architecture.hidden_channels"),
        ({"architecture__activation": "softsign"}, "architecture.activation"),
        ({"architecture__norm_groups": 3}, "norm_groups=3 does not divide"),
        ({"architecture__domain_padding": {"points": [1]}}, "domain_padding has 1 entries"),
        ({"architecture__domain_padding": {}}, "exactly one of"),
        (
            {"architecture__mode_placement": "corners_add", "architecture__modes": [5, 4]},
            "even modes",
        ),
        ({"architecture__block": ["spectral", "skip"]}, "step 'norm' 0 times"),
        ({"architecture__block": ["norm", "skip"]}, "step 'spectral' 0 times"),
        ({"architecture__last_block": ["spectral", "norm", "mlp"]}, "step 'skip' 0 times"),
        ({"architecture__block": ["spectral", "dance"]}, "architecture.block.1"),
        ({"architecture__resolution_scaling": [[2, 1]]}, "resolution_scaling needs 2 entries"),
        ({"field_normalization": {"grid": [16, 16]}}, "not both"),
        *(
            (
                {"normalization": None, "field_normalization": {"grid": grid}, **others},
                "must be equal",
            )
            for grid, others in (
                ([16, 16], {"grid__minimum": [16, 16]}),
                ([16, 16], {"grid__maximum": [16, 16]}),
                ([8, 8], {"grid__minimum": [16, 16], "grid__maximum": [16, 16]}),
            )
        ),
        ({"grid__minimum": [8]}, "grid.minimum has 1 axes, but the architecture has 2"),
        ({"grid__maximum": [64, 64, 64]}, "grid.maximum has 3 axes"),
        ({"grid__extent": [1.0]}, "grid.extent has 1 axes"),
        ({"grid__minimum": [99, 1]}, r"is not between grid.minimum=\[99, 1\]"),
        ({"grid__maximum": [99, 1]}, r"grid.maximum=\[99, 1\]"),
        (
            {"inputs": [{"name": "a", "minimum": 1, "exclusive_maximum": 0}]},
            "channel 'a' allows no value: its minimum 1 is above its maximum 0",
        ),
        (
            {
                "inputs": [
                    {
                        "name": "a",
                        "minimum": 0,
                        "exclusive_minimum": 5,
                        "maximum": 3,
                        "exclusive_maximum": 9,
                    }
                ]
            },
            "channel 'a' allows no value: its minimum 5 is above its maximum 3",
        ),
        ({"inputs": [{"name": "a"}]}, "inputs names 1 channels"),
        ({"outputs": [{"name": "a"}, {"name": "b"}]}, "outputs names 2 channels"),
        ({"inputs": [{"name": "a"}, {"name": "a"}]}, "channel name twice"),
        ({"normalization__input_std": [1.0, 0.0]}, "normalization.input_std"),
        ({"normalization__input_mean": [1.0]}, "input_mean has 1 entries, expected 2"),
        ({"normalization__input_std": [1.0]}, "input_std has 1 entries, expected 2"),
        ({"normalization__output_mean": [1.0, 0.0]}, "output_mean has 2 entries"),
        ({"normalization__output_std": [1.0, 2.0]}, "output_std has 2 entries, expected 1"),
        ({"name": "../etc"}, "name"),
        ({"sha256": None}, "sha256: Field required"),
    ],
)
def test_wrong_config_entries_are_named(
    folder: Path, changes: dict[str, object], says: str
) -> None:
    rewrite_config(folder, **changes)
    with pytest.raises(CheckpointError, match=says):
        load_model(folder)


def test_config_that_is_not_json_is_refused(folder: Path) -> None:
    (folder / CONFIG_FILE).write_text("{")
    with pytest.raises(CheckpointError, match="JSON"):
        load_model(folder)


def test_wrong_tensors_are_named(folder: Path) -> None:
    state = load_file(folder / WEIGHTS_FILE)
    key = "blocks.1.spectral_weight"
    cases: list[tuple[dict[str, torch.Tensor], str]] = [
        ({k: v for k, v in state.items() if k != key}, f"missing {key}"),
        ({**state, "extra.weight": torch.zeros(1)}, "unknown extra.weight"),
        ({**state, key: state[key][:, :, :4].contiguous()}, rf"{key} has shape \[4, 4, 4, 4\]"),
        ({**state, "lifting.linears.0.weight": torch.zeros(4, 4).half()}, r"is torch\.float16"),
        ({**state, key: torch.full_like(state[key], float("nan"))}, f"{key} holds NaN"),
    ]
    for changed, says in cases:
        rewrite_weights(folder, changed)
        with pytest.raises(CheckpointError, match=says):
            load_model(folder)


def test_weights_that_are_not_safetensors_are_refused(folder: Path) -> None:
    for content in (b"", b"\x80\x04pickle", b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}"):
        (folder / WEIGHTS_FILE).write_bytes(content)
        rewrite_config(folder, sha256=sha256_of(folder / WEIGHTS_FILE))
        with pytest.raises(CheckpointError, match="not a valid safetensors file"):
            load_model(folder)


@pytest.mark.parametrize("fits", [False, True])
def test_a_full_disk_leaves_the_old_checkpoint(folder: Path, fits: bool) -> None:
    before = load_model(folder)
    # Room for the weights only, or not even for them.
    room = (folder / WEIGHTS_FILE).stat().st_size if fits else 100
    module = FNO(before.config.architecture)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    config = before.config.model_copy(update={"description": "x" * 2 * room})
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises((OSError, SafetensorError)):
            save_model(folder, config, module)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    after = load_model(folder)
    assert after.config == before.config
    for name, tensor in before.module.state_dict().items():
        assert torch.equal(tensor, after.module.state_dict()[name])
