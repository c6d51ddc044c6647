"""benchmarks.chains: shares, reasons, networks of each kind, and what the kernels' host plans say of cards."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from itertools import islice

import pytest
import torch

from benchmarks.chains import (
    Judged,
    Network,
    Verdict,
    built,
    by_channel_mlp,
    drawn,
    judged,
    neuraloperators,
    physicsnemos,
    reasons,
    shares,
)
from benchmarks.host_plans import CARDS, host_plans, refusals
from benchmarks.tables import chains
from turbofno.models.core.fno import FNO
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported
from turbofno_ops import FNODescription, compile_fno

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

WIDE, MODES = "too wide", "too many modes"
VERDICTS = [
    Judged("drawn", 64, 0.5, Verdict(None, {"CPU": None, "H200": None, "A100": None}, 1e-6)),
    Judged("drawn", 256, 1.0, Verdict(None, {"CPU": None, "H200": WIDE, "A100": WIDE}, 3e-6)),
    Judged(
        "drawn",
        128,
        1.0,
        Verdict(None, {"CPU": None, "H200": None, "A100": f"before layer 1 of 2: {WIDE}"}, 2e-6),
    ),
    Judged("drawn", 128, None, Verdict("no such norm", {}, 0.0)),
    Judged("other", 32, 0.5, Verdict(None, {"CPU": MODES, "H200": MODES, "A100": MODES}, 0.0)),
]


@pytest.fixture(scope="module")
def _plans() -> Iterator[None]:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler (g++)")
    with host_plans():
        yield


def test_shares_are_of_imported_networks() -> None:
    rows = {row["networks"]: row for row in shares(VERDICTS)}
    assert list(rows) == [
        *("drawn", "other"),
        *(f"drawn, {width} channels" for width in ("16 to 64", "128", "256")),
    ]
    of_drawn = rows["drawn"]
    assert (of_drawn["count"], of_drawn["import"]) == (4, 3)
    assert [of_drawn[f"chain on {place}"] for place in ("CPU", "H200", "A100")] == [3, 2, 1]
    assert (of_drawn["median distance"], of_drawn["largest distance"]) == (2e-6, 3e-6)
    assert rows["drawn, 128 channels"]["chain on H200"] == 1
    assert rows["other"]["largest distance"] is None


def test_the_librarys_error_is_that_of_the_network_with_the_largest_distance() -> None:
    chains_of = {"CPU": None, "H200": None, "A100": None}
    verdicts = [
        Judged("other", 32, None, Verdict(None, chains_of, distance, error))
        for distance, error in ((2e-5, 7e-6), (3e-4, 1e-4), (1e-7, None))
    ]
    (row,) = shares(verdicts)
    assert (row["largest distance"], row["float32 error there"]) == (3e-4, 1e-4)


def test_drawn_networks_are_counted_by_channels_and_expansion() -> None:
    assert [tuple(row.values()) for row in by_channel_mlp(VERDICTS)] == [
        ("16 to 64", 0.5, 1, 1, 1, 1),
        ("128", 1.0, 1, 1, 1, 0),
        ("256", 1.0, 1, 1, 0, 0),
    ]


def test_reasons_are_counted_without_their_layer() -> None:
    assert [tuple(row.values()) for row in reasons(VERDICTS)] == [
        ("chain on A100", 2, "128 (1), 256 (1)", WIDE),
        ("chain on H200", 1, "256 (1)", WIDE),
        ("import", 1, "128 (1)", "no such norm"),
        ("chain on CPU", 1, "32 (1)", MODES),
        ("chain on H200", 1, "32 (1)", MODES),
        ("chain on A100", 1, "32 (1)", MODES),
    ]


def test_the_page_has_all_counts() -> None:
    where = {"torch": "2", "commit": "c", "at": "2026-01-01T00:00:00"}
    page = "\n".join(
        chains([where, *shares(VERDICTS), *by_channel_mlp(VERDICTS), *reasons(VERDICTS)])
    )
    for line in (
        "| drawn | 4 | 3 | 3 (100.0%) | 2 (66.7%) | 1 (33.3%) | 2.0e-06 | 3.0e-06 |  |",
        "| 128 | 1 | 1 | 1 (100.0%) | 1 (100.0%) | 0 (0.0%) |",
        "| chain on A100 | 2 | 128 (1), 256 (1) | too wide |",
    ):
        assert line in page.splitlines()


def test_random_networks_are_the_same_in_every_run() -> None:
    draws = [[drawn(random.Random(7)) for _ in range(3)] for _ in range(2)]
    assert str(draws[0]) == str(draws[1])


@pytest.mark.usefixtures("_plans")
def test_networks_of_every_kind_run_and_agree_with_the_library() -> None:
    for network in (*islice(neuraloperators(1), 4), *islice(physicsnemos(), 2)):
        verdict = judged(network)
        assert verdict.imports is None
        assert verdict.chains == {"CPU": None, "H200": None, "A100": None}
        assert 0 < verdict.distance < 1e-5
        assert verdict.float32_error is None


@pytest.mark.usefixtures("_plans")
def test_a_distance_above_the_bound_is_shown_with_the_librarys_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.chains._NOTABLE", 0.0)
    verdict = judged(next(neuraloperators(0)))
    assert verdict.float32_error is not None
    assert 0 < verdict.float32_error < 1e-5


@pytest.mark.usefixtures("_plans")
def test_networks_that_are_not_imported_or_no_chain_have_a_reason() -> None:
    refused = Network("drawn", None, ImportRefused("no such norm"), 2, 64, 0.5)
    assert judged(refused) == Verdict("no such norm", {}, 0.0)
    network = next(neuraloperators(0))
    assert isinstance(network.imported, Imported)
    arch = network.imported.architecture.model_copy(
        update={"modes": (1000,), "mode_placement": "exact"}
    )
    weight = torch.zeros(64, 64, 1000, dtype=torch.complex64)
    state = {
        name: weight if "spectral_weight" in name else tensor
        for name, tensor in network.imported.state.items()
    }
    verdict = judged(network._replace(imported=Imported("", arch, state)))
    assert set(verdict.chains) == {"CPU", *CARDS}
    assert all(why is not None and "modes" in why for why in verdict.chains.values())


def described(**arguments: object) -> FNODescription:
    """A small network of the library."""
    fixed = {"n_modes": (12, 12), "in_channels": 1, "out_channels": 1, "n_layers": 2}
    imported = built("", "FNO", {**fixed, **arguments}).imported
    assert isinstance(imported, Imported)
    ours = FNO(imported.architecture, imported.normalization).eval()
    ours.load_state_dict(imported.state)
    return ours.description()


@pytest.mark.usefixtures("_plans")
def test_cards_refuse_what_their_kernels_cannot() -> None:
    for width, refused in ((144, False), (256, False), (264, True)):
        network = described(hidden_channels=width, channel_mlp_expansion=0.5)
        assert compile_fno(network, device="cpu").refusal((64, 64)) is None
        for card in CARDS.values():
            (reason,) = refusals(network, card, [(64, 64)])
            assert ("1 .. 256" in (reason or "")) == refused


@pytest.mark.usefixtures("_plans")
def test_a_card_with_less_shared_memory_refuses_more() -> None:
    network = described(hidden_channels=128, channel_mlp_expansion=1.0)
    small = CARDS["A100"]._replace(shared_bytes=32 * 1024)
    (refused,) = refusals(network, small, [(64, 64)])
    assert refused is not None
    assert refused.endswith("do not fit in shared memory")
