"""The comparison at the end of an import: its reference, and the limits that it states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import neuralop.models
import pytest
import torch
from neuralop.layers.embeddings import GridEmbeddingND
from neuralop.models import FNO as TheirFNO
from neuralop.models import TFNO as TheirTFNO

from tests.models.importers.development_version import with_its_attributes
from turbofno.models.core.architecture import DomainPadding, FNOArchitecture
from turbofno.models.core.fno import FNO
from turbofno.models.importers.detect import Checkpoint, convert, read_checkpoint
from turbofno.models.importers.parity import check_parity
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported, Options

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PLAIN: dict[str, Any] = {
    "n_modes": (6, 5),
    "in_channels": 2,
    "out_channels": 1,
    "hidden_channels": 4,
    "n_layers": 2,
}
COMPARED = "compared with neuraloperator 2.0.0 on random fields"
NOT_RUN = "the original library was not run: "


def report_of(path: Path, **settings: str) -> str:
    checkpoint = read_checkpoint(path)
    imported = convert(checkpoint, Options(dict(settings)))
    module = FNO(imported.architecture)
    module.load_state_dict(imported.state)
    parity = check_parity(checkpoint, imported, module.eval(), settings)
    assert parity.passed
    return "\n".join(parity.lines)


def saved(network: torch.nn.Module, folder: Path) -> Path:
    network.save_checkpoint(folder, "model")
    return folder / "model_state_dict.pt"


def pickled(network: torch.nn.Module, folder: Path) -> Path:
    torch.save(network, folder / "model.pt")
    return folder / "model.pt"


@pytest.mark.parametrize(
    "arguments",
    [
        {"non_linearity": torch.nn.LeakyReLU(0.2)},
        {"non_linearity": torch.nn.GELU(approximate="tanh")},
        {"non_linearity": torch.sin},
        {"positional_embedding": GridEmbeddingND(2, 2, grid_boundaries=[[-1, 1], [0, 3]])},
    ],
)
def test_objects_among_the_arguments_are_built_again(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    network = TheirFNO(**PLAIN, **arguments)
    for path in (saved(network, tmp_path), pickled(network, tmp_path)):
        assert COMPARED in report_of(path)


def test_positional_arguments_are_passed_on(tmp_path: Path) -> None:
    assert COMPARED in report_of(saved(TheirFNO((6, 5), 2, 1, 4, 2), tmp_path))


def test_a_network_inside_a_wrapper_is_compared(tmp_path: Path) -> None:
    network = TheirFNO(**PLAIN)
    lightning = {
        k if k == "_metadata" else f"model.{k}": v for k, v in network.state_dict().items()
    }
    averaged = torch.optim.swa_utils.AveragedModel(network)
    for number, saved in enumerate(({"state_dict": lightning}, averaged.state_dict(), averaged)):
        torch.save(saved, tmp_path / f"{number}.pt")
        assert COMPARED in report_of(tmp_path / f"{number}.pt"), number


def test_reduced_modes_are_compared_as_reduced(tmp_path: Path) -> None:
    network = TheirFNO(**PLAIN)
    network.n_modes = (4, 2)
    assert COMPARED in report_of(pickled(network, tmp_path))


@pytest.mark.parametrize("precision", ["half", "mixed"])
def test_reduced_precision_is_compared_in_full_precision(precision: str, tmp_path: Path) -> None:
    report = report_of(saved(TheirFNO(**PLAIN, fno_block_precision=precision), tmp_path))
    assert COMPARED in report
    assert f"fno_block_precision={precision} runs on a GPU only and was not compared" in report


def test_the_report_says_when_the_release_was_assumed(tmp_path: Path) -> None:
    report = report_of(saved(TheirTFNO(**PLAIN), tmp_path))
    assert COMPARED in report
    assert "the file does not name its release" in report
    assert "the file does not name" not in report_of(saved(TheirFNO(**PLAIN), tmp_path))


def test_a_release_that_the_user_names_is_compared(tmp_path: Path) -> None:
    path = saved(TheirTFNO(**PLAIN), tmp_path)
    report = report_of(path, version="2.0.0")
    assert COMPARED in report
    assert "the file does not name its release" not in report
    assert "the checkpoint needs 1.0" in report_of(path, version="1.0")
    assert "--set overrides" in report_of(path, version="2.0.0", stabilizer="tanh")


def test_the_development_version_is_not_compared_with_2_0_0(tmp_path: Path) -> None:
    report = report_of(pickled(with_its_attributes(TheirTFNO(**PLAIN)), tmp_path))
    assert f"{NOT_RUN}neuraloperator 2.0.0 is installed, the checkpoint needs main" in report
    assert "compared with the same network in float64" in report


def test_an_installed_development_version_is_recognised_by_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Development(TheirFNO):
        def __init__(self, *_: Any, enforce_hermitian_symmetry: bool = True) -> None:
            raise NotImplementedError(enforce_hermitian_symmetry)

    released = saved(TheirFNO(**PLAIN), tmp_path)
    monkeypatch.setattr(neuralop.models, "FNO", Development)
    report = report_of(released)
    assert f"{NOT_RUN}a development version of neuraloperator is installed" in report


def test_an_error_in_the_original_library_does_not_fail_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(TheirFNO(**PLAIN), tmp_path)

    def fails(self: TheirFNO, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(TheirFNO, "forward", fails)
    report = report_of(path)
    assert (
        f"{NOT_RUN}neuraloperator 2.0.0 fails on this machine: RuntimeError: no such kernel"
        in report
    )
    assert "compared with the same network in float64" in report


def test_a_network_whose_fields_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """Its file has a few kilobytes; each of two layers multiplies the points by 216."""
    network = TheirFNO(
        **{**PLAIN, "n_modes": (4, 4, 4)}, resolution_scaling_factor=[[6.0] * 3, [6.0] * 3]
    )
    with pytest.raises(ImportRefused, match=r"grid .* 9x9x9\. .* bytes for one field"):
        report_of(saved(network, tmp_path))


def test_the_grid_of_the_comparison_is_larger_than_a_reflected_padding() -> None:
    padding = DomainPadding(points=(40, 3), mode="reflect")
    arch = FNOArchitecture(
        in_channels=1, out_channels=1, hidden_channels=2, n_layers=1, modes=(2, 2), domain_padding=padding
    )  # fmt: skip
    module = FNO(arch).eval()
    imported = Imported("a padded network", arch, dict(module.state_dict()))
    parity = check_parity(Checkpoint("original", Path("x.pt")), imported, module, {})
    assert parity.passed
    assert "grid 46x16" in parity.lines[1]
