"""benchmarks.gpu.ntt on a CPU: residues, the check of results, and the table."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import ntt as measured
from benchmarks.gpu.ntt import CASES, Case
from benchmarks.gpu.report import gpu_ntt
from turbofno_ops.ntt import BABY_BEAR, GOLDILOCKS, ntt, to_integers

WHERE = {"gpu": "a card", "torch": "2", "cuda": "13", "commit": "c", "at": "2026-01-01T00:00:00"}


def test_cases_have_labels_of_their_own() -> None:
    assert len({case.label for case in CASES}) == len(CASES)


@pytest.mark.parametrize("prime", [BABY_BEAR, GOLDILOCKS])
def test_residues_are_below_the_prime_and_spread(prime: int) -> None:
    values = to_integers(measured.residues(Case(prime, 4096, 1), "cpu"))[0]
    assert max(values) < prime
    assert max(values) > prime * 0.99
    assert min(values) < prime * 0.01


def test_wrong_results_are_found() -> None:
    x = torch.arange(4 * 64).view(4, 64)
    right = ntt(x, BABY_BEAR)
    measured.check("a case", [right, right.clone()], x, BABY_BEAR)
    for line, why in ((3, "a transform is wrong"), (1, "different results")):
        wrong = right.clone()
        wrong[line, 5] += 1
        given = [wrong, right] if line == 3 else [right, wrong]
        with pytest.raises(RuntimeError, match=f"a case: .*{why}"):
            measured.check("a case", given, x, BABY_BEAR)


def test_the_table_compares_exchanges() -> None:
    rows = [
        {
            "case": "baby_bear 4 x 64", "prime": "baby_bear", "points": 64, "batch": 4, "radix": radix,
            "exchange": exchange, "ms": ms, "floor ms": 0.5, **WHERE,
        }
        for radix, exchange, ms in (
            (2, "shuffle", 2.0), (2, "shared memory", 6.0), (16, "shuffle", 1.0), (16, "shared memory", 1.5)
        )
    ]  # fmt: skip
    page = "\n".join(gpu_ntt(rows))
    assert "| prime | points | lines | floor | radix 2 | radix 16 |" in page
    assert "| baby_bear | 64 | 4 | 0.5 | 2 (4x) | 1 (2x) |" in page
    assert "| baby_bear | 64 | 4 | 3x | 1.5x | 1.5x |" in page
