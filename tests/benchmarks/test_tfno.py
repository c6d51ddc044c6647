"""benchmarks.tfno: contracted networks give the library's answer and read no dense weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import tfno
from benchmarks.tables import document
from benchmarks.timing import save
from turbofno.service.runtime import replays

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CASES = [
    tfno.Case("Tucker", 0.3, 8, 6, (16,), 2),
    tfno.Case("Tucker", 0.3, 8, 6, (12, 16), 3),
    tfno.Case("CP", 0.3, 8, 4, (8, 8, 8), 2),
]


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_both_ways_give_the_librarys_answer(
    case: tfno.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a run that the machine delays is not replayed otherwise
    monkeypatch.setattr(replays, "_MAX_SECONDS", math.inf)
    row = tfno.measure(case, seconds=0.0, rounds=3)
    assert row["runs as"] == "replay"
    dense, contracting = (row[f"{name} ms"] for name in ("multiplied out", "contracting"))
    assert isinstance(dense, float)
    assert isinstance(contracting, float)
    assert row["contracting over multiplied out"] == contracting / dense


@torch.inference_mode()
def test_the_contracting_network_reads_factors_only() -> None:
    given = tfno.network(CASES[1])
    x = torch.randn(1, 3, 12, 16)
    assert tfno.without_dense_weights(given.ours)(x).isnan().any()
    assert not given.ours(x).isnan().any()
    calls = tfno.candidates(given, x).calls
    torch.testing.assert_close(calls["contracting"](), calls["multiplied out"]())
    doubled = tfno.Network(
        given.theirs, given.ours, tuple((lambda z, f=f: 2 * f(z)) for f in given.contractions)
    )
    of_doubled = tfno.candidates(doubled, x).calls
    torch.testing.assert_close(of_doubled["multiplied out"](), calls["multiplied out"]())
    assert not torch.allclose(of_doubled["contracting"](), calls["contracting"](), rtol=1e-3)


@torch.inference_mode()
def test_wrong_factors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tfno.network(CASES[0])
    wrong = given._replace(contractions=given.contractions[::-1])
    monkeypatch.setattr(tfno, "network", lambda _: wrong)
    with pytest.raises(RuntimeError, match="contracting differs"):
        tfno.measure(CASES[0], seconds=0.0, rounds=1)


def test_the_page_has_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [{"network": "2D C64", "multiplied out ms": 2.0}]
    monkeypatch.setattr("benchmarks.timing.RESULTS", tmp_path)
    save("tfno", rows)
    assert "| 2D C64 | 2 |" in document(tmp_path).splitlines()
