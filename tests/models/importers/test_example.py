"""`turbofno import --example`: the model against an answer of the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.importers.importing import left_over, run
from tests.models.importers.original_scripts import Script


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@pytest.mark.parametrize(
    ("script", "does", "says"),
    [
        ("fourier_2d", {}, "differ from those of your network by"),
        ("fourier_2d_time", {}, "so nothing was written: one of the assumptions above is wrong"),
        ("fourier_2d", {"input_std": "4"}, "so nothing was written"),
        ("fourier_2d", {"tf32": True}, "more than float32 rounds"),
    ],
)
def test_an_example_shows_if_the_assumptions_hold(
    script: str, does: dict[str, Any], says: str, tmp_path: Path, repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    network = Script("B", (4, 4), 6, 3, 2, padding=(9, 9)).eval()
    torch.save(network.state_dict(), tmp_path / "fno.pt")
    x = 7 + 3 * torch.randn(2, 3, 21, 20)
    with torch.no_grad():
        y = network(((x - 7) / 3).movedim(1, -1)).movedim(-1, 1)
    y += 1e-3 * ("tf32" in does) * (y - y.mean((0, 2, 3), keepdim=True))
    for name, array in (("x", x), ("y", y), ("last", x.movedim(1, -1))):
        np.save(tmp_path / name, array.numpy())
    files = [str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    physical = ["--input-mean", "7", "--input-std", does.get("input_std", "3")]
    options = ["--set", f"script={script}", *physical, "--example"]
    fails = "nothing was written" in says
    assert run(repository, tmp_path / "fno.pt", *options, *files) == fails
    said = capsys.readouterr()
    assert says in (said.err if fails else said.out)
    assert left_over(repository) == ([] if fails else ["model"])


@pytest.mark.parametrize("dtype", [">f4", ">f8", "longdouble"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_example_may_have_any_dtype_and_order(
    dtype: str, order: str, tmp_path: Path, repository: Path
) -> None:
    network = Script("B", (4, 4), 6, 3, 2, padding=(9, 9)).eval()
    torch.save(network.state_dict(), tmp_path / "fno.pt")
    x = torch.randn(2, 3, 21, 20)
    with torch.no_grad():
        y = network(x.movedim(1, -1)).movedim(-1, 1)
    files = [str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    for file, array in zip(files, (x, y), strict=True):
        np.save(file, np.asarray(array.numpy(), dtype, order=order))
    assert (
        run(repository, tmp_path / "fno.pt", "--set", "script=fourier_2d", "--example", *files) == 0
    )


@pytest.mark.parametrize("broken", ["x.npy", "y.npy"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_example_with_masked_values_says_so(
    broken: str, value: float, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(Script("B", (4, 4), 6, 3, 2).state_dict(), tmp_path / "fno.pt")
    files = {"x.npy": np.ones((2, 3, 16, 16), "f4"), "y.npy": np.ones((2, 2, 16, 16), "f4")}
    files[broken][1, 0, 3, 4] = value
    for name, array in files.items():
        np.save(tmp_path / name, array)
    said = ["--set", "script=fourier_2d", "--set", "padding=0"]
    paths = [str(tmp_path / name) for name in files]
    assert run(repository, tmp_path / "fno.pt", *said, "--example", *paths) == 1
    assert f"{broken} holds values that are NaN or infinite" in capsys.readouterr().err
    assert left_over(repository) == []


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ((2, 16, 16, 3), (2, 2, 16, 16), "expected [fields, 3, x, y]; move the axis of channels"),
        ((2, 3, 16), (2, 2, 16, 16), "has shape [2, 3, 16], expected [fields, 3, x, y]\n"),
        ((2, 3, 16, 16), (1, 2, 16, 16), "has shape [1, 2, 16, 16], expected [2, 2, 16, 16] for"),
        ((2, 3, 3, 3), (2, 2, 3, 3), "x.npy has the grid [3, 3], the model takes"),
        (None, (2, 2, 16, 16), "x.npy is not a .npy file of numbers"),
        ((2, 3, 16, 16), None, "y.npy is not a .npy file of numbers"),
    ],
)
def test_an_example_that_does_not_fit_is_refused(
    x: tuple[int, ...] | None, y: tuple[int, ...] | None, says: str, tmp_path: Path, repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    torch.save(Script("B", (4, 4), 6, 3, 2).state_dict(), tmp_path / "fno.pt")
    files = [tmp_path / "x.npy", tmp_path / "y.npy"]
    for file, shape in zip(files, (x, y), strict=True):
        if shape is None:
            file.write_bytes(b"hello")
        else:
            np.save(file, np.ones(shape, "f4"))
    said = ["--set", "script=fourier_2d", "--set", "padding=0", "--example", *map(str, files)]
    assert run(repository, tmp_path / "fno.pt", *said) == 1
    assert says in capsys.readouterr().err
    assert left_over(repository) == []
