"""Networks saved by PhysicsNeMo, Modulus and PDEBench give the same results after the import."""

from __future__ import annotations

import json
import logging
import zipfile
from pathlib import Path

import pytest
import torch

from tests.models.importers.comparison import our_module, rounding
from tests.models.importers.other_libraries import draw_and_save
from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.importers.detect import convert, read_checkpoint
from turbofno.models.importers.physicsnemo import import_physicsnemo
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Options
from turbofno.models.importers.torch_file import read_torch_file

COUNT = tried(4, thoroughly=12)


@pytest.mark.parametrize("name", ["modulus-0.9", "physicsnemo-1", "physicsnemo-2", "pdebench"])
def test_random_networks_give_the_librarys_results(name: str, tmp_path: Path) -> None:
    draw_and_save(name, tmp_path, COUNT)
    for i in range(COUNT):
        (file,) = tmp_path.glob(f"{i}.*")
        # what PDEBench's training writes may as well be of an original script
        said = name == "pdebench" and isinstance(read_torch_file(file), dict)
        imported = convert(read_checkpoint(file, "pdebench" if said else None), Options())
        answers = torch.load(tmp_path / f"{i}_answers.pt", weights_only=True)
        single, double = (our_module(imported, dtype) for dtype in (torch.float32, torch.float64))
        for x, expected, exact in zip(
            answers["fields"], answers["outputs"], answers["outputs64"], strict=True
        ):
            assert (expected.dtype, exact.dtype) == (torch.float32, torch.float64)
            with torch.inference_mode():
                found, found64 = single(x), double(x.double())
            about = (file, x.shape, imported.architecture)
            assert relative_l2(found64, exact) < 1e-10, about
            # A few networks amplify rounding, also in their library.
            bound = max(1e-5, 3 * rounding(imported, x, expected, exact))
            assert relative_l2(found, expected) < bound, about


def mdlus(path: Path, *, name: str = "FNO", version: object = "2.0.0", **arguments: object) -> Path:
    """A .mdlus file without tensors, for refusals that precede their reading."""
    torch.save({}, path.with_suffix(".pt"))
    args = {"in_channels": 1, "out_channels": 1, **arguments}
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(path.with_suffix(".pt"), "model.pt")
        module = "physicsnemo.models"
        archive.writestr(
            "args.json", json.dumps({"__name__": name, "__module__": module, "__args__": args})
        )
        archive.writestr("metadata.json", json.dumps({"physicsnemo_version": version}))
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "AFNO"}, r"holds physicsnemo\.models\.AFNO; .* FNO in 1 to 3 dimensions is supported"),
        ({"dimension": 4}, "the FNO has 4 dimensions"),
        ({"colour": 1}, r"args\.json: colour"),
        ({"latent_channels": "many"}, r"args\.json: latent_channels"),
        ({"version": None}, "which does not determine how overlapping modes are treated"),
        ({}, r"the checkpoint has no spec_encoder\.lift_network\.0\.conv\.weight"),
    ],
)  # fmt: skip
def test_unsupported_models_are_named(change: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match=says):
        convert(read_checkpoint(mdlus(tmp_path / "model.mdlus", **change)), Options())


def one_dimensional() -> dict[str, torch.Tensor]:
    """The tensors of FNO(1, 1, dimension=1, latent_channels=2, num_fno_layers=1, num_fno_modes=3)."""
    shapes = {
        "device_buffer": (0,), "spec_encoder.spconv_layers.0.weights1": (2, 2, 3, 2),
        "spec_encoder.lift_network.0.conv.weight": (1, 2, 1), "spec_encoder.lift_network.0.conv.bias": (1,),
        "spec_encoder.lift_network.2.conv.weight": (2, 1, 1), "spec_encoder.lift_network.2.conv.bias": (2,),
        "spec_encoder.conv_layers.0.weight": (2, 2, 1), "spec_encoder.conv_layers.0.bias": (2,),
        "decoder_net.layers.0.linear.weight": (32, 2), "decoder_net.layers.0.linear.bias": (32,),
        "decoder_net.final_layer.linear.weight": (1, 32), "decoder_net.final_layer.linear.bias": (1,),
    }  # fmt: skip
    return {key: torch.randn(shape) for key, shape in shapes.items()}


def test_a_state_dict_is_told_how_to_be_saved(tmp_path: Path) -> None:
    state = {f"module.{key}": tensor for key, tensor in one_dimensional().items()}
    torch.save(state, tmp_path / "fno.pt")
    with pytest.raises(ImportRefused, match=r"state dict of PhysicsNeMo's FNO.*model\.save"):
        read_checkpoint(tmp_path / "fno.pt")


def test_a_folder_of_checkpoints_is_read_if_it_has_one_network(tmp_path: Path) -> None:
    training = {"epoch": 3, "optimizer_state_dict": {}, "scheduler_state_dict": {}}
    torch.save(training, tmp_path / "checkpoint.0.3.pt")
    with pytest.raises(
        ImportRefused, match=r"training state.*beside this one, as NAME\.EPOCH\.mdlus"
    ):
        read_checkpoint(tmp_path / "checkpoint.0.3.pt")
    mdlus(tmp_path / "FNO.0.3.mdlus")
    assert read_checkpoint(tmp_path).path == tmp_path / "FNO.0.3.mdlus"
    mdlus(tmp_path / "FNO.0.4.mdlus")
    with pytest.raises(ImportRefused, match=r"found FNO\.0\.3\.mdlus, FNO\.0\.4\.mdlus; pass"):
        read_checkpoint(tmp_path)


def test_a_network_saved_whole_is_told_how_to_be_saved(tmp_path: Path) -> None:
    network = torch.nn.Module()
    network.spec_encoder = torch.nn.Module()
    network.spec_encoder.spconv_layers = torch.nn.ModuleList([torch.nn.Linear(1, 1)])
    # as in the library's base class
    network.logger = logging.getLogger("core.module")
    torch.save(network, tmp_path / "fno.pt")
    with pytest.raises(ImportRefused, match=r"PhysicsNeMo's FNO.*model\.save"):
        read_checkpoint(tmp_path / "fno.pt")


@pytest.mark.parametrize(
    ("arguments", "tensors", "says"),
    [
        ({}, {}, None),
        (
            {"activation_fn": "stan"},
            {},
            "activation_fn 'stan' is not supported; supported are gelu",
        ),
        (
            {"padding_type": "wrap"},
            {},
            "padding_type 'wrap' is not supported; supported are constant",
        ),
        (
            {},
            {"decoder_net.final_layer.linear.bias": torch.zeros(1) * 1j},
            "bias is torch.complex64",
        ),
        ({}, {"decoder_net.extra": torch.zeros(1)}, "unsupported tensors, decoder_net.extra"),
        ({"num_fno_layers": 2}, {}, "no spec_encoder.spconv_layers.1.weights1"),
    ],
)
def test_unsupported_settings_and_tensors_are_named(
    arguments: dict[str, object], tensors: dict[str, torch.Tensor], says: str | None
) -> None:
    usual = {"in_channels": 1, "out_channels": 1, "dimension": 1, "latent_channels": 2,
             "num_fno_layers": 1, "num_fno_modes": 3}  # fmt: skip
    call = (
        {**one_dimensional(), **tensors},
        {**usual, **arguments},
        {"physicsnemo_version": "2.0.0"},
    )
    if says is None:
        assert import_physicsnemo(*call, Options()).architecture.modes == (3,)
        return
    with pytest.raises(ImportRefused, match=says):
        import_physicsnemo(*call, Options())
