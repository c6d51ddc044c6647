"""Tensors that a file holds as lazy views are read with the values that torch.load gives."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.importers.original_scripts import Script
from turbofno.models.importers import safe_pickle
from turbofno.models.importers.detect import convert, read_checkpoint
from turbofno.models.importers.normalizers import read_normalizer
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Options
from turbofno.models.importers.torch_file import read_torch_file


def lazy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a view with torch's conjugate or negative bit."""
    if tensor.is_complex():
        return tensor.conj().resolve_conj().conj()
    return torch.complex(tensor, -tensor).conj().imag


@pytest.mark.parametrize("zipped", [True, False])
def test_conjugated_and_negated_views_keep_their_values(zipped: bool, tmp_path: Path) -> None:
    state = Script("B", (3, 3), 4, 1, 1).state_dict()
    views = {name: lazy(tensor) for name, tensor in state.items()}
    assert {view.is_conj() or view.is_neg() for view in views.values()} == {True}
    for name, tensors in (("plain.pt", state), ("views.pt", views)):
        torch.save(tensors, tmp_path / name, _use_new_zipfile_serialization=zipped)
    plain, found = (
        convert(read_checkpoint(tmp_path / name), Options({"script": "fourier_2d"}))
        for name in ("plain.pt", "views.pt")
    )
    assert found.state.keys() == plain.state.keys()
    for name, tensor in plain.state.items():
        assert torch.equal(found.state[name], tensor), name


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_weights_in_complex_half_precision_are_widened(tmp_path: Path) -> None:
    state = Script("B", (3, 3), 4, 1, 1).state_dict()
    halved = {k: t.to(torch.complex32) if t.is_complex() else t for k, t in state.items()}
    halved["conv0.weights1"] = halved["conv0.weights1"].conj()
    wide = {k: t.to(torch.complex64) if t.is_complex() else t for k, t in halved.items()}
    for name, tensors in (("half.pt", halved), ("wide.pt", wide)):
        torch.save(tensors, tmp_path / name)
    found, expected = (
        convert(read_checkpoint(tmp_path / name), Options({"script": "fourier_2d"})).state
        for name in ("half.pt", "wide.pt")
    )
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    torch.save(
        torch.ones(2).to(torch.complex32),
        tmp_path / "legacy.pt",
        _use_new_zipfile_serialization=False,
    )
    with pytest.raises(ImportRefused, match=r"a tensor of torch\.complex32 is stored as bytes"):
        read_torch_file(tmp_path / "legacy.pt")


def test_normalisers_that_are_negated_views(tmp_path: Path) -> None:
    mean = torch.tensor([1.0, -2.0])
    torch.save({"mean": lazy(mean), "std": mean.abs().bfloat16()}, tmp_path / "normalizer.pt")
    (found,) = read_normalizer(tmp_path / "normalizer.pt", "input").values()
    assert (found.mean.tolist(), found.std.tolist()) == ([1.0, -2.0], [1.0, 2.0])


def test_types_and_empty_arrays_beside_the_network_are_not_read(tmp_path: Path) -> None:
    """Configurations of omegaconf name typing.Any; protocol 2 writes int as long, and empty bytes as a call."""
    state = Script("B", (3, 3), 4, 1, 1).state_dict()
    beside = {"types": [int, str, float, bytes, Any], "losses": np.zeros(0), "raw": b""}
    torch.save({"model": state, **beside}, tmp_path / "training.pt")
    assert read_checkpoint(tmp_path / "training.pt").tensors.keys() == state.keys()
    assert read_torch_file(tmp_path / "training.pt")["raw"] == b""


@pytest.mark.parametrize("zipped", [True, False])
def test_optimisers_and_schedules_beside_the_network_are_not_read(
    zipped: bool, tmp_path: Path
) -> None:
    """A Counter has the milestones of a schedule; tensors are keys in an optimiser that took a step."""
    network = Script("B", (3, 3), 4, 1, 1)
    optimiser = torch.optim.Adam(network.parameters())
    sum(weight.abs().sum() for weight in network.parameters()).backward()
    optimiser.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [10, 20])
    beside = {
        "optimiser": optimiser,
        "schedule": schedule.state_dict(),
        "arguments": SimpleNamespace(lr=1e-3),
        "losses": deque([1.0], maxlen=8),
        "torch": torch.__version__,
    }
    torch.save(
        {"model": network.state_dict(), **beside},
        tmp_path / "training.pt",
        _use_new_zipfile_serialization=zipped,
    )
    tensors = read_checkpoint(tmp_path / "training.pt").tensors
    assert tensors.keys() == network.state_dict().keys()


def test_a_long_history_beside_the_network_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_pickle, "MAX_STEPS", 1000)
    torch.save({"model": {}, "losses": [0.5] * 1000}, tmp_path / "training.pt")
    with pytest.raises(ImportRefused, match=r"1,000 steps, too many.*\. If the file is your own"):
        read_checkpoint(tmp_path / "training.pt")


class Schedule:
    """A learning-rate schedule whose state holds a function, as OneCycleLR's in older releases of torch."""

    def __init__(self) -> None:
        self.function = self.annealing

    def annealing(self) -> None: ...


@pytest.mark.parametrize("static", [True, False])
def test_a_schedule_beside_the_network_may_hold_its_function(
    static: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lr_scheduler = torch.optim.lr_scheduler
    monkeypatch.setattr(lr_scheduler, "Schedule", Schedule, raising=False)
    monkeypatch.setattr(Schedule, "__module__", lr_scheduler.__name__)
    function = lr_scheduler.OneCycleLR._annealing_cos if static else Schedule().function
    state = Script("B", (3, 3), 4, 1, 1).state_dict()
    torch.save({"model": state, "schedule": {"f": function}}, tmp_path / "training.pt")
    assert read_checkpoint(tmp_path / "training.pt").tensors.keys() == state.keys()
    torch.save({"model": state, "f": torch.nn.Module.cuda}, tmp_path / "other.pt")
    with pytest.raises(ImportRefused, match=r"getattr; nothing was run\. If the file is your own"):
        read_checkpoint(tmp_path / "other.pt")


class Flagged:
    """A tensor in a pickle, with something where torch writes the flags of a lazy view."""

    def __init__(self, tensor: torch.Tensor, flags: Any) -> None:
        self._tensor, self._flags = tensor, flags

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, given = self._tensor.__reduce_ex__(2)[:2]
        return rebuild, (*given[:6], self._flags)


@pytest.mark.parametrize(
    ("tensor", "flags"),
    [
        (torch.ones(2), {"quantised": True}),
        (torch.ones(2), 1),
        (torch.ones(2, dtype=torch.int64), {"neg": True}),
    ],
)
def test_unknown_flags_are_refused(tensor: torch.Tensor, flags: Any, tmp_path: Path) -> None:
    torch.save({"weight": Flagged(tensor, flags)}, tmp_path / "flagged.pt")
    with pytest.raises(ImportRefused, match="unknown flags"):
        read_torch_file(tmp_path / "flagged.pt")
