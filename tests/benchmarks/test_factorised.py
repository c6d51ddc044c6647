"""benchmarks.factorised: all candidates give the same result."""

from __future__ import annotations

import pytest
import tltorch
import torch

from benchmarks.factorised import candidates

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("kind", ["Tucker", "CP", "TT"])
@pytest.mark.parametrize("modes", [(4, 3), (4, 3, 2)])
def test_all_candidates_agree(kind: str, modes: tuple[int, ...]) -> None:
    weight = tltorch.FactorizedTensor.new(
        (5, 6, *modes), rank=0.5, factorization=kind, dtype=torch.cfloat
    )
    weight = weight.normal_(0, 1).requires_grad_(False)
    z = torch.randn(2, 5, *modes, dtype=torch.complex64)
    letters = "xyz"[: len(modes)]
    expected = torch.einsum(f"bi{letters},io{letters}->bo{letters}", z, weight.to_tensor())
    found = candidates(weight)
    assert set(found) == {"multiplied out", "in neuraloperator"} | (
        {"in stages"} if kind != "TT" else set()
    )
    for way in found.values():
        torch.testing.assert_close(
            way.back(way.call(way.layout(z))), expected, rtol=1e-3, atol=1e-3
        )
