"""Pickled neuraloperator networks are imported in their present state, not as constructed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from neuralop.layers.channel_mlp import ChannelMLP
from neuralop.layers.embeddings import GridEmbeddingND
from neuralop.layers.legacy_spectral_convolution import SpectralConv as LegacyConv
from neuralop.layers.padding import DomainPadding
from neuralop.models import CODANO, UQNO
from neuralop.models import FNO as TheirFNO
from neuralop.models import TFNO as TheirTFNO
from neuralop.models.base_model import BaseModel

from tests.models.importers.neuraloperator_runs import (
    assert_parity,
    imported_exactly,
    outputs,
    spread,
)
from turbofno.models.importers.detect import convert, read_checkpoint
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported, Options

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PLAIN: dict[str, Any] = {
    "n_modes": (8, 8),
    "in_channels": 2,
    "out_channels": 1,
    "hidden_channels": 4,
    "n_layers": 2,
}
FIELDS = [torch.randn(2, 2, 9, 11), torch.randn(2, 2, 12, 10), torch.randn(2, 2, 5, 6)]


def pickled(saved: Any, folder: Path) -> Imported:
    torch.save(saved, folder / "model.pt")
    checkpoint = read_checkpoint(folder / "model.pt")
    return imported_exactly(checkpoint.tensors, checkpoint.settings)


def same_answers(
    theirs: torch.nn.Module, folder: Path, fields: list[torch.Tensor] = FIELDS
) -> None:
    imported = pickled(theirs, folder)
    assert_parity(imported, fields, outputs(theirs, fields))


@pytest.mark.parametrize("kind", [TheirFNO, TheirTFNO])
@pytest.mark.parametrize("modes", [(4, 4), (6, 2), (8, 4)])
def test_modes_that_were_reduced_after_construction(
    kind: type[torch.nn.Module], modes: tuple[int, int], tmp_path: Path
) -> None:
    theirs = spread(kind(**PLAIN))
    theirs.n_modes = modes
    same_answers(theirs, tmp_path)


def test_a_projection_that_was_replaced_after_construction(tmp_path: Path) -> None:
    theirs = TheirFNO(**PLAIN)
    theirs.projection = ChannelMLP(4, out_channels=3, hidden_channels=8)
    same_answers(spread(theirs), tmp_path)


def test_layers_with_different_modes_are_refused(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**PLAIN))
    theirs.fno_blocks.convs[0].n_modes = (4, 4)
    with pytest.raises(ImportRefused, match="different spectral convolutions"):
        pickled(theirs, tmp_path)


def test_the_arguments_of_a_tfno_are_read_from_its_attributes(tmp_path: Path) -> None:
    """A TFNO stores only the given arguments; here they are removed."""
    theirs = TheirTFNO(
        **PLAIN,
        preactivation=True,
        stabilizer="tanh",
        norm="instance_norm",
        domain_padding=0.2,
        non_linearity=torch.nn.functional.silu,
        fno_skip="identity",
    )
    theirs._init_kwargs = {"_name": "TFNO"}
    same_answers(spread(theirs), tmp_path)


@pytest.mark.parametrize("wrap", [torch.nn.DataParallel, lambda network: {"model": network}])
def test_a_network_inside_a_wrapper(wrap: Any, tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**PLAIN, norm="instance_norm", domain_padding=0.25))
    imported = pickled(wrap(theirs), tmp_path)
    theirs.cpu()  # the wrapper moves it to a GPU if there is one
    assert_parity(imported, FIELDS, outputs(theirs, FIELDS))


def test_a_network_inside_a_process_groups_wrapper(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**PLAIN))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        imported = pickled(torch.nn.parallel.DistributedDataParallel(theirs), tmp_path)
    finally:
        dist.destroy_process_group()
    assert_parity(imported, FIELDS, outputs(theirs, FIELDS))


def test_a_network_inside_an_unknown_module_is_refused(tmp_path: Path) -> None:
    around = torch.nn.Sequential(TheirFNO(**PLAIN), torch.nn.Tanh())
    with pytest.raises(ImportRefused, match=r"inside a torch\.nn\..*Sequential") as refusal:
        pickled(around, tmp_path)
    pickled(advised(refusal.value, around), tmp_path)


def test_a_class_of_the_same_name_in_another_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mynetworks.py").write_text(
        "from neuralop.models import FNO as Theirs\n\nclass FNO(Theirs):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    theirs = TheirFNO(**PLAIN)
    with mock.patch.dict(BaseModel._models):  # the class registers itself there
        theirs.__class__ = importlib.import_module("mynetworks").FNO
    with pytest.raises(
        ImportRefused, match=r"a mynetworks\.FNO, not neuraloperator's FNO"
    ) as refusal:
        pickled(theirs, tmp_path)
    pickled(advised(refusal.value, theirs), tmp_path)
    del sys.modules["mynetworks"]


def test_the_librarys_legacy_convolution_is_refused(tmp_path: Path) -> None:
    theirs = TheirFNO(**PLAIN)
    for conv in theirs.fno_blocks.convs:
        conv.__class__ = LegacyConv
    with pytest.raises(ImportRefused, match=r"conv_module=.*legacy_spectral_convolution"):
        pickled(theirs, tmp_path)


def test_padding_that_has_run_once(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**PLAIN, domain_padding=[0.1, 0.3]))
    with torch.no_grad():
        theirs(FIELDS[0])
    same_answers(theirs, tmp_path)


def test_padding_by_a_tuple_that_was_put_in_later(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**PLAIN))
    theirs.domain_padding = DomainPadding((0.1, 0.3))
    same_answers(theirs, tmp_path)


@pytest.mark.parametrize(
    "module",
    [torch.nn.GELU(), torch.nn.GELU(approximate="tanh"), torch.nn.LeakyReLU(0.2)],
)
def test_an_activation_module_that_all_parts_share(module: torch.nn.Module, tmp_path: Path) -> None:
    same_answers(spread(TheirFNO(**PLAIN, non_linearity=module)), tmp_path)


def my_silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class MySiLU(torch.nn.Module):
    """An activation module of the user's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return my_silu(x)


