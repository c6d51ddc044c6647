"""benchmarks.chains: shares, reasons, and networks of each kind."""

from __future__ import annotations

import random
from itertools import islice

import pytest
import torch

from benchmarks.chains import (
    Network,
    Verdict,
    drawn,
    judged,
    neuraloperators,
    physicsnemos,
    reasons,
    shares,
)
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CPU = torch.device("cpu")

VERDICTS = [
    ("drawn", Verdict(None, (None, None, "too wide"), 1e-6)),
    ("drawn", Verdict(None, (None, "too wide", "too wide"), 3e-6)),
    ("drawn", Verdict("no such norm", (), 0.0)),
    ("other", Verdict(None, (None, None, None), 2e-6)),
]


def test_shares_are_of_imported_networks() -> None:
    first, second = shares(VERDICTS)
    assert (first["networks"], first["count"], first["imported"]) == ("drawn", 3, 2)
    assert [value for name, value in first.items() if name.startswith("chains on")] == [1, 0.5, 0]
    assert (first["largest"], second["largest"]) == (3e-6, 2e-6)


def test_reasons_are_counted_for_each_grid() -> None:
    assert reasons(VERDICTS) == [
        {"what": "no chain", "times": 3, "why": "too wide"},
        {"what": "no import", "times": 1, "why": "no such norm"},
    ]


def test_random_networks_are_the_same_in_every_run() -> None:
    draws = [[drawn(random.Random(7)) for _ in range(3)] for _ in range(2)]
    assert str(draws[0]) == str(draws[1])


def test_networks_of_every_kind_run_and_agree_with_the_library() -> None:
    for network in (*islice(neuraloperators(1), 4), *islice(physicsnemos(), 2)):
        verdict = judged(network, CPU)
        assert verdict.imports is None
        assert verdict.grids == (None, None, None)
        assert 0 < verdict.distance < 1e-4


def test_networks_that_are_not_imported_or_no_chain_have_a_reason() -> None:
    refused = Network("drawn", None, ImportRefused("no such norm"), 2)
    assert judged(refused, CPU) == Verdict("no such norm", (), 0.0)
    network = next(neuraloperators(0))
    assert isinstance(network.imported, Imported)
    arch = network.imported.architecture.model_copy(
        update={"modes": (200,), "mode_placement": "exact"}
    )
    weight = torch.zeros(16, 16, 200, dtype=torch.complex64)
    state = {
        name: weight if "spectral_weight" in name else tensor
        for name, tensor in network.imported.state.items()
    }
    verdict = judged(network._replace(imported=Imported("", arch, state)), CPU)
    assert all(why is not None and "modes" in why for why in verdict.grids)
