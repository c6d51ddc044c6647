"""benchmarks.gpu.plans without a GPU: the list of plans, and the table."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.gpu.plans import plans
from benchmarks.gpu.report import gpu_plans
from benchmarks.host_plans import CARDS, host_plans
from turbofno_ops._stages import Analyze, Source, Step, Store, Synthesis
from turbofno_ops._tile_program import Shape, plan_kernel

WHERE = {"gpu": "a card", "torch": "2", "cuda": "13", "commit": "c", "at": "2026-01-01T00:00:00"}


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles the plans")
@pytest.mark.parametrize(
    "steps", [(Synthesis(), Store(), Analyze()), (Source(), Analyze())], ids=["middle", "first"]
)
@pytest.mark.parametrize("points", [64, 1000])
@pytest.mark.parametrize("card", CARDS)
def test_the_cheapest_plan_is_the_chosen_one(
    steps: tuple[Step, ...], points: int, card: str
) -> None:
    shape = Shape(
        batch=3,
        grid=(40, points),
        channels=64,
        x_channels=64,
        modes=12,
        next_modes=12,
        precision="fp32",
        **CARDS[card]._asdict(),
    )
    with host_plans():
        tile, chosen, refusal = plan_kernel(steps, shape)
    found = plans(tile)
    assert refusal is None
    assert bytes(found[0]) == bytes(chosen)
    assert len(found) > 20
    costs = [plan.cost for plan in found]
    assert costs == sorted(costs)
    assert costs[0] > 0


def test_table_compares_the_chosen_plan_with_the_fastest() -> None:
    rows = [
        {"network": f"layers: {n}", "precision": "fp32", "plans": 5, "ms": 2.0, "fastest ms": 2 / n}
        for n in (1, 3)
    ]
    page = "\n".join(gpu_plans([{**row, **WHERE} for row in rows]))
    assert "| layers | fp32 | 2 | 10 | 2 | 1 | 3 |" in page
