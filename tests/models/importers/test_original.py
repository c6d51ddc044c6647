"""Imported networks of the original scripts give the scripts' results."""

from __future__ import annotations

import argparse
import importlib
import math
import pathlib
import random
import re
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.models.importers.comparison import assert_equal_functions
from tests.models.importers.original_scripts import MLP, Script
from tests.models.importers.test_normalizers import RangeNormalizer
from turbofno.models.core.fno import to_precision
from turbofno.models.importers.detect import convert, read_checkpoint
from turbofno.models.importers.original import import_original, recognises
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported, Options


class FNO2d:
    """No network, but with the name of one."""


BURGERS = {"script": "fourier_1d"}
DARCY = {"script": "fourier_2d"}
SCRIPTS: list[tuple[str, int, dict[str, object], dict[str, str]]] = [
    # generation, axes, arguments of the script, settings of the user
    ("A", 1, {"activation": F.relu, "grid_end": 2 * math.pi}, {}),
    ("A", 1, {"activation": F.relu, "norm": "batch", "grid_end": 2 * math.pi}, {}),
    ("A", 2, {"activation": F.relu, "norm": "batch", "grid_order": "xy"}, {"script": "fourier_2d"}),
    ("A", 2, {"activation": F.relu, "grid_order": "xy"}, {"script": "fourier_2d"}),
    ("A", 2, {"activation": F.relu, "norm": "batch", "out_in": True}, {"script": "fourier_2d_time"}),
    ("A", 2, {"activation": F.relu, "norm": "batch", "out_in": True, "grid_place": "before"}, {"script": "fourier_2d_time", "grid_place": "before"}),
    ("A", 3, {"activation": F.relu, "norm": "batch", "grid_place": "caller"}, {}),
    ("A", 2, {"activation": F.relu, "complex_pairs": False}, {"script": "fourier_2d_time"}),
    ("A", 3, {"activation": F.relu, "norm": "batch", "grid_place": "caller", "complex_pairs": False}, {}),
    ("B", 2, {"activation": F.relu, "norm": "batch", "flat_skips": True}, {"script": "fourier_2d_time"}),
    ("B", 2, {"activation": F.relu, "flat_skips": True, "grid_order": "xy"}, {"script": "fourier_2d"}),
    ("B", 3, {"activation": F.relu, "flat_skips": True, "grid_place": "caller"}, {}),
    ("B", 3, {"activation": F.relu, "flat_skips": True, "grid_place": "caller", "batch_norm_parameters": True}, {}),
    ("B", 2, {"norm": "instance"}, {"script": "fourier_2d_time"}),
    ("B", 1, {}, {"script": "fourier_1d"}),
    ("B", 1, {"activation": lambda x: F.leaky_relu(x, 0.2)}, {"script": "fourier_1d", "activation": "leaky_relu(0.2)"}),
    ("B", 1, {"grid_end": 2 * math.pi, "activation": F.relu},
     {"script": "fourier_1d", "activation": "relu", "coordinates": f"0:{2 * math.pi}"}),
    ("B", 1, {"padding": (2,), "activation": F.relu}, {"script": "fourier_1d", "padding": "2", "activation": "relu"}),
    ("B", 2, {"padding": (9, 9)}, {"script": "fourier_2d"}),
    ("B", 2, {"batch_norm_parameters": True}, {"script": "fourier_2d_time"}),
    ("B", 3, {"padding": (0, 0, 6), "batch_norm_parameters": True}, {"script": "fourier_3d"}),
    ("B", 3, {"padding": (0, 0, 6)}, {}),
    ("B", 1, {"norm": "batch", "activation": F.relu}, {}),
    ("B", 2, {"norm": "batch", "activation": F.relu}, {"script": "fourier_2d_time"}),
    ("B", 2, {"norm": "batch", "activation": F.relu}, {"script": "fourier_2d"}),
    ("B", 2, {"norm": "batch", "padding": (9, 9)}, {"script": "fourier_2d", "activation": "gelu", "padding": "9"}),
    ("B", 3, {"norm": "batch", "activation": F.relu}, {"script": "fourier_3d"}),
    ("C", 1, {}, {}),
    ("C", 2, {"padding": (9, 9)}, {"script": "fourier_2d"}),
    ("C", 2, {"norm": "instance"}, {"script": "fourier_2d_time"}),
    ("C", 3, {"padding": (0, 0, 6)}, {}),
    ("C", 1, {"norm": "batch"}, {}),
    ("C", 1, {"norm": "batch"}, {"norm": "batch"}),
    ("C", 2, {"norm": "batch", "padding": (9, 9), "activation": F.relu}, {"script": "fourier_2d", "norm": "batch", "activation": "relu"}),
    ("B", 2, {"norm": "instance", "padding": (3, 0)}, {"script": "fourier_2d", "norm": "instance", "padding": "3,0"}),
    ("B", 1, {"last_activation": True}, {"script": "fourier_1d", "last_activation": "true"}),
    ("B", 2, {"norm": "instance", "last_activation": True}, {"script": "fourier_2d_time", "last_activation": "true"}),
    ("B", 3, {"norm": "batch", "activation": F.relu, "last_activation": True}, {"script": "fourier_3d", "last_activation": "true"}),
    ("C", 2, {"padding": (9, 9), "last_activation": True}, {"script": "fourier_2d", "last_activation": "true"}),
    ("B", 2, {"grid_order": "xy", "grid_place": "before"}, {"script": "fourier_2d", "padding": "0", "grid_order": "xy", "grid_place": "before"}),
]  # fmt: skip


