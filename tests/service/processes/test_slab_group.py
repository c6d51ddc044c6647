"""The first rank's side of an engine of several devices: which fields it cuts, and what it takes for a lost group."""

from __future__ import annotations

import asyncio
import threading
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import pytest
import torch

from tests.service.tiny import tiny_config
from turbofno.models.core.checkpoint import LoadedModel
from turbofno.models.core.fno import FNO
from turbofno.service.engine.out_of_memory import out_of_memory
from turbofno.service.errors import DeviceLost
from turbofno.service.metrics import Metrics
from turbofno.service.processes.launch import Launch
from turbofno.service.processes.memory import SlotMemory
from turbofno.service.processes.slab_commands import Answer, Done, Failed
from turbofno.service.processes.slab_follower import _mapped
from turbofno.service.processes.slab_group import Rank, SlabGroup
from turbofno.service.processes.slab_model import LARGE, SlabModel
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from turbofno.service.processes.child_process import ChildProcess

SETTINGS = Settings(frontends=1, devices="cpu+cpu")
LAUNCH = Launch("engine", 0, 1, 1, "", SETTINGS)
PREDICT = ("predict", 1, [], [])


def group_whose_other_rank_answers(
    answer: Answer | None, own: Callable[[], float] = lambda: 0.0
) -> SlabGroup:
    """A group of two whose other rank answers once, or ends; its first rank predicts by `own`."""
    group = SlabGroup(LAUNCH, torch.device("cpu"), Metrics())
    group.slabs.predict = lambda *_: own()  # type: ignore[method-assign]
    ours, theirs = Pipe()
    group._ranks = [Rank(1, cast("ChildProcess", None), ours)]

    def run() -> None:
        theirs.recv_bytes()
        if answer is not None:
            theirs.send_bytes(msgspec.msgpack.encode(answer))
        theirs.close()

    threading.Thread(target=run, daemon=True).start()
    return group


def failing() -> float:
    raise MemoryError("no memory")


def test_the_values_of_all_ranks_are_given_in_their_order() -> None:
    group = group_whose_other_rank_answers(Done(2.5, 0.25, 7), lambda: 1.5)
    assert group.run(*PREDICT, key=0, field_steps=1) == [1.5, 2.5]
    assert not group.lost
    assert group._metrics.rank_seconds.labels("engine-0", "1")._value.get() == 0.25


def test_an_error_that_all_ranks_have_is_the_error_of_the_command() -> None:
    group = group_whose_other_rank_answers(Failed("MemoryError: no memory"), failing)
    with pytest.raises(MemoryError):
        group.run(*PREDICT, key=0, field_steps=1)
    assert not group.lost


@pytest.mark.parametrize(
    ("answer", "own_fails", "why"),
    [
        (Failed("RuntimeError: why"), False, "rank 1 failed: RuntimeError: why"),
        (
            Failed("RuntimeError: why"),
            True,
            "rank 0 failed: MemoryError: no memory, rank 1 failed: RuntimeError: why",
        ),
        (Done(0.0, 0.0, 0), True, "rank 0 failed: MemoryError: no memory"),
        (None, False, "a rank ended"),
    ],
)
def test_a_group_whose_ranks_differ_is_lost(
    answer: Answer | None, own_fails: bool, why: str
) -> None:
    group = group_whose_other_rank_answers(answer, failing if own_fails else lambda: 0.0)
    with pytest.raises(DeviceLost) as raised:
        group.run(*PREDICT, key=0, field_steps=1)
    assert raised.value.headers["Retry-After"] == "1"
    assert group.lost == why


def test_a_group_that_waits_for_a_failed_first_rank_is_lost_for_its_reason() -> None:
    async def lost() -> str:
        group = SlabGroup(LAUNCH, torch.device("cpu"), Metrics())
        group._hang_seconds = 0.1
        group.slabs.predict = lambda *_: failing()  # type: ignore[method-assign]
        ours, theirs = Pipe()
        process = SimpleNamespace(wait=asyncio.Event().wait, returncode=None)
        group._ranks = [Rank(1, cast("ChildProcess", process), ours)]
        command = asyncio.create_task(asyncio.to_thread(group.run, *PREDICT, key=0, field_steps=1))
        await group.watch()
        theirs.close()
        with pytest.raises(DeviceLost):
            await command
        return group.lost

    why = asyncio.run(lost())
    assert why == "rank 0 failed: MemoryError: no memory; the others did not end within 0 s"


def test_a_model_that_another_rank_cannot_load_is_refused_with_its_reason() -> None:
    group = group_whose_other_rank_answers(Failed("ValueError: it was changed"))
    with pytest.raises(ValueError, match="rank 1 cannot load it: ValueError: it was changed"):
        group.load(1, Path("folder"), "0", "fp32")
    assert not group.lost


