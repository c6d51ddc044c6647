"""The Well's networks: Fourier layers without part in the training are skipped, others are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from neuralop.layers.spectral_convolution import SpectralConv
from safetensors.torch import save_file

from tests.models.importers.comparison import our_module
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.importers.detect import convert, read_checkpoint
from turbofno.models.importers.neuraloperator import import_neuraloperator
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Options

WIDTH = 16
CONFIG = {
    "dim_in": 5, "dim_out": 2, "n_spatial_dims": 2, "spatial_resolution": [24, 18], "modes1": 6,
    "modes2": 6, "modes3": 16, "hidden_channels": WIDTH, "gradient_checkpointing": False,
}  # fmt: skip


def tensors(*, trained: bool) -> dict[str, torch.Tensor]:
    """The keys and shapes of neuraloperator 0.3.0's FNO with The Well's settings."""
    scale = 3 if trained else 1
    state = {"fno_blocks.convs.bias": torch.randn(4, WIDTH, 1, 1)}
    for i in range(4):
        # later releases initialise as 0.3.0
        fresh = SpectralConv(WIDTH, WIDTH, (6, 6)).weight.tensor.detach()
        state[f"fno_blocks.convs.weight.{i}.tensor"] = scale * torch.view_as_real(fresh).clone()
        state[f"fno_blocks.fno_skips.{i}.weight"] = torch.nn.Conv2d(WIDTH, WIDTH, 1).weight.detach()
    for name, widths in (("lifting", (5, 20, WIDTH)), ("projection", (WIDTH, 20, 2))):
        for i in range(2):
            shape = (widths[i + 1], widths[i], 1, 1)
            state[f"{name}.fcs.{i}.weight"] = torch.randn(shape) / widths[i]
            state[f"{name}.fcs.{i}.bias"] = torch.randn(widths[i + 1])
    return state


def saved(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    save_file({f"model.{key}": t for key, t in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def pointwise(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Lifting and projection of 0.3.0 in float64."""
    wide = {key: t.double() for key, t in state.items()}
    for name in ("lifting", "projection"):
        first, second = (
            (wide[f"{name}.fcs.{i}.weight"], wide[f"{name}.fcs.{i}.bias"]) for i in range(2)
        )
        x = F.conv2d(F.gelu(F.conv2d(x, *first)), *second)
    return x


def test_untrained_layers_are_skipped(tmp_path: Path) -> None:
    state = tensors(trained=False)
    imported = convert(read_checkpoint(saved(tmp_path, state)), Options())
    assert "bypassed" in " ".join(imported.assumptions)
    assert imported.training_grid == (24, 18)
    x = torch.randn(2, 5, 9, 11, dtype=torch.float64)
    assert relative_l2(our_module(imported, torch.float64)(x), pointwise(state, x)) < 1e-10


def test_trained_layers_are_applied_and_the_setting_overrides(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 9, 11, dtype=torch.float64)
    for trained, settings in ((True, {}), (False, {"blocks": "applied"})):
        state = tensors(trained=trained)
        imported = convert(read_checkpoint(saved(tmp_path, state)), Options(settings))
        assert "Fourier layers are applied" in " ".join(imported.assumptions)
        arguments = {
            "n_modes": (6, 6),
            "in_channels": 5,
            "out_channels": 2,
            "hidden_channels": WIDTH,
        }
        direct = import_neuraloperator(state, arguments, Options())
        expected = our_module(direct, torch.float64)(x)
        assert relative_l2(our_module(imported, torch.float64)(x), expected) < 1e-12
        assert relative_l2(expected, pointwise(state, x)) > 1e-2


def test_layers_whose_skips_moved_are_applied(tmp_path: Path) -> None:
    """A short training hardly changes the spread of the spectral weights."""
    state = tensors(trained=False)
    state["fno_blocks.fno_skips.2.weight"] *= 1.5
    imported = convert(read_checkpoint(saved(tmp_path, state)), Options())
    assert "Fourier layers are applied" in " ".join(imported.assumptions)


def test_another_models_config_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, tensors(trained=True))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(
        ImportRefused,
        match=r"it has the keys model_type\. For .* pass the path of model\.safetensors itself",
    ):
        read_checkpoint(tmp_path)