@pytest.mark.parametrize("key", ["fc0.weight", "w1.bias", "fc2.weight", "conv0.weights1"])
def test_tensors_of_an_unexpected_dtype_are_named(key: str) -> None:
    state = Script("B", (3, 3), 4, 1, 1).state_dict()
    said = Options({**DARCY})
    with pytest.raises(ImportRefused, match=f"{key} is torch.int64, expected floating-point"):
        import_original({**state, key: torch.ones(state[key].shape).long()}, said)
    if not state[key].is_complex():
        with pytest.raises(ImportRefused, match=f"{key} is torch.complex64, expected real"):
            import_original({**state, key: state[key] * 1j}, said)


def drawn(generation: str, n: int, does: dict[str, object]) -> tuple[Script, tuple[int, ...]]:
    """A random network of this kind, and a grid that holds its modes, odd on some axes."""
    rng = random.Random(int(torch.randint(2**31, ())))
    modes = tuple(rng.randint(1, 5) for _ in range(n))
    most = 24 if n < 3 else 11
    # from grids where the corners overlap to larger ones
    size = tuple(rng.randint(max(m + 2, 2 * modes[-1]), most) for m in modes)
    model = Script(
        generation, modes, rng.randint(2, 8), rng.randint(1, 3), rng.randint(1, 2),
        n_layers=rng.randint(1, 4), **does,
    )  # fmt: skip
    return model.eval(), size


