"""Tables are made once, forgotten when others have come since, and kept for whoever holds them."""

from __future__ import annotations

import gc
import weakref

import torch

from models.checkpoint import load_model
from models.problems import DARCY
from models.trust.calibrate import ZOO
from models.trust.signals import Signals
from models.trust.tables import remembered
from turbofno_ops._held import holding


@remembered(2)
def ones(count: int) -> torch.Tensor:
    return torch.ones(count)


def test_made_once_until_others_have_come() -> None:
    first = ones(1)
    assert ones(1) is first
    ones(2)
    ones(3)
    assert ones(1) is not first


def test_held_as_long_as_the_holder_lives() -> None:
    with holding() as held:
        known = weakref.ref(ones(4))
    for count in (5, 6, 7):
        ones(count)
    gc.collect()
    assert known() is not None
    assert len(held) == 1  # what came after is not held
    held.clear()
    assert known() is None


def test_the_signals_say_all_their_tables() -> None:
    signals, x = Signals(load_model(ZOO / DARCY.name).config), torch.rand(1, 1, 43, 43)
    with holding() as held:
        signals(x, x)
    assert len(held) == 2  # of the features, of the residual
