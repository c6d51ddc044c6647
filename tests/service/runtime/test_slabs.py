"""One rank's part of models that are cut, in a group of one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.draws import generator
from tests.service.tiny import tiny_config
from turbofno.models.core.checkpoint import LoadedModel
from turbofno.models.core.fno import FNO
from turbofno.service.engine.out_of_memory import out_of_memory
from turbofno.service.runtime import slabs as slabs_module
from turbofno.service.runtime.slabs import Slabs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def slabs(tmp_path: Path) -> Iterator[Slabs]:
    store = tmp_path / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    slabs = Slabs(torch.device("cpu"))
    config = tiny_config(n_dim=2)
    for number in (1, 2):
        loaded = LoadedModel(config, FNO(config.architecture).eval())
        slabs.add(number, loaded, "fp32")
    yield slabs
    dist.destroy_process_group()


def predict(slabs: Slabs, model: int, points: int) -> float:
    fields = generator().standard_normal((2, 1, points, points), np.float32)
    output = np.full((2, 2, points, points), np.nan, np.float32)
    total = slabs.predict(model, [fields], [output])
    assert math.isclose(total, float(output.sum()), rel_tol=1e-4, abs_tol=1e-3)
    return total


def test_a_field_that_lacks_memory_is_refused_after_all_graphs_were_freed(
    slabs: Slabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, cleared = [0.0], []
    monkeypatch.setattr(slabs_module, "free_bytes", lambda _: free[0])
    clear = slabs.clear
    monkeypatch.setattr(slabs, "clear", lambda number: (cleared.append(number), clear(number)))
    with pytest.raises(torch.OutOfMemoryError) as raised:
        predict(slabs, 1, 16)
    assert out_of_memory(raised.value)
    assert set(cleared) == {1, 2}
    free[0] = float(slabs.network(1).field_bytes((16, 16)))
    predict(slabs, 1, 16)
    # It has what it needs for this grid, whatever is free now, but not for a larger one.
    free[0] = 0.0
    predict(slabs, 1, 16)
    with pytest.raises(torch.OutOfMemoryError):
        predict(slabs, 1, 32)


def test_a_model_that_was_removed_or_never_added_may_be_cleared(slabs: Slabs) -> None:
    slabs.remove(2)
    for number in (2, 3):
        slabs.clear(number)
        slabs.remove(number)
    predict(slabs, 1, 16)
