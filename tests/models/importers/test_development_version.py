"""Networks of neuraloperator's development version are recognised if the file shows it, and give the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from neuralop.models import FNO as TheirFNO
from neuralop.models import TFNO as TheirTFNO

from tests.models.importers.comparison import our_module
from tests.models.importers.development_version import development_version, with_its_attributes
from tests.models.importers.neuraloperator_runs import (
    assert_parity,
    deviations,
    imported_exactly,
    outputs,
    spread,
)
from turbofno.models.importers.detect import read_checkpoint
from turbofno.models.importers.result import Imported

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PLAIN: dict[str, Any] = {
    "n_modes": (6, 5),
    "in_channels": 2,
    "out_channels": 1,
    "hidden_channels": 4,
    "n_layers": 2,
}
FILES = Path(__file__).parent / "files"
FIELDS = [torch.randn(2, 2, 9, 11), torch.randn(2, 2, 12, 10)]


def state_of(network: torch.nn.Module) -> dict[str, Any]:
    return {k: v.clone() for k, v in network.state_dict().items() if k != "_metadata"}


def pickled(network: torch.nn.Module, folder: Path) -> Imported:
    torch.save(network, folder / "model.pt")
    checkpoint = read_checkpoint(folder / "model.pt")
    return imported_exactly(checkpoint.tensors, checkpoint.settings)


@pytest.mark.parametrize("kind", [TheirFNO, TheirTFNO])
def test_a_network_saved_whole(kind: type[torch.nn.Module], tmp_path: Path) -> None:
    theirs = with_its_attributes(spread(kind(**PLAIN)))
    imported = pickled(theirs, tmp_path)
    assert imported.format == f"neuraloperator main {kind.__name__}"
    with development_version():
        expected = outputs(theirs, FIELDS)
    assert_parity(imported, FIELDS, expected)


@pytest.mark.parametrize("name", ["main-fno", "main-tfno", "main-finer"])
def test_files_of_the_development_version_itself(name: str) -> None:
    """Written by save_development_version.py, which names the commit."""
    checkpoint = read_checkpoint(FILES / f"{name}.pt")
    imported = imported_exactly(checkpoint.tensors, checkpoint.settings)
    assert imported.format.startswith("neuraloperator main")
    answers = torch.load(FILES / f"{name}-answers.pt", weights_only=True)
    assert_parity(imported, answers["fields"], answers["outputs"])


def test_its_results_on_odd_axes_differ_from_those_of_2_0_0() -> None:
    theirs = spread(TheirFNO(**PLAIN))
    tensors = state_of(theirs)
    with development_version():
        expected = outputs(theirs, FIELDS)
    single, _ = deviations(imported_exactly(tensors, None, version="2.0.0"), FIELDS, expected)
    assert single[0] > 1e-4
    assert single[1] < 1e-5


def test_metadata_with_its_arguments_identifies_it() -> None:
    tensors = state_of(TheirFNO(**PLAIN))
    imported = imported_exactly(tensors, {"in_channels": 2, "enforce_hermitian_symmetry": True})
    assert imported.format == "neuraloperator main FNO"
    assert imported.release_is_known


def test_a_file_that_fits_several_releases_is_reported() -> None:
    imported = imported_exactly(state_of(TheirFNO(**PLAIN)), {"rank": 0.1})
    assert imported.format == "neuraloperator 2.0.0 FNO"
    assert not imported.release_is_known


def test_finer_output_grids_need_room_for_the_modes() -> None:
    """On small grids it discards imaginary parts that a finer output grid needs, so such grids are refused."""
    theirs = spread(TheirFNO(**PLAIN, resolution_scaling_factor=1.5))
    metadata = {**PLAIN, "resolution_scaling_factor": 1.5, "enforce_hermitian_symmetry": True}
    imported = imported_exactly(state_of(theirs), metadata)
    fields = [torch.randn(2, 2, 12, 8), torch.randn(2, 2, 9, 7)]
    with development_version():
        assert_parity(imported, fields, outputs(theirs, fields))
    with pytest.raises(ValueError, match="the weight keeps 4 modes"):
        our_module(imported, torch.float32)(torch.randn(1, 2, 12, 4))
    free = imported_exactly(state_of(theirs), {**metadata, "enforce_hermitian_symmetry": False})
    assert free.architecture.smallest_grid == (1, 1)
