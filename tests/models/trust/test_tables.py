"""The table cache: computes once, evicts the least recently used, and keeps tables that are held."""

from __future__ import annotations

import weakref

import torch

from turbofno.models.core.checkpoint import load_model
from turbofno.models.trust.signals import Signals
from turbofno.models.trust.tables import cached_table
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import DARCY
from turbofno_ops._table_use import used_tables


@cached_table(2)
def ones(count: int) -> torch.Tensor:
    return torch.ones(count)


def test_a_table_is_computed_once_until_it_is_evicted() -> None:
    first = ones(1)
    assert ones(1) is first
    ones(2)
    ones(3)
    assert ones(1) is not first


def test_held_as_long_as_the_holder_lives() -> None:
    with used_tables() as held:
        known = weakref.ref(ones(4))
    for count in (5, 6, 7):
        ones(count)
    assert known() is not None
    assert len(held) == 1  # later tables are not held
    held.clear()
    assert known() is None


def test_all_tables_of_the_signals_are_held() -> None:
    signals, x = Signals(load_model(TRAINED / DARCY.name).config), torch.rand(1, 1, 43, 43)
    with used_tables() as held:
        signals(x, x)
    assert len(held) == 3  # two of the features, one of the residual
