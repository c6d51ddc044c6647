"""The model of the cost of slabs: its table in the documentation, and bytes counted another way."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import slab_costs

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "slabs.md"


def test_the_page_has_the_tables() -> None:
    assert slab_costs.tables() in PAGE.read_text()


@pytest.mark.parametrize("cards", [2, 4, 8])
def test_bytes_that_a_card_sends(cards: int) -> None:
    layer, fft = slab_costs.Layer(3, 32, 4), slab_costs.Fft(48)
    # a ring all-reduce: cards - 1 steps of a reduce-scatter and of an all-gather, each of one share
    share = 8 * 3 * (8 * 8 * 4) / cards
    assert layer.sent(cards) == pytest.approx(2 * (cards - 1) * share)
    # to every other card a block of own rows and its columns, twice
    block = 8 * (48 / cards) * (48 / cards) * 48
    assert fft.sent(cards) == pytest.approx(2 * (cards - 1) * block)


def test_one_card_communicates_nothing() -> None:
    for cost in (slab_costs.Layer(32, 512, 16), slab_costs.Fft(1024)):
        assert cost.sent(1) == 0
        assert cost.seconds(1)[1] == 0
