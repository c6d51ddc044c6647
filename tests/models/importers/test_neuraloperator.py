"""Networks saved by neuraloperator 2.0.0 give the same results after the import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import neuralop
import numpy as np
import pytest
import torch
from neuralop.layers.embeddings import GridEmbeddingND
from neuralop.models import FNO as TheirFNO

from tests.models.importers.drawn import draw_built
from tests.models.importers.neuraloperator_runs import (
    assert_parity,
    imported_exactly,
    outputs,
    random_source,
    read_saved,
    spread,
)
from tests.thorough import tried
from turbofno.models.importers.detect import read_checkpoint
from turbofno.models.importers.neuraloperator import import_neuraloperator
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Options
from turbofno.models.importers.torch_file import read_torch_file

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PLAIN: dict[str, Any] = {
    "n_modes": (6, 5),
    "in_channels": 2,
    "out_channels": 1,
    "hidden_channels": 4,
}
GRIDS = ((9, 11), (12, 10))


def fields(arguments: dict[str, Any], grids: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
    return [torch.randn(2, arguments["in_channels"], *grid) for grid in grids]


@pytest.mark.parametrize("number", range(tried(50, thoroughly=150)))
def test_a_random_network_gives_the_librarys_result(number: int, tmp_path: Path) -> None:
    drawn, network = draw_built(random_source(), "2.0.0", neuralop.models)
    theirs = spread(network)
    theirs.save_checkpoint(tmp_path, "model")
    torch.save(theirs, tmp_path / "whole.pt")
    xs = fields(drawn.arguments, drawn.grids)
    expected = outputs(theirs, xs)
    if number % 2:
        whole = read_checkpoint(tmp_path / "whole.pt")
        imported = imported_exactly(whole.tensors, whole.settings)
        assert imported.release_is_known
    else:
        tensors, metadata = read_saved(tmp_path, "model")
        # a TFNO stores no defaults, so its release is unknown
        imported = imported_exactly(tensors, metadata, version="2.0.0")
    assert_parity(imported, xs, expected)


def test_assumptions_of_a_bare_state_dict_are_reported(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**PLAIN))
    state = theirs.state_dict()
    state.pop("_metadata")
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, tmp_path / "bare.pt")
    xs = fields(PLAIN, GRIDS)
    expected = outputs(theirs, xs)
    imported = imported_exactly(read_torch_file(tmp_path / "bare.pt"), None)
    assert_parity(imported, xs, expected)
    text = " ".join(imported.assumptions)
    for assumed in (
        "the release is 2.0.0",
        "non_linearity=gelu",
        "domain_padding=None",
        "'module.'",
    ):
        assert assumed in text


def test_options_replace_the_assumptions_of_a_bare_state_dict() -> None:
    arguments = {**PLAIN, "domain_padding": 0.25, "non_linearity": torch.nn.functional.silu}
    arguments |= {"positional_embedding": None, "norm": "instance_norm", "stabilizer": "tanh"}
    arguments |= {"preactivation": True, "fno_skip": "identity"}
    theirs = spread(TheirFNO(**arguments))
    tensors = {k: v.clone() for k, v in theirs.state_dict().items() if k != "_metadata"}
    xs = fields(PLAIN, GRIDS)
    expected = outputs(theirs, xs)
    imported = imported_exactly(
        tensors,
        None,
        version="2.0.0",
        domain_padding="0.25",
        non_linearity="silu",
        positional_embedding="none",
        norm="instance_norm",
        stabilizer="tanh",
        preactivation="true",
        fno_skip="identity",
    )
    assert_parity(imported, xs, expected)


@pytest.mark.parametrize(
    ("written", "theirs"),
    [
        ("gelu_tanh", torch.nn.GELU(approximate="tanh")),
        ("leaky_relu(0.2)", torch.nn.LeakyReLU(0.2)),
        ("elu(0.5)", torch.nn.ELU(0.5)),
        ("sin", torch.sin),
    ],
)
def test_any_activation_can_be_set(written: str, theirs: Any) -> None:
    network = spread(TheirFNO(**PLAIN, non_linearity=theirs))
    tensors = {k: v.clone() for k, v in network.state_dict().items() if k != "_metadata"}
    xs = fields(PLAIN, GRIDS)
    imported = imported_exactly(tensors, None, version="2.0.0", non_linearity=written)
    assert_parity(imported, xs, outputs(network, xs))


def test_the_metadata_inside_the_state_dict_is_enough(tmp_path: Path) -> None:
    arguments = {**PLAIN, "norm": "instance_norm", "domain_padding": [0.1, 0.2]}
    theirs = spread(TheirFNO(**arguments))
    theirs.save_checkpoint(tmp_path, "model")
    tensors, metadata = read_saved(tmp_path, "model", pair=False)
    xs = fields(PLAIN, GRIDS)
    assert_parity(imported_exactly(tensors, metadata), xs, outputs(theirs, xs))


def test_positional_arguments_and_other_grid_ranges(tmp_path: Path) -> None:
    grid = GridEmbeddingND(in_channels=2, dim=2, grid_boundaries=[[-1, 1], [0.5, 3]])
    theirs = spread(TheirFNO((6, 5), 2, 1, 4, positional_embedding=grid))
    theirs.save_checkpoint(tmp_path, "model")
    xs = fields(PLAIN, GRIDS)
    expected = outputs(theirs, xs)
    assert_parity(imported_exactly(*read_saved(tmp_path, "model")), xs, expected)


def test_sizes_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    sizes = {name: np.int64(PLAIN[name]) for name in ("in_channels", "hidden_channels")}
    theirs = spread(TheirFNO(**{**PLAIN, **sizes}))
    theirs.save_checkpoint(tmp_path, "model")
    xs = fields(PLAIN, GRIDS)
    assert_parity(imported_exactly(*read_saved(tmp_path, "model")), xs, outputs(theirs, xs))


@pytest.mark.parametrize("name", ["FNO2d", "TFNO2d"])
def test_positional_arguments_of_the_classes_by_dimension(name: str) -> None:
    """Up to 1.0 they begin with the modes of each axis, then the hidden channels."""
    network = spread(TheirFNO(**PLAIN))
    tensors = {k: v.clone() for k, v in network.state_dict().items() if k != "_metadata"}
    metadata = {"_name": name, "args": (6, 5, 4, 2, 1), "domain_padding_mode": "one-sided"}
    xs = fields(PLAIN, GRIDS)
    assert_parity(imported_exactly(tensors, metadata), xs, outputs(network, xs))


def test_a_tuple_of_paddings_is_ignored_as_by_the_library(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**PLAIN, domain_padding=(0.2, 0.3)))
    assert theirs.domain_padding is None
    theirs.save_checkpoint(tmp_path, "model")
    xs = fields(PLAIN, GRIDS)
    expected = outputs(theirs, xs)
    imported = imported_exactly(*read_saved(tmp_path, "model"))
    assert_parity(imported, xs, expected)
    assert any("ignores a tuple" in assumed for assumed in imported.assumptions)


def test_batch_norm_keeps_its_statistics(tmp_path: Path) -> None:
    theirs = TheirFNO(**PLAIN, norm="batch_norm").train()
    for _ in range(3):
        theirs(torch.randn(4, 2, 12, 12))
    theirs = spread(theirs)
    theirs.save_checkpoint(tmp_path, "model")
    xs = fields(PLAIN, GRIDS)
    expected = outputs(theirs, xs)
    assert_parity(imported_exactly(*read_saved(tmp_path, "model")), xs, expected)


def test_n_modes_can_be_set_above_those_at_construction(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**{**PLAIN, "n_modes": (4, 4), "max_n_modes": (8, 5)}))
    theirs.save_checkpoint(tmp_path, "model")
    theirs.n_modes = (6, 6)  # IncrementalFNOTrainer does this, and the file does not show it
    xs = fields(PLAIN, GRIDS)
    expected = outputs(theirs, xs)
    imported = imported_exactly(*read_saved(tmp_path, "model"), n_modes="[6, 6]")
    assert_parity(imported, xs, expected)


def test_n_modes_changed_after_construction_can_be_set(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**{**PLAIN, "n_modes": (8, 8)}))
    theirs.n_modes = (4, 4)
    theirs.save_checkpoint(tmp_path, "model")
    xs = fields(PLAIN, GRIDS)
    expected = outputs(theirs, xs)
    imported = imported_exactly(*read_saved(tmp_path, "model"))
    assert any("(n_modes=..,..)" in assumed for assumed in imported.assumptions)
    imported = imported_exactly(*read_saved(tmp_path, "model"), n_modes="[4, 4]")
    assert_parity(imported, xs, expected)
    assert not any("(n_modes=..,..)" in assumed for assumed in imported.assumptions)


def test_an_averaged_network_and_extra_tensors() -> None:
    theirs = spread(TheirFNO(**PLAIN))
    averaged = dict(torch.optim.swa_utils.AveragedModel(theirs).state_dict())
    averaged.pop("_metadata")
    assert "n_averaged" in averaged
    xs = fields(PLAIN, GRIDS)
    assert_parity(imported_exactly(averaged, None, version="2.0.0"), xs, outputs(theirs, xs))
    with pytest.raises(ImportRefused, match=r"the file also has loss\.weight"):
        imported_exactly({**averaged, "loss.weight": torch.zeros(1)}, None)


def test_public_import_gives_the_dtypes_of_a_checkpoint() -> None:
    theirs = TheirFNO(**PLAIN, factorization="tucker", rank=0.5)
    tensors = dict(theirs.state_dict())
    tensors.pop("_metadata")
    imported = import_neuraloperator(tensors, None, Options())
    assert {t.dtype for t in imported.state.values()} == {torch.float32, torch.complex64}
