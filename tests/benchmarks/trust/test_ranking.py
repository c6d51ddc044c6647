"""Rank correlation against scipy, ROC area against counting pairs; the summary and the picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.trust import ranking
from benchmarks.trust.picture import draw
from tests.draws import generator

if TYPE_CHECKING:
    from pathlib import Path


def test_spearman_is_scipys_with_ties() -> None:
    rng = generator()
    a, b = rng.integers(0, 12, 60).astype(float), rng.normal(size=60)
    assert ranking.spearman(a, a + 3 * b) == pytest.approx(stats.spearmanr(a, a + 3 * b)[0])


def test_the_roc_area_is_the_share_of_pairs_in_order() -> None:
    rng = generator()
    signal, bad = rng.integers(0, 9, 40).astype(float), rng.random(40) < 0.4
    bad[:2] = True, False
    pairs = [(p > q) + (p == q) / 2 for p in signal[bad] for q in signal[~bad]]
    assert ranking.roc_auc(signal, bad) == pytest.approx(np.mean(pairs))
    assert math.isnan(ranking.roc_auc(signal, np.zeros(40, bool)))


def line(case: str, error: list[float], signal: list[float], **more: Any) -> dict[str, Any]:
    values = {"error": error, "input_distance": signal, "residual": error}
    return {"case": case, "in_distribution": False, "declared": True, "values": values} | more


def test_a_summary_counts_declared_cases_and_is_drawn(tmp_path: Path) -> None:
    lines = [
        line("in distribution", [0.01, 0.02, 0.03], [0.1, 0.2, 0.3], in_distribution=True),
        line("larger", [0.2, 0.5], [0.15, 4.0]),
        line("solved otherwise", [0.9, 0.9], [0.1, 0.1], declared=False),
    ]
    summary = ranking.summarise(lines, 0.02)
    assert summary["input_distance"] == {
        "fields": 5, "bad": 2, "spearman": pytest.approx(0.7), "spearman in distribution": 1.0,
        "auc": pytest.approx(4 / 6, abs=1e-3),
    }  # fmt: skip
    draw(tmp_path / "trust.png", lines, summary)
    assert (tmp_path / "trust.png").read_bytes().startswith(b"\x89PNG")
