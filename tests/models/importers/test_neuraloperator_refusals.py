"""Unsupported networks and arguments are refused by name; a Trainer's folder is accepted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from neuralop.models import FNO as TheirFNO
from neuralop.models import GINO, UNO
from neuralop.training.training_state import save_training_state

from tests.models.importers.neuraloperator_runs import (
    assert_parity,
    imported_exactly,
    outputs,
    read_saved,
    spread,
)
from turbofno.models.importers.detect import read_checkpoint
from turbofno.models.importers.neuraloperator import (
    import_neuraloperator,
    read_exactly,
    recognises,
)
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Options
from turbofno.models.importers.safe_pickle import Named
from turbofno.models.importers.torch_file import read_torch_file

SMALL: dict[str, Any] = {
    "n_modes": (4, 4),
    "in_channels": 1,
    "out_channels": 1,
    "hidden_channels": 4,
}


def of(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = dict(network.state_dict())
    state.pop("_metadata", None)
    return state


def refuse(tensors: dict[str, torch.Tensor], metadata: Any, message: str, **options: str) -> None:
    with pytest.raises(ImportRefused, match=message):
        import_neuraloperator(tensors, metadata, Options(dict(options)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"complex_data": True}, "complex_data"),
        ({"n_modes": (4, 4, 4, 4)}, "has 4 dimensions; 1 to 3 are supported"),
        ({"domain_padding": 0.2, "resolution_scaling_factor": 2}, "domain_padding with"),
        ({"non_linearity": torch.nn.functional.softsign}, "non_linearity=softsign"),
        ({"non_linearity": torch.nn.Softplus(beta=2)}, "Softplus with beta=2"),
    ],
)
def test_unsupported_arguments_are_named(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    TheirFNO(**(SMALL | arguments)).save_checkpoint(tmp_path, "model")
    refuse(*read_saved(tmp_path, "model"), message)


def test_unknown_and_missing_tensors_are_named() -> None:
    tensors = of(TheirFNO(**SMALL))
    refuse({**tensors, "attention.query": torch.zeros(2)}, None, "attention.query")
    refuse({k: v for k, v in tensors.items() if "convs.2.bias" not in k}, None, "convs.2.bias")
    refuse({k: v for k, v in tensors.items() if "fno_skips" not in k}, None, "fno_skip=linear")
    refuse({k: v for k, v in tensors.items() if "lifting" not in k}, None, "lifting")
    refuse({k: v for k, v in tensors.items() if "convs" not in k}, None, "no spectral weights")


def test_unknown_arguments_and_settings_are_named() -> None:
    tensors = of(TheirFNO(**SMALL))
    refuse(tensors, {"n_modes": (4, 4), "wavelets": 3}, "wavelets")
    refuse(tensors, {"n_modes": (4, 4, 4)}, "n_modes")
    refuse(tensors, {"n_modes": (8, 8)}, "exceeds the stored weights")
    refuse(tensors, {"in_channels": 2}, "in_channels=2")
    refuse(tensors, None, "in_channels=one must be a whole number", in_channels="one")
    refuse(tensors, {"norm": "ada_in"}, "ada_in")
    refuse(tensors, {"conv_bias_kernel": 3}, "conv_bias_kernel")
    refuse(tensors, {"resolution_scaling_factor": [2, 1, 0, 1]}, "must have positive factors")
    grouped = of(TheirFNO(**SMALL, norm="group_norm"))
    refuse(grouped, {"norm": "instance_norm"}, "instance norms with weights")
    refuse(tensors, {"args": ((4, 4), 1, 1, 4, 4, 2)}, "6 positional arguments")
    refuse(tensors, None, "no setting colour; its settings are: [a-z]", colour="red")
    refuse(tensors, None, "no setting _whole", _whole="true")
    refuse(tensors, None, "version", version="7")
    refuse(tensors, None, "have the layout", version="0.3.0")


@pytest.mark.parametrize("module", ["mylayers", "neuralop.layers.legacy_spectral_convolution"])
def test_another_convolution_of_the_same_name_is_refused(module: str) -> None:
    tensors = of(TheirFNO(**SMALL))
    other = {"conv_module": Named(module, "SpectralConv")}
    refuse(tensors, other, f"conv_module={module}.SpectralConv is not supported")


@pytest.mark.parametrize(
    "key",
    [
        "lifting.fcs.0.weight", "projection.fcs.1.bias", "fno_blocks.convs.1.bias",
        "fno_blocks.fno_skips.0.conv.weight", "fno_blocks.channel_mlp.2.fcs.0.weight",
        "fno_blocks.channel_mlp_skips.0.weight", "fno_blocks.norm.1.weight",
    ],
)  # fmt: skip
def test_tensors_of_an_unexpected_dtype_are_named(key: str) -> None:
    tensors = of(TheirFNO(**SMALL, norm="group_norm"))
    metadata = {"norm": "group_norm"}
    imported_exactly(tensors, metadata)
    turned = {**tensors, key: tensors[key] * (1 + 0.5j)}
    refuse(turned, metadata, f"{key} is torch.complex64, expected real")
    refuse({**tensors, key: tensors[key].int()}, metadata, f"{key} is torch.int32, expected float")


def test_integers_in_a_spectral_weight_are_refused() -> None:
    key = "fno_blocks.convs.0.weight.tensor"
    tensors = of(TheirFNO(**SMALL))
    whole = torch.view_as_real(tensors[key]).long()
    refuse({**tensors, key: whole}, None, f"{key} is torch.int64, expected float")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n_modes": (4, 3)}, r"as after module\.to\(dtype\), which discards"),
        ({"factorization": "CP", "rank": 2}, r"weights of shape \[2\] is not complex and 1-dim"),
        ({"factorization": "Tucker", "rank": (2, 2, 2, 2)}, "core of .* is not complex and 4-dim"),
    ],
)
def test_two_numbers_that_a_cast_has_left_are_no_complex_one(
    arguments: dict[str, Any], says: str
) -> None:
    tensors = of(TheirFNO(**{**SMALL, **arguments}))
    refuse({key: tensor.real.float() for key, tensor in tensors.items()}, None, says)


@pytest.mark.parametrize(
    ("factorization", "part", "axes"),
    [("CP", "weights", 1), ("Tucker", "factors.factor_1", 2), ("TT", "factors.factor_0", 3)],
)
def test_factors_with_too_many_axes_are_named(factorization: str, part: str, axes: int) -> None:
    tensors = of(TheirFNO(**SMALL, factorization=factorization))
    key = f"fno_blocks.convs.0.weight.{part}"
    tensors[key] = tensors[key][None]
    shown = re.escape(f"{key} of shape {list(tensors[key].shape)}")
    refuse(tensors, None, rf"^{shown} is not {axes}-dimensional\. Supported are a dense tensor,")


def test_other_models_are_named() -> None:
    uno = UNO(
        in_channels=1,
        out_channels=1,
        hidden_channels=4,
        n_layers=3,
        uno_out_channels=[4, 4, 4],
        uno_n_modes=[[4, 4]] * 3,
        uno_scalings=[[1, 1]] * 3,
        channel_mlp_skip="linear",
    )
    gino = GINO(in_channels=1, out_channels=1, fno_n_modes=(4, 4, 4), fno_hidden_channels=8)
    for network in (uno, gino):
        assert recognises(network.state_dict())
        name = type(network).__name__
        refuse(of(network), {"_name": name}, name)
        refuse(of(network), None, "no spectral weights|unsupported tensors")
    refuse(of(TheirFNO(**SMALL)), {"_name": "SFNO"}, "SFNO")


def test_a_weight_for_each_corner_is_of_an_earlier_release() -> None:
    layers = 2
    tensors = of(TheirFNO(**SMALL, n_layers=layers))
    biases = [tensors.pop(f"fno_blocks.convs.{i}.bias") for i in range(layers)]
    dense = [tensors.pop(f"fno_blocks.convs.{i}.weight.tensor") for i in range(layers)]
    tensors["fno_blocks.convs.bias"] = torch.stack(biases)
    corners = [corner for weight in dense for corner in weight.chunk(2, dim=2)]
    for i, corner in enumerate(corners):
        tensors[f"fno_blocks.convs.weight.{i}.tensor"] = corner
    refuse(tensors, None, f"{2 * layers} tensors for {layers} layers.* before 0.3.0")


def test_a_spherical_weight_is_refused_without_metadata() -> None:
    tensors = of(TheirFNO(**SMALL))
    for name, tensor in tensors.items():
        if name.endswith("weight.tensor"):
            tensors[name] = tensor[..., 0]
    refuse(tensors, None, "as in a spherical network")


def test_a_trainers_folder_is_read(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**SMALL))
    optimizer = torch.optim.Adam(theirs.parameters())
    save_training_state(tmp_path, "best_model", theirs, optimizer=optimizer, epoch=3)
    assert read_torch_file(tmp_path / "manifest.pt")["model"] == "best_model_state_dict.pt"
    xs = [torch.randn(2, 1, 9, 10), torch.randn(2, 1, 8, 11)]
    imported = imported_exactly(*read_saved(tmp_path, "best_model"))
    assert_parity(imported, xs, outputs(theirs, xs))


@pytest.mark.parametrize("written", ["false", "False", "true", "True"])
def test_truth_values_are_read_as_in_python_and_json(written: str, tmp_path: Path) -> None:
    preactivation = written.lower() == "true"
    theirs = spread(TheirFNO(**SMALL, preactivation=preactivation, norm="instance_norm")).eval()
    xs = [torch.randn(2, 1, 9, 8)]
    # a bare state dict does not show it
    options = Options({"preactivation": written, "norm": "instance_norm"})
    imported = read_exactly(of(theirs), None, options)
    assert_parity(imported, xs, outputs(theirs, xs))
    refuse(of(theirs), None, "preactivation must be true or false, not 'off'", preactivation="off")


def test_a_skip_that_the_tensors_show_may_be_named_but_not_changed() -> None:
    tensors = of(TheirFNO(**SMALL))
    options = Options({"fno_skip": "linear", "channel_mlp_skip": "soft-gating"})
    arch = import_neuraloperator(tensors, None, options).architecture
    assert (arch.skip, arch.channel_mlp.skip) == ("linear", "soft-gating")
    says = "fno_skip=identity, but the checkpoint has linear skips in fno_blocks.fno_skips.0"
    refuse(tensors, None, says, fno_skip="identity")


@pytest.mark.parametrize(
    ("norm", "kept", "other"),
    [("group_norm", "group_norm", "batch_norm"), ("batch_norm", "affine", "group_norm")],
)
def test_a_norm_that_the_tensors_show_may_be_named_but_not_changed(
    norm: str, kept: str, other: str
) -> None:
    tensors = of(TheirFNO(**SMALL, norm=norm))
    bare = import_neuraloperator(tensors, None, Options({}))
    assert bare.architecture.norm == kept
    assert not [line for line in bare.assumptions if line.startswith("norm=")]
    named = import_neuraloperator(tensors, None, Options({"norm": norm}))
    assert named.architecture.norm == kept
    for wrong in ("none", "instance_norm", other):
        refuse(tensors, None, f"norm={wrong}, but the checkpoint has", norm=wrong)


@pytest.mark.parametrize("name", ["hidden_channels", "n_layers", "out_channels"])
def test_arguments_of_a_network_of_other_sizes_are_refused(name: str) -> None:
    tensors = of(TheirFNO(**SMALL))
    refuse(tensors, {name: 7}, f"the file's arguments have {name}=7, but its tensors [14]:")


def test_a_metadata_file_of_another_network_is_refused(tmp_path: Path) -> None:
    TheirFNO(**SMALL).save_checkpoint(tmp_path, "model")
    read_checkpoint(tmp_path)
    torch.save(
        TheirFNO(**SMALL, domain_padding=0.25).state_dict(), tmp_path / "model_state_dict.pt"
    )
    says = "model_metadata.pkl has domain_padding=None, but the network in model_state_dict.pt was saved with 0.25"
    with pytest.raises(ImportRefused, match=says):
        read_checkpoint(tmp_path)
    (tmp_path / "model_metadata.pkl").unlink()
    settings = read_checkpoint(tmp_path).settings
    assert settings is not None
    assert settings["domain_padding"] == 0.25