def assert_parity(imported: Imported, model: Script, size: tuple[int, ...]) -> None:
    assert_equal_functions(
        imported,
        lambda x: model(x.movedim(1, -1)).movedim(-1, 1),
        lambda dtype: to_precision(model, dtype) and None,
        size,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_in_half_precision_are_widened(dtype: torch.dtype) -> None:
    """Generation A stores real and imaginary parts; PyTorch has no complex numbers of two bfloat16."""
    state = {k: t.to(dtype) for k, t in Script("A", (3, 3), 4, 1, 1).state_dict().items()}
    said = Options({**DARCY})
    halved = import_original(state, said).state
    whole = import_original({k: t.float() for k, t in state.items()}, said).state
    for name, tensor in whole.items():
        assert torch.equal(halved[name].to(tensor.dtype), tensor), name


@pytest.mark.parametrize(("generation", "n", "does", "said"), SCRIPTS)
def test_imported_network_gives_the_scripts_result(
    generation: str, n: int, does: dict[str, object], said: dict[str, str]
) -> None:
    for _ in range(3):
        model, size = drawn(generation, n, does)
        state = model.state_dict()
        if generation == "A":
            state = {f"conv1.{key}": tensor for key, tensor in state.items()}
        assert recognises(state)
        assert_parity(import_original(state, Options(said)), model, size)


def test_numbers_that_a_pickled_network_holds_besides_its_weights_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = drawn("B", 1, {})
    path = saved_script(model, tmp_path, monkeypatch, "FNO1d")
    plain = convert(read_checkpoint(path), Options({**BURGERS})).assumptions
    assert not any("besides its weights" in line for line in plain)
    model.y_normalizer = RangeNormalizer(torch.randn(9, 16))
    model.shift, model.out_std = torch.ones(1), 2.5
    path = saved_script(model, tmp_path, monkeypatch, "FNO1d")
    said = convert(read_checkpoint(path), Options({**BURGERS})).assumptions
    assert "WARNING: the pickled network holds y_normalizer, shift, out_std besides" in said[-1]


@pytest.mark.parametrize("inputs", [1, 3, 10])
@pytest.mark.parametrize("generation", ["A", "B", "C"])
def test_a_file_that_two_scripts_write_needs_the_script(generation: str, inputs: int) -> None:
    """However many inputs: a script of time steps may take one, and Darcy's several."""
    state = Script(generation, (3, 3), 4, inputs, 1).state_dict()
    if generation == "A":
        state = {f"conv1.{key}": tensor for key, tensor in state.items()}
    with pytest.raises(ImportRefused) as refused:
        import_original(state, Options())
    for script in ("fourier_2d", "fourier_2d_time"):
        assert f"--set script={script} (" in str(refused.value)
        imported = import_original(state, Options({"script": script}))
        assert imported.format == f"original script {script}, generation {generation}"
    later = "2d (9 points of padding, no norms) or --set script=fourier_2d_time (no padding, instance norms)"
    difference = {
        "A": "2d (coordinates in the order xy, spectral weights [in, out, modes]) or",
        "B": "2d (9 points of padding, no norms, coordinates at both ends), --set script=fourier_2d_time (",
        "C": later,
    }
    assert f"script=fourier_{difference[generation]}" in str(refused.value)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_keys_of_pdebench_too_are_asked_about(n: int) -> None:
    """PDEBench's networks have the keys and shapes of the scripts of 2021, but other coordinates, and padding in 1D."""
    state = Script("B", (3,) * n, 4, 1, 1, batch_norm_parameters=n == 3).state_dict()
    with pytest.raises(ImportRefused) as refused:
        import_original(state, Options())
    kinds = {
        1: "--set script=fourier_1d (no padding, coordinates at both ends) or --format pdebench (2 points of padding, "
        "coordinates at cell centres)",
        2: "or --format pdebench (2 points of padding, no norms, coordinates at cell centres)",
        3: "--set script=fourier_3d (coordinates at both ends) or --format pdebench (coordinates at cell centres)",
    }
    assert str(refused.value).endswith(kinds[n])
    assert import_original(state, Options(), script="pdebench").format == "PDEBench FNO"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_keys_that_pdebench_does_not_write_are_not_asked_about_as_its(n: int) -> None:
    """Its networks have batch norms in three dimensions, and only there."""
    state = Script("B", (3,) * n, 4, 1, 1, batch_norm_parameters=n < 3).state_dict()
    if n == 2:
        with pytest.raises(ImportRefused) as refused:
            import_original(state, Options())
        assert "pdebench" not in str(refused.value)
    else:
        found = import_original(state, Options())
        assert found.format == f"original script fourier_{n}d, generation B"


def test_the_training_dict_of_pdebench_is_asked_about(tmp_path: Path) -> None:
    """PyTorch's examples save a network of an original script like PDEBench's training saves its own."""
    state = Script("B", (3,), 4, 1, 1).state_dict()
    training = {"model_state_dict": state, "optimizer_state_dict": {}, "epoch": 3, "loss": 0.5}
    torch.save(training, tmp_path / "model.pt")
    with pytest.raises(ImportRefused, match="or --format pdebench"):
        convert(read_checkpoint(tmp_path / "model.pt"), Options())
    forced = read_checkpoint(tmp_path / "model.pt", "pdebench")
    assert convert(forced, Options()).format == "PDEBench FNO"


@pytest.mark.parametrize("n", [1, 3])
def test_a_network_that_is_said_to_be_original_is_not_asked_about(n: int, tmp_path: Path) -> None:
    torch.save(Script("B", (3,) * n, 4, 1, 1).state_dict(), tmp_path / "model.pt")
    imported = convert(read_checkpoint(tmp_path / "model.pt", "original"), Options())
    assert imported.format == f"original script fourier_{n}d, generation B"


def test_between_original_scripts_pdebench_is_no_answer(tmp_path: Path) -> None:
    torch.save(Script("B", (3, 3), 4, 1, 1).state_dict(), tmp_path / "model.pt")
    with pytest.raises(ImportRefused, match="script=fourier_2d_time") as refused:
        convert(read_checkpoint(tmp_path / "model.pt", "original"), Options())
    assert "pdebench" not in str(refused.value)


def test_another_script_with_the_same_keys_is_named() -> None:
    model, _ = drawn("B", 1, {})
    options = Options({**BURGERS})
    said = " ".join(import_original(model.state_dict(), options).assumptions)
    assert "(activation=relu, coordinates=0:6.28" in said


def test_ignored_batch_norms_are_said_to_have_run_or_not() -> None:
    for norm, ran in (("batch", "WARNING: training ran them"), ("none", "training never ran them")):
        state = drawn("B", 1, {"norm": norm, "batch_norm_parameters": True})[0].state_dict()
        said = import_original(state, Options({**BURGERS, "norm": "none"})).assumptions
        assert any(line.endswith(f"are ignored: {ran} (norm=batch uses them)") for line in said)
        said = import_original(state, Options({**BURGERS, "norm": "batch"})).assumptions
        assert not any("ignored" in line for line in said)
        more = {**state, "bn9.weight": torch.full((8,), 2.0)}
        said = import_original(more, Options({**BURGERS, "norm": "batch"})).assumptions
        assert (
            "bn9.weight and the other batch norms are ignored: WARNING: they are of no layer"
            in said
        )


def test_coordinates_in_other_ranges_are_folded_into_the_lifting() -> None:
    model, size = drawn("B", 2, {})
    imported = import_original(
        model.state_dict(),
        Options({**DARCY, "padding": "0", "coordinates": "-1:1,0:3"}),
    )
    scale, start = torch.tensor([2.0, 3.0]), torch.tensor([-1.0, 0.0])
    plain = model._with_grid

    def stretched(x: torch.Tensor) -> torch.Tensor:
        x = plain(x)
        return torch.cat([x[..., :-2], x[..., -2:] * scale.to(x) + start.to(x)], dim=-1)

    model._with_grid = stretched
    assert_parity(imported, model, size)


def test_the_coordinates_named_for_pdebench_are_those_of_its_thinned_out_data() -> None:
    model, _ = drawn("B", 1, {"padding": (2,)})
    told = " ".join(import_original(model.state_dict(), Options(), script="pdebench").assumptions)
    named = re.search(r"for r=4, n=256: coordinates=(\S+)\)", told)
    assert named is not None
    options = Options({"coordinates": named[1]})
    imported = import_original(model.state_dict(), options, script="pdebench")
    places = ((torch.arange(1024) + 0.5) / 1024)[::4, None]
    model._with_grid = lambda x: torch.cat([x, places.to(x).expand(len(x), -1, 1)], dim=-1)
    assert_parity(imported, model, (256,))


def test_without_grid_coordinates_are_input_channels() -> None:
    model, size = drawn("B", 1, {})
    imported = import_original(model.state_dict(), Options({**BURGERS, "grid": "none"}))
    assert imported.architecture.in_channels == model.fc0.in_features
    model._with_grid = lambda x: x
    assert_parity(imported, model, size)


def test_transposed_weights_are_read_with_the_setting() -> None:
    model, size = drawn("B", 1, {})
    state = {
        key: t.transpose(0, 1) if "weights" in key else t for key, t in model.state_dict().items()
    }
    said = Options({**BURGERS, "weight_layout": "out-in"})
    assert_parity(import_original(state, said), model, size)


@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_module_is_read_with_its_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legacy: bool
) -> None:
    model, size = drawn("B", 2, {"padding": (5, 5)})
    model.padding = 5
    (tmp_path / "fourier_2d.py").write_text(
        f"from {Script.__module__} import Script\n\nclass FNO2d(Script):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(model, "__class__", importlib.import_module("fourier_2d").FNO2d)
    torch.save(model, tmp_path / "model.pt", _use_new_zipfile_serialization=not legacy)
    del sys.modules["fourier_2d"]
    checkpoint = read_checkpoint(tmp_path / "model.pt")
    assert "fourier_2d" not in sys.modules
    assert "a pickled fourier_2d.FNO2d, read without running code" in checkpoint.read_from
    assert_parity(convert(checkpoint, Options({**DARCY})), model, size)


def test_activation_modules_in_a_pickled_module_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, size = drawn("B", 1, {"activation": torch.nn.LeakyReLU(0.2)})
    (tmp_path / "fourier_1d.py").write_text(
        f"from {Script.__module__} import Script\n\nclass FNO1d(Script):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(model, "__class__", importlib.import_module("fourier_1d").FNO1d)
    torch.save(model, tmp_path / "model.pt")
    imported = convert(read_checkpoint(tmp_path / "model.pt"), Options({**BURGERS}))
    assert (
        "its activation is leaky_relu(0.2), after every Fourier layer but the last (activation=.., last_activation=..)"
        in imported.assumptions
    )
    assert_parity(imported, model, size)
    model.last = torch.nn.Tanh()
    torch.save(model, tmp_path / "model.pt")
    checkpoint = read_checkpoint(tmp_path / "model.pt")
    with pytest.raises(ImportRefused, match=r"several activations, leaky_relu\(0.2\), tanh"):
        convert(checkpoint, Options({**BURGERS}))
    said = Options({**BURGERS, "activation": "relu"})
    assert convert(checkpoint, said).architecture.activation == "relu"


def saved_script(
    model: Script,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str = "FNO2d",
    inside: Any = lambda network: network,
) -> Path:
    """`model` pickled as a class of the user's script, perhaps inside a wrapper."""
    (folder / "my_script.py").write_text(
        f"from {Script.__module__} import Script\n\nclass {name}(Script):\n    pass\n"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(model, "__class__", getattr(importlib.import_module("my_script"), name))
    torch.save(inside(model), folder / "model.pt")
    del sys.modules["my_script"]
    return folder / "model.pt"


@pytest.mark.parametrize(
    ("activation", "ours"),
    [
        (torch.nn.Tanh(), "tanh"),
        (F.relu, "relu"),
        (torch.tanh, "tanh"),
        (partial(F.leaky_relu, negative_slope=0.2), "leaky_relu(0.2)"),
    ],
)
def test_mlps_of_2022_keep_gelu_with_another_activation_around_them(
    activation: Any, ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, size = drawn("C", 2, {"padding": (9, 9), "activation": activation})
    model.loss = F.mse_loss
    checkpoint = read_checkpoint(saved_script(model, tmp_path, monkeypatch))
    imported = convert(checkpoint, Options({**DARCY}))
    for line in (
        f"its activation is {ours}, after every Fourier layer but the last (activation=.., last_activation=..)",
        "the activation inside its channel MLPs and projection is gelu (mlp_activation=..)",
        f"the pickled network holds the activations activation={ours}; the file does not show where they are used",
    ):
        assert line in imported.assumptions
    assert_parity(imported, model, size)


def test_the_activation_of_mlps_is_a_setting() -> None:
    model, size = drawn("C", 1, {"activation": F.relu})
    for part in model.modules():
        if type(part) is MLP:
            part.forward = lambda x, part=part: part.mlp2(torch.tanh(part.mlp1(x)))
    state = model.state_dict()
    said = {"activation": "relu", "mlp_activation": "tanh"}
    assert_parity(import_original(state, Options(said)), model, size)
    assert import_original(state, Options()).architecture.projection_activation is None
    b = drawn("B", 1, {})[0].state_dict()
    arch = import_original(b, Options({**BURGERS, **said})).architecture
    assert (arch.activation, arch.projection_activation) == ("relu", "tanh")


def test_activations_inside_and_outside_of_mlps_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = drawn("C", 2, {"activation": torch.nn.SiLU()})
    for part in model.modules():
        if type(part) is MLP:
            part.act = torch.nn.Tanh()
    checkpoint = read_checkpoint(saved_script(model, tmp_path, monkeypatch))
    arch = convert(checkpoint, Options({**DARCY})).architecture
    assert (arch.activation, arch.projection_activation) == ("silu", "tanh")
    assert checkpoint.pickled is not None
    held = {**checkpoint.pickled.activations, "q.other": "relu"}
    pickled = replace(checkpoint.pickled, activations=held)
    with pytest.raises(ImportRefused, match=r"several.*tanh, relu.*--set mlp_activation="):
        convert(replace(checkpoint, pickled=pickled), Options({**DARCY}))


@pytest.mark.parametrize(
    ("activation", "says"),
    [
        (torch.sigmoid, "sigmoid"),
        (torch.nn.Softplus(beta=3), r"Softplus\(\.\.\)"),
        (partial(F.softplus, beta=3), r"softplus\(\.\.\)"),
    ],
)
def test_an_unsupported_activation_is_refused_unless_a_setting_replaces_it(
    activation: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = drawn("B", 2, {"activation": activation})
    checkpoint = read_checkpoint(saved_script(model, tmp_path, monkeypatch))
    with pytest.raises(ImportRefused, match=f"activation={says} is not supported"):
        convert(checkpoint, Options({**DARCY}))
    replaced = convert(checkpoint, Options({**DARCY, "activation": "relu"}))
    assert replaced.architecture.activation == "relu"


def test_prefixes_of_wrappers_are_removed(tmp_path: Path) -> None:
    model, size = drawn("C", 2, {"padding": (9, 9)})
    state = model.state_dict()
    lightning = {
        "state_dict": {f"model.{key}": t for key, t in state.items()},
        "epoch": 3, "hyper_parameters": {"lr": 1e-3}, "optimizer_states": [{"state": {}}],
    }  # fmt: skip
    parallel = {"model": {f"module._orig_mod.{key}": t for key, t in state.items()}, "optim": None}
    for content in (lightning, parallel):
        torch.save(content, tmp_path / "training.ckpt")
        checkpoint = read_checkpoint(tmp_path / "training.ckpt")
        assert_parity(convert(checkpoint, Options({**DARCY})), model, size)


@pytest.mark.parametrize("does", [{"padding": (9, 9)}, {"norm": "batch", "activation": F.relu}])
def test_layers_in_lists_are_those_of_the_scripts(does: dict[str, Any], tmp_path: Path) -> None:
    model, size = drawn("B", 2, does)
    state = model.state_dict()
    listed = {re.sub(r"^(conv|w|bn)(\d)", r"conv.\1s.\2", key): t for key, t in state.items()}
    listed = {f"conv.{key.removeprefix('conv.')}": t for key, t in listed.items()}
    assert {"conv.fc0.weight", "conv.convs.0.weights1", "conv.ws.0.bias"} <= listed.keys()
    torch.save({"state_dict": listed}, tmp_path / "model.ckpt")
    checkpoint = read_checkpoint(tmp_path / "model.ckpt")
    assert_parity(convert(checkpoint, Options({**DARCY})), model, size)
    del listed["conv.ws.0.bias"]
    says = r"^the file has no ws\.0\.bias, which .* have beside convs\.0\.weights1: .*; w\{i\}"
    with pytest.raises(ImportRefused, match=says):
        import_original(listed, Options({**DARCY}))
    twice = {**state, "convs.0.weights1": torch.ones(1)}
    with pytest.raises(ImportRefused, match=r"unsupported tensors, convs\.0\.weights1"):
        import_original(twice, Options({**DARCY}))


def test_names_of_layers_in_lists_are_told_as_the_file_has_them() -> None:
    def listed(generation: str, prefix: str = "") -> dict[str, torch.Tensor]:
        state = Script(generation, (3, 3), 4, 1, 1, batch_norm_parameters=True).state_dict()
        pattern = r"^(conv|w|bn)(\d)"
        return {prefix + re.sub(pattern, r"\1s.\2", key): t for key, t in state.items()}

    told = import_original(listed("B"), Options({**DARCY})).assumptions[-1]
    assert told.startswith("bns.0.weight and the other batch norms are ignored")
    lacking = listed("A", "conv1.")
    del lacking["conv1.fc0.weight"]
    unknown = {**listed("B"), "ws.1.gain": torch.ones(1), "w2.gain": torch.ones(1)}
    for state, activation, says in (
        (lacking, "relu", r"^not .*: conv1\.convs\.0\.weights1 or conv1\.fc0\.weight is missing"),
        (unknown, "relu", r"unsupported tensors, ws\.1\.gain, w2\.gain\."),
        (listed("B"), "w0.5", r"^activation=w0\.5 is not"),
    ):
        with pytest.raises(ImportRefused, match=says):
            import_original(state, Options({**DARCY, "activation": activation}))


def test_the_arguments_of_the_script_in_a_training_state_are_not_read(tmp_path: Path) -> None:
    model, size = drawn("C", 1, {})
    arguments = argparse.Namespace(lr=1e-3, folder=tmp_path)
    torch.save({"args": arguments, "model": model.state_dict()}, tmp_path / "training.pt")
    checkpoint = read_checkpoint(tmp_path / "training.pt")
    assert checkpoint.read_from == ("training.pt", "entry model (not read: args)")
    assert_parity(convert(checkpoint, Options()), model, size)
    torch.save(arguments, tmp_path / "arguments.pt")
    with pytest.raises(ImportRefused, match=r"holds an argparse\.Namespace, expected"):
        read_checkpoint(tmp_path / "arguments.pt")


@pytest.mark.parametrize(
    ("module", "content", "kind"),
    [
        ("Adaptive", FNO2d(), "an Adaptive.FNO2d"),
        ("unet", FNO2d(), "a unet.FNO2d"),
        ("Adaptive", FNO2d, "the name Adaptive.FNO2d"),
        ("", [torch.ones(1)], "a list"),
    ],
)
def test_what_is_in_a_file_instead_of_a_network_is_named(
    module: str, content: object, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FNO2d, "__module__", module)
    monkeypatch.setitem(sys.modules, module, sys.modules[__name__])
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ImportRefused, match=f"holds {kind}, expected a state dict or a module$"):
        read_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
def test_paths_in_the_arguments_of_the_script(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [Path("/data"), PureWindowsPath("C:/data")]
    monkeypatch.setitem(sys.modules, module, pathlib)
    for kind in map(type, paths):
        monkeypatch.setattr(kind, "__module__", module)
    model, _ = drawn("C", 1, {})
    torch.save({"paths": paths, "model": model.state_dict()}, tmp_path / "training.pt")
    monkeypatch.undo()
    with zipfile.ZipFile(tmp_path / "training.pt") as file:
        assert f"{module} PosixPath".encode() in file.read("training/data.pkl").replace(b"\n", b" ")
    assert read_checkpoint(tmp_path / "training.pt").tensors.keys() == model.state_dict().keys()


def test_other_keys_and_networks_beside_it_are_told() -> None:
    model, size = drawn("B", 1, {})
    averaged = torch.optim.swa_utils.AveragedModel(model).state_dict()
    imported = import_original(averaged, Options({**BURGERS}))
    assert "the prefix 'module.' of all keys was removed" in imported.assumptions
    assert_parity(imported, model, size)
    inside = {f"surrogate.{key}": tensor for key, tensor in model.state_dict().items()}
    imported = import_original(inside, Options({**BURGERS}))
    told = "the prefix 'surrogate.' of all keys was removed: what its module computes around the network"
    assert any(line.startswith(told) for line in imported.assumptions)
    assert_parity(imported, model, size)
    for other in ("loss.weight", "ema.conv0.weights1"):
        says = f"begin with 'surrogate.', and the file also has {other}"
        with pytest.raises(ImportRefused, match=says):
            import_original({**inside, other: torch.ones(1)}, Options())


@pytest.mark.parametrize(
    ("renamed", "says"),
    [
        ({"fc0": "fc0", "": "blocks.0."}, "belong to no known network"),
        ({"fc2": "fc3"}, "no fc2.bias, fc2.weight, which networks of the original scripts have"),
        (
            {"w": "mlp"},
            r"no w0.bias, w0.weight, w1.bias and 1 more, which .* it is another network",
        ),
        ({"w0": "b0"}, "b0.weight belongs to a Geo-FNO"),
    ],
)
def test_networks_that_share_some_keys_are_not_asked_for_a_script(
    renamed: dict[str, str], says: str, tmp_path: Path
) -> None:
    def name(key: str) -> str:
        for old, new in renamed.items():
            if key.startswith(old):
                return new + key.removeprefix(old)
        return key

    state = Script("B", (3, 3), 4, 1, 1, n_layers=2).state_dict()
    torch.save({name(key): tensor for key, tensor in state.items()}, tmp_path / "model.pt")
    with pytest.raises(ImportRefused, match=says) as refused:
        convert(read_checkpoint(tmp_path / "model.pt"), Options())
    assert "script=" not in str(refused.value)


def test_a_pickled_module_shows_its_instance_norms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, size = drawn("B", 2, {"norm": "instance"})
    model.layer_norm = torch.nn.InstanceNorm2d(model.fc0.out_features)
    model.padding = 8  # which the script of time steps does not use
    checkpoint = read_checkpoint(saved_script(model, tmp_path, monkeypatch))
    assert_parity(convert(checkpoint, Options({"script": "fourier_2d_time"})), model, size)
    for script in ("fourier_2d", "fourier_2d_time"):
        said = Options({"script": script, "padding": "0"})
        assert_parity(convert(checkpoint, said), model, size)
    del model.layer_norm
    model.norm = "none"
    checkpoint = read_checkpoint(saved_script(model, tmp_path, monkeypatch))
    for script in ("fourier_2d", "fourier_2d_time"):
        said = Options({"script": script, "padding": "0"})
        assert_parity(convert(checkpoint, said), model, size)


@pytest.mark.parametrize(
    ("norm", "held"), [("instance", torch.nn.InstanceNorm2d), ("batch", torch.nn.BatchNorm2d)]
)
def test_a_norm_with_another_eps_is_refused(
    norm: str, held: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = drawn("B", 2, {})
    for i in range(model.n_layers):
        setattr(model, f"bn{i}", held(model.fc0.out_features, eps=1e-3))
    checkpoint = read_checkpoint(saved_script(model, tmp_path, monkeypatch))
    with pytest.raises(ImportRefused, match=rf"{norm} norms .* eps=0\.001; only 1e-05"):
        convert(checkpoint, Options({**DARCY, "norm": norm}))
    said = Options({**DARCY, "norm": "none"})
    assert convert(checkpoint, said).architecture.norm == "none"


def test_the_padding_of_a_network_inside_a_wrapper_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, size = drawn("B", 2, {"padding": (4, 4)})
    model.padding = 4
    path = saved_script(model, tmp_path, monkeypatch, inside=torch.nn.DataParallel)
    model.cpu()  # the wrapper moves it to a GPU if there is one
    assert_parity(convert(read_checkpoint(path), Options({**DARCY})), model, size)
    # a fork that pads and has the norms of the other script
    model.layer_norm = torch.nn.InstanceNorm2d(model.fc0.out_features)
    model.norm = "instance"
    checkpoint = read_checkpoint(saved_script(model, tmp_path, monkeypatch))
    assert_parity(convert(checkpoint, Options({**DARCY})), model, size)
    del model.layer_norm
    model.norm = "none"
    model.padding = [4, 4]
    checkpoint = read_checkpoint(saved_script(model, tmp_path, monkeypatch))
    with pytest.raises(ImportRefused, match=r"padding \[4, 4\], expected one number"):
        convert(checkpoint, Options({**DARCY}))
    assert_parity(convert(checkpoint, Options({**DARCY, "padding": "4,4"})), model, size)


@pytest.mark.parametrize(("script", "n"), [("fourier_2d_time", 2), ("fourier_3d", 3)])
def test_padding_that_a_pickled_network_holds_and_its_script_uses_on_no_or_one_axis_is_told(
    script: str, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, size = drawn("B", n, {"padding": (5,) * n})
    model.padding = 5
    checkpoint = read_checkpoint(saved_script(model, tmp_path, monkeypatch))
    said = convert(checkpoint, Options({"script": script})).assumptions
    told = "the pickled network holds padding=5; the file does not show which axes it pads (padding=..)"
    assert told in said
    imported = convert(checkpoint, Options({"script": script, "padding": "5"}))
    assert told not in imported.assumptions
    assert_parity(imported, model, size)


@pytest.mark.parametrize(
    ("change", "said", "says"),
    [
        ({"unet3.weight": torch.zeros(1)}, {}, "unsupported tensors, unet3.weight"),
        ({"conv1.weights2": None}, {}, "no conv1.weights2"),
        ({"fc2.bias": None}, {}, "no fc2.bias"),
        ({"w0.weight": torch.zeros(4, 4, 3, 3)}, {}, "expected a linear map or a 1x1 convolution"),
        ({"conv1.weights1": torch.zeros(4, 4, 9, 9) + 0j}, {}, "differ in shape"),
        ({}, {"colour": "blue"}, "no setting colour; its settings are: activation"),
        ({}, {"activation": "wavelet"}, "activation=wavelet is not supported; supported are none"),
        (
            {},
            {"grid": "none", "coordinates": "0:2"},
            "coordinates is about .* with grid=none it adds none",
        ),
        (
            {"fc0.weight": torch.zeros(4, 2)},
            {},
            "takes 2 channels, expected a field and 2 .*--set grid=none",
        ),
        ({}, {"padding": "1,2,3"}, "padding has 3 entries, expected 2"),
        ({}, {"padding": "-3"}, "padding must be whole numbers from 0, like 9,9, not '-3'"),
        ({}, {"script": "fourier_1d"}, "script must be one of fourier_2d, fourier_2d_time, not"),
    ],
)
def test_unsupported_tensors_are_named(change, said, says) -> None:
    state = Script("B", (3, 3), 4, 1, 1, n_layers=2).state_dict()
    state = {k: t for k, t in {**state, **change}.items() if t is not None}
    with pytest.raises(ImportRefused, match=says):
        import_original(state, Options({**DARCY, **said}))