@pytest.mark.parametrize("own", [my_silu, MySiLU()], ids=["function", "module"])
@pytest.mark.parametrize("what", ["state dict", "whole", "pair"])
def test_an_activation_of_the_users_own_is_replaced_by_a_setting(
    own: Any, what: str, tmp_path: Path
) -> None:
    theirs = spread(TheirFNO(**PLAIN, non_linearity=own))
    path = tmp_path / "model_state_dict.pt"
    torch.save(theirs if what == "whole" else theirs.state_dict(), path)
    if what == "pair":
        theirs.save_checkpoint(tmp_path, "model")
    checkpoint = read_checkpoint(path)
    name = r"non_linearity=tests\.\S*\.(my_silu|MySiLU) is not supported"
    with pytest.raises(ImportRefused, match=rf"{name}.*--set non_linearity=silu; supported are"):
        imported_exactly(checkpoint.tensors, checkpoint.settings)
    imported = imported_exactly(checkpoint.tensors, checkpoint.settings, non_linearity="silu")
    assert_parity(imported, FIELDS, outputs(theirs, FIELDS))


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Has the name of another function."""
    return torch.sin(x)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (torch.nn.functional.logsigmoid, r"non_linearity=torch\._C\._nn\.log_sigmoid is not"),
        (torch.erf, "non_linearity=erf is not"),
        (gelu, r"non_linearity=tests\.\S*\.gelu is not"),
    ],
)
def test_other_activations_are_named(other: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match=rf"{says} supported.*supported are none, relu"):
        pickled(TheirFNO(**PLAIN, non_linearity=other).state_dict(), tmp_path)


def advised(refusal: ImportRefused, model: torch.nn.Module) -> Any:
    """The state that the refusal says to save."""
    advice = str(refusal).partition("torch.save(")[2].partition(", path)")[0]
    return eval(advice, {"torch": torch, "model": model})


def test_the_advice_about_other_names_holds(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**PLAIN))
    theirs.remark = gelu
    with pytest.raises(ImportRefused, match="save the tensors only") as refusal:
        pickled(theirs, tmp_path)
    imported = pickled(advised(refusal.value, theirs), tmp_path)
    assert_parity(imported, FIELDS, outputs(theirs, FIELDS))


class Around(torch.nn.Module):
    """A module of the user's own."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network


def test_the_advice_about_a_module_of_the_users_own_keeps_the_arguments(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**PLAIN, norm="instance_norm", domain_padding=0.25))
    with pytest.raises(ImportRefused, match=r"Around, which is not on the list") as refusal:
        pickled(Around(theirs), tmp_path)
    imported = pickled(advised(refusal.value, Around(theirs)), tmp_path)
    assert_parity(imported, FIELDS, outputs(theirs, FIELDS))


def test_the_advice_about_classes_of_the_users_own_holds(tmp_path: Path) -> None:
    with mock.patch.dict(BaseModel._models):  # the class registers itself there

        class Mine(TheirFNO):
            def __init__(self) -> None:
                super().__init__(**PLAIN, preactivation=True)

    theirs = spread(Mine())
    with pytest.raises(ImportRefused, match="the model is a Mine") as refusal:
        pickled(theirs.state_dict(), tmp_path)
    torch.save(advised(refusal.value, theirs), tmp_path / "model.pt")
    options = Options({"preactivation": "true"})
    imported = convert(read_checkpoint(tmp_path / "model.pt"), options)
    assert_parity(imported, FIELDS, outputs(theirs, FIELDS))


