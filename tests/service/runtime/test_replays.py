"""Networks are replayed with the same outputs; conditions of a replay."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.fno import FNO
from turbofno.service.runtime import replays
from turbofno.service.runtime.replays import Replays

ARCHITECTURE = FNOArchitecture(
    in_channels=2, out_channels=1, hidden_channels=4, n_layers=2, modes=(5, 4)
)


class Counted:
    """A network that counts its calls."""

    def __init__(self) -> None:
        self.network = FNO(ARCHITECTURE).eval()
        self.batches: list[int] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(x))
        found: torch.Tensor = self.network(x)
        return found


@pytest.fixture(autouse=True)
def _any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record even on a busy machine: only `test_long_runs_are_not_recorded` is about time."""
    monkeypatch.setattr(replays, "_MAX_SECONDS", math.inf)


def check(found: Replays, network: Counted, batch: int, grid: tuple[int, int]) -> int:
    """Number of calls of the network for a batch, whose output is checked."""
    x = torch.randn(batch, 2, *grid)
    network.batches.clear()
    with torch.inference_mode():
        y = found(x)
        calls = len(network.batches)
        torch.testing.assert_close(y, network.network(x), rtol=1e-5, atol=1e-6)
    return calls


def test_a_prepared_grid_is_replayed_in_every_size() -> None:
    network = Counted()
    found = Replays("net", network, chunk_size=lambda _: 4)
    with torch.inference_mode():
        found.prepare(torch.Size((2, 12, 14)))
    for batch in (1, 2, 3, 4, 5, 7, 11):
        assert check(found, network, batch, (12, 14)) == 0
    assert check(found, network, 3, (13, 14)) == 1


def test_another_grid_is_replayed_once_it_is_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "_RUNS_BEFORE_RECORDING", 3)
    network = Counted()
    found = Replays("net", network, chunk_size=lambda _: 2)
    assert [check(found, network, 5, (12, 12)) for _ in range(2)] == [3, 3]
    assert check(found, network, 5, (12, 12)) > 3, "it is being recorded"
    assert check(found, network, 5, (12, 12)) == 0
    found.clear()
    assert check(found, network, 5, (12, 12)) == 3


def test_number_of_recorded_grids_is_limited() -> None:
    network = Counted()
    found = Replays("net", network, chunk_size=lambda _: 1)
    with torch.inference_mode():
        for size in range(10, 10 + replays._MAX_GRIDS + 3):
            found.prepare(torch.Size((2, size, 10)))
    assert len(found._known) == replays._MAX_GRIDS
    assert check(found, network, 1, (10, 10)) == 1, "the oldest went"
    assert check(found, network, 1, (10 + replays._MAX_GRIDS + 2, 10)) == 0


def test_a_caller_of_many_grids_does_not_block_others_by_recordings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replays, "_RUNS_BEFORE_RECORDING", 2)
    monkeypatch.setattr(replays, "_RECORDING_COOLDOWN", 1e6)
    network = Counted()
    found = Replays("net", network, chunk_size=lambda _: 2)
    for size in (12, 13):
        check(found, network, 2, (size, 12))
    assert check(found, network, 2, (12, 12)) > 1, "it is being recorded"
    assert [check(found, network, 2, (13, 12)) for _ in range(3)] == [1, 1, 1]
    found._cooldown_until = 0.0
    assert check(found, network, 2, (13, 12)) > 1, "its turn has come"
    assert check(found, network, 2, (13, 12)) == 0


def test_rare_grids_do_not_evict_a_recorded_one() -> None:
    network = Counted()
    found = Replays("net", network, chunk_size=lambda _: 1)
    with torch.inference_mode():
        found.prepare(torch.Size((2, 10, 10)))
    for size in range(11, 11 + 2 * replays._MAX_GRIDS):
        check(found, network, 1, (size, 10))
    assert check(found, network, 1, (10, 10)) == 0
    for size in range(11, 11 + 2 * replays._MAX_TRACKED_GRIDS):
        check(found, network, 1, (10, size))
    assert len(found._known) == replays._MAX_TRACKED_GRIDS


def test_long_runs_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "_MAX_SECONDS", 0.0)
    network = Counted()
    found = Replays("net", network, chunk_size=lambda _: 4)
    with torch.inference_mode():
        found.prepare(torch.Size((2, 12, 12)))
    assert check(found, network, 6, (12, 12)) == 2


def test_network_that_cannot_be_recorded_runs_unrecorded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def decides(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    found = Replays("decider", decides, chunk_size=lambda _: 4)
    with torch.inference_mode():
        found.prepare(torch.Size((1, 8)))
        for sign in (1.0, -1.0):
            assert torch.equal(found(torch.full((2, 1, 8), sign)), torch.ones(2, 1, 8))
    assert "decider runs call by call" in caplog.text
