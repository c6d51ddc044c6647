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
from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno.models.core.checkpoint import LoadedModel
from turbofno.models.core.fno import FNO
from turbofno.service.engine.out_of_memory import out_of_memory
from turbofno.service.processes.memory import SlotMemory
from turbofno.service.runtime import slabs as slabs_module
from turbofno.service.runtime.page_locked import lock
from turbofno.service.runtime.slabs import Slabs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from turbofno.service.engine.interface import Fields


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=needs_kernels)])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[torch.device]:
    """A device, in a group of its own."""
    device = torch.device(request.param)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{tmp_path / 'store'}",
        rank=0,
        world_size=1,
        device_id=device if device.type == "cuda" else None,
    )
    yield device
    dist.destroy_process_group()


@pytest.fixture
def modules() -> dict[int, FNO]:
    torch.manual_seed(11)
    return {number: FNO(tiny_config(n_dim=2).architecture).eval() for number in (1, 2)}


@pytest.fixture
def slabs(device: torch.device, modules: dict[int, FNO]) -> Iterator[Slabs]:
    slabs = Slabs(device)
    for number, module in modules.items():
        slabs.add(number, LoadedModel(tiny_config(n_dim=2), module), "fp32")
    yield slabs
    # NCCL waits for graphs that hold its collectives.
    for number in modules:
        slabs.clear(number)


def predict(slabs: Slabs, model: int, points: int) -> float:
    fields = generator().standard_normal((2, 1, points, points), np.float32)
    output = np.full((2, 2, points, points), np.nan, np.float32)
    total = slabs.predict(model, [fields], [output])
    assert math.isclose(total, float(output.sum()), rel_tol=1e-4, abs_tol=1e-3)
    return total


def assert_right(
    slabs: Slabs, module: FNO, inputs: Sequence[Fields], outputs: Sequence[Fields]
) -> None:
    for output in outputs:
        output.fill(np.nan)
    total = slabs.predict(2, inputs, outputs)
    with torch.no_grad():
        truth = module.double()(torch.from_numpy(np.concatenate(inputs)).double())
    found = torch.from_numpy(np.concatenate(outputs))
    assert (found - truth).norm() < 1e-5 * truth.norm()
    assert math.isclose(total, float(truth.sum()), rel_tol=1e-4, abs_tol=1e-2)


def test_many_fields_of_several_callers_each_get_their_own_result(
    slabs: Slabs, modules: dict[int, FNO], device: torch.device
) -> None:
    on_gpu = device.type == "cuda"
    inputs = [torch.randn(n, 1, 48, 40, pin_memory=on_gpu).numpy() for n in (3, 1, 0, 8)]
    outputs = [torch.empty(len(x), 2, 48, 40, pin_memory=on_gpu).numpy() for x in inputs]
    for _ in range(20 if on_gpu else 1):
        assert_right(slabs, modules[2], inputs, outputs)


def test_fields_in_memory_whose_start_is_page_locked(
    slabs: Slabs, modules: dict[int, FNO], device: torch.device
) -> None:
    memory = SlotMemory(4 << 20, kept=1 << 20)
    if device.type == "cuda":
        lock(memory.bytes, 1 << 20, device).join()
    inputs, outputs = (
        [memory.array((1, channels, 300, 300)) for _ in range(3)] for channels in (1, 2)
    )
    for x in inputs:
        x[:] = generator().standard_normal(x.shape, np.float32)
    starts = [memory.span(array)[0] for array in (*inputs, *outputs)]
    assert min(starts) == 0
    assert max(starts) > 1 << 20
    assert_right(slabs, modules[2], inputs, outputs)


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