def test_positional_arguments_and_another_grid(tmp_path: Path) -> None:
    grid = GridEmbeddingND(in_channels=2, dim=2, grid_boundaries=[[-1, 1], [0.5, 3]])
    theirs = spread(TheirFNO((8, 8), 2, 1, 4, positional_embedding=grid))
    theirs.n_modes = (4, 6)
    same_answers(theirs, tmp_path)


def test_changes_that_no_argument_expresses_are_refused(tmp_path: Path) -> None:
    theirs = TheirFNO(**PLAIN)
    theirs.projection.non_linearity = torch.tanh
    with pytest.raises(ImportRefused, match="projection has the activation tanh"):
        pickled(theirs, tmp_path)
    theirs = TheirFNO(**PLAIN, norm="group_norm")
    theirs.fno_blocks.norm[1].eps = 1e-3
    with pytest.raises(ImportRefused, match=r"eps=0\.001"):
        pickled(theirs, tmp_path)


def _fewer_layers(theirs: Any) -> None:
    theirs.n_layers = 1


def _fewer_layers_everywhere(theirs: Any) -> None:
    theirs.n_layers = theirs.fno_blocks.n_layers = 1


def _no_channel_mlp(theirs: Any) -> None:
    theirs.fno_blocks.use_channel_mlp = False


def _another_norm_of_transforms(theirs: Any) -> None:
    for conv in theirs.fno_blocks.convs:
        conv.fft_norm = "backward"


def _another_factor(theirs: Any) -> None:
    theirs.fno_blocks.convs[1].resolution_scaling_factor = [1.0, 2.0]


def _no_statistics(theirs: Any) -> None:
    for norm in theirs.fno_blocks.norm:
        norm.norm.running_mean = norm.norm.running_var = None


@pytest.mark.parametrize(
    ("change", "arguments", "says"),
    [
        (_fewer_layers, {}, "2 Fourier layers, but n_layers=1"),
        (_fewer_layers_everywhere, {}, "2 Fourier layers, but n_layers=1"),
        (_no_channel_mlp, {}, "use_channel_mlp=False"),
        (_another_norm_of_transforms, {"resolution_scaling_factor": 2}, "fft_norm=backward"),
        (_another_factor, {}, r"convs\.1 has resolution_scaling_factor"),
        (
            _another_factor,
            {"resolution_scaling_factor": 2},
            r"convs\.1 has resolution_scaling_factor",
        ),
        (_no_statistics, {"norm": "batch_norm"}, "no running statistics"),
    ],
)
def test_layers_that_were_changed_after_construction_are_refused(
    change: Any, arguments: dict[str, Any], says: str, tmp_path: Path
) -> None:
    theirs = TheirFNO(**PLAIN, **arguments)
    change(theirs)
    with pytest.raises(ImportRefused, match=says):
        pickled(theirs, tmp_path)


def test_the_norm_of_transforms_does_not_matter_on_one_grid(tmp_path: Path) -> None:
    theirs = spread(TheirFNO(**PLAIN))
    _another_norm_of_transforms(theirs)
    same_answers(theirs, tmp_path)


def test_shared_layers_with_modules_inside_are_refused(tmp_path: Path) -> None:
    theirs = TheirFNO(**PLAIN)
    theirs.fno_blocks.channel_mlp[1] = theirs.fno_blocks.channel_mlp[0]
    with pytest.raises(ImportRefused, match="occurs twice"):
        pickled(theirs, tmp_path)


def test_unsupported_relatives_are_named(tmp_path: Path) -> None:
    codano = CODANO(
        hidden_variable_codimension=2,
        lifting_channels=4,
        n_layers=1,
        n_heads=[2],
        n_modes=[[4, 4]],
        attention_scaling_factors=[1],
        per_layer_scaling_factors=[[1, 1]],
    )
    for network, name in ((codano, "a CODANO"), (UQNO(TheirFNO(**PLAIN)), "a UQNO")):
        for saved in (network, network.state_dict()):
            torch.save(saved, tmp_path / "model.pt")
            with pytest.raises(ImportRefused, match=f"belongs to {name}"):
                read_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize("damage", [{"_n_modes": 3}, {"_n_modes": [{}]}, {"_n_modes": None}])
def test_attributes_of_an_unexpected_type_are_refused(
    damage: dict[str, Any], tmp_path: Path
) -> None:
    theirs = TheirFNO(**PLAIN)
    vars(theirs.fno_blocks.convs[0]).update(damage)
    with pytest.raises(ImportRefused):
        pickled(theirs, tmp_path)