def test_a_model_that_another_rank_has_no_memory_for_is_one_to_try_again() -> None:
    group = group_whose_other_rank_answers(Failed("OutOfMemoryError: CUDA out of memory. Tried .."))
    with pytest.raises(RuntimeError, match="rank 1 cannot load it: OutOfMemoryError") as raised:
        group.load(1, Path("folder"), "0", "fp32")
    assert out_of_memory(raised.value)


def test_arrays_from_elsewhere_are_copied_once_into_shared_memory() -> None:
    group = SlabGroup(LAUNCH, torch.device("cpu"), Metrics())
    fields = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    copy = group.shared(fields)
    assert not group.shares(fields)
    assert group.shares(copy)
    assert group.shared(copy) is copy
    np.testing.assert_array_equal(copy, fields)


def test_a_command_on_a_new_grid_may_take_longer_and_less_once_this_rank_failed() -> None:
    limits = []

    def failing_later() -> float:
        assert group._running is not None
        limits.append(group._running.left)
        return failing()

    group = group_whose_other_rank_answers(Failed("MemoryError: no memory"), failing_later)
    with pytest.raises(MemoryError):
        group.run(*PREDICT, key=0, field_steps=3)
    assert limits == [SETTINGS.hang_seconds + 60 + 3 * 10]


def test_the_memory_of_a_front_end_that_died_is_replaced() -> None:
    memory = SlotMemory(1 << 20)
    attachment = msgspec.structs.replace(memory.attachment(), pid=2**22 + 1)
    fields = _mapped(attachment).view((0, (4,)))
    assert not fields.any()


@pytest.mark.parametrize(
    ("slabs", "points", "whole"),
    [
        (None, 64, "of the card's memory"),
        (None, 65, ""),
        (True, 8, ""),
        (False, 65, "slabs: false"),
    ],
)
def test_a_field_is_cut_by_its_size_unless_the_configuration_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slabs: bool | None, points: int, whole: str
) -> None:
    config = tiny_config(n_dim=2).model_copy(update={"slabs": slabs})
    hidden = 4 * config.architecture.hidden_channels * 64 * 64
    card = SimpleNamespace(total_memory=int(hidden / LARGE))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    group = SlabGroup(LAUNCH, torch.device("cpu"), Metrics())
    group.device = torch.device("cuda", 0)
    supported = SimpleNamespace(refusal=lambda _: None)
    monkeypatch.setattr(group.slabs, "network", lambda _: supported)
    model = SlabModel(group, tmp_path, LoadedModel(config, FNO(config.architecture)), "fp32")
    reason = model.why_whole((points, points))
    assert bool(reason) == bool(whole)
    assert whole in reason


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[SlabGroup]:
    """A group of one, which computes."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield SlabGroup(LAUNCH, torch.device("cpu"), Metrics())
    torch.distributed.destroy_process_group()


def test_a_field_of_one_axis_runs_whole_and_says_so(alone: SlabGroup, tmp_path: Path) -> None:
    config = tiny_config().model_copy(update={"slabs": True})
    model = SlabModel(alone, tmp_path, LoadedModel(config, FNO(config.architecture)), "fp32")
    model.load()
    assert "fields of one grid axis are not cut" in model.why_whole((16,))


def test_the_states_of_rollouts_are_freed_when_nobody_has_a_part_of_them(
    alone: SlabGroup, tmp_path: Path
) -> None:
    config = tiny_config(n_dim=2).model_copy(update={"slabs": True})
    arch = config.architecture.model_copy(update={"out_channels": 1})
    config = config.model_copy(update={"architecture": arch, "outputs": config.inputs})
    module = FNO(arch).eval()
    model = SlabModel(alone, tmp_path, LoadedModel(config, module), "fp32")
    model.load()
    fields = np.random.default_rng(1).standard_normal((3, 1, 12, 10), np.float32)
    turn = model.advance([fields[:2], fields[2:]], [[], [1]], steps=1)
    part = turn.states[0][1:]
    assert len(part) == 1
    del turn
    assert list(alone.slabs._states) == [part.number]
    last = model.advance([part], [[2]], steps=2)
    with torch.inference_mode():
        truth = module(module(module(torch.from_numpy(fields[1:2])))).numpy()
    np.testing.assert_allclose(last.frames[0][2], truth, rtol=1e-4, atol=1e-6)
    assert last.excess[0].shape == (2, 1)
    del part, last
    assert not alone.slabs._states


def test_a_model_that_nobody_has_is_removed(alone: SlabGroup, tmp_path: Path) -> None:
    config = tiny_config(n_dim=2).model_copy(update={"slabs": True})
    model = SlabModel(alone, tmp_path, LoadedModel(config, FNO(config.architecture)), "fp32")
    model.load()
    assert alone.slabs._networks
    del model
    assert not alone.slabs._networks
