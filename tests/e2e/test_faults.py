"""Injected faults under load: every request gets one response, correct or a clear error, and the server recovers."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import torch

from tests.clock import within
from tests.draws import generator
from tests.e2e.raw_client import Answer, head_of, send
from tests.e2e.server_process import ServerProcess
from tests.e2e.traffic import JSON, Call, close_to, predict_call
from tests.service.tiny import save_tiny
from turbofno.models.core.checkpoint import load_model

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from turbofno.models.core.checkpoint import LoadedModel

pytestmark = pytest.mark.timeout(120)

RAISES, NAN, TOO_LARGE = 666.0, 777.0, 888.0
"""First values of a field that make the model raise, return NaN, or run out of memory, in any batch."""
FAULTS = f"""
import itertools
import time
import torch
from turbofno.service.runtime.forward import Forward

forward = Forward.__call__

def faulty(self, x):
    first = x.reshape(len(x), -1)[:, 0]
    if (first == {RAISES}).any():
        raise ZeroDivisionError("poison")
    if len(x) > 4 or (first == {TOO_LARGE}).any():
        raise torch.OutOfMemoryError("CUDA out of memory")
    y, ran = forward(self, x)
    y[first == {NAN}] = float("nan")
    return y, ran

Forward.__call__ = faulty

# At each reading, the wall clock jumps forward or back by days.
true_time, looks = time.time, itertools.count()
time.time = lambda: true_time() + (-1) ** next(looks) * 1e6
"""
CONTROL = ("--model-control", "true")
EXPECTED = {
    RAISES: (500, "failed on this request alone"),
    NAN: (422, "gave NaN or infinity for field 1 of 2"),
    TOO_LARGE: (503, "not enough free memory"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("faults")
    save_tiny(root / "repository", "tiny-1d")
    save_tiny(root / "repository", "other", seed=1)
    return root


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(folder / "repository" / "tiny-1d")


@pytest.fixture(scope="module")
def faulty(folder: Path) -> Iterator[ServerProcess]:
    # on a GPU small batches run as CUDA graphs, which do not call what is patched
    options = (*CONTROL, "--device", "cpu", "--log-level", "warning", "--drain-seconds", "2")
    with ServerProcess(folder / "repository", folder / "log.txt", *options, fault=FAULTS) as server:
        yield server
        assert server.stop() == 0, server.tail()


def field(first: float | None = None) -> np.ndarray[Any, Any]:
    array = generator().standard_normal((1, 1, 16)).astype(np.float32)
    if first is not None:
        array[0, 0, 0] = first
    return array


def good_call(model: LoadedModel, count: int = 1) -> Call:
    fields = np.concatenate([field() for _ in range(count)])
    with torch.inference_mode():
        truth = model.module(torch.from_numpy(fields)).numpy()
    return predict_call("tiny-1d", fields, name="good", truth=truth)


def right(call: Call, answer: Answer) -> None:
    assert answer.status == 200, answer
    assert call.truth is not None
    close_to(np.load(io.BytesIO(answer.body)), call.truth, call.name)


def test_a_culprit_in_a_batch_fails_alone_and_its_mates_are_answered(
    faulty: ServerProcess, model: LoadedModel
) -> None:
    random = generator()
    kinds = random.choice([0.0, 0.0, 0.0, *EXPECTED], 120)

    def call(kind: float) -> Call:
        if not kind:
            return good_call(model, int(random.integers(1, 7)))
        array = np.concatenate([field(), field(kind)])
        return predict_call("tiny-1d", array, name=f"{kind:g}")

    async def main() -> None:
        calls = [call(kind) for kind in kinds]
        answers = await asyncio.gather(*(send(faulty.port, one) for one in calls))
        for kind, one, answer in zip(kinds, calls, answers, strict=True):
            if kind:
                status, says = EXPECTED[kind]
                assert answer.status == status, answer
                assert says in json.loads(answer.body)["detail"]
                assert ("retry-after" in answer.headers) == (status == 503)
            else:
                right(one, answer)
        after = good_call(model, 4)
        answer = await send(faulty.port, after)
        right(after, answer)
        metrics = await send(faulty.port, Call("metrics", "/metrics", b"", method="GET"))
        splits = re.search(
            r'^turbofno_out_of_memory_splits_total\{model="tiny-1d",.*\} (\S+)$',
            metrics.body.decode(),
            re.M,
        )
        assert splits is not None
        assert float(splits[1]) > 0, "no batch was too large"
        within(answer.seconds, 2.0)

    asyncio.run(main())


async def under_load(
    port: int, model: LoadedModel, work: Callable[[], Awaitable[None]], clients: int = 6
) -> list[tuple[Call, Answer]]:
    """Do the work while clients send good requests in a closed loop; return calls and responses."""
    done = asyncio.Event()
    got = []

    async def client() -> None:
        while not done.is_set():
            call = good_call(model)
            got.append((call, await send(port, call)))

    clients_at_work = [asyncio.create_task(client()) for _ in range(clients)]
    try:
        await work()
        await asyncio.sleep(0.2)
    finally:
        done.set()
        await asyncio.gather(*clients_at_work)
    return got


def control(action: str, model: str = "tiny-1d") -> Call:
    return Call(action, f"/v2/repository/models/{model}/{action}", b"{}", JSON)


def test_reload_under_load_fails_no_request(faulty: ServerProcess, model: LoadedModel) -> None:
    async def reload() -> None:
        for _ in range(8):
            answer = await send(faulty.port, control("load"))
            assert answer.status == 200, answer

    got = asyncio.run(under_load(faulty.port, model, reload))
    assert len(got) > 20
    for call, answer in got:
        right(call, answer)


@pytest.mark.parametrize(
    "damage", ["cut short by a full disk", "overwritten", "gone", "half a config", "no config"]
)
def test_a_broken_checkpoint_leaves_the_old_model_serving(
    faulty: ServerProcess, folder: Path, model: LoadedModel, damage: str
) -> None:
    checkpoint = folder / "repository" / "tiny-1d"
    kept = folder / "kept"
    shutil.copytree(checkpoint, kept)
    weights = checkpoint / "model.safetensors"

    async def damaged_reload() -> None:
        if damage == "cut short by a full disk":
            with weights.open("r+b") as file:
                file.truncate(weights.stat().st_size // 2)
        elif damage == "overwritten":
            weights.write_bytes(generator().bytes(weights.stat().st_size))
        elif damage == "gone":
            weights.unlink()
        elif damage == "half a config":
            (checkpoint / "config.json").write_text("{")
        else:
            (checkpoint / "config.json").unlink()
        answer = await send(faulty.port, control("load"))
        assert answer.status == 503, answer
        assert "tiny-1d" in json.loads(answer.body)["error"]
        assert str(folder) not in answer.body.decode()

    try:
        got = asyncio.run(under_load(faulty.port, model, damaged_reload))
    finally:
        shutil.rmtree(checkpoint)
        kept.rename(checkpoint)
    for call, answer in got:
        right(call, answer)
    assert asyncio.run(send(faulty.port, control("load"))).status == 200


@pytest.mark.parametrize("options", [(), ("--frontends", "1", "--devices", "cpu")])
def test_a_full_disk_under_the_log_fails_nothing(
    folder: Path, model: LoadedModel, options: tuple[str, ...]
) -> None:
    # A server writes only its log.
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 2); os.dup2(2, 1)"

    async def reload() -> None:
        assert (await send(server.port, control("load"))).status == 200
        assert (await send(server.port, control("load", "nothing"))).status == 404

    with ServerProcess(
        folder / "repository", folder / "full.txt", *CONTROL, *options, fault=full
    ) as server:
        got = asyncio.run(under_load(server.port, model, reload))
        assert server.stop() == 0
    assert len(got) > 10
    for call, answer in got:
        right(call, answer)
    assert not server.tail(), "something was written elsewhere"


def test_unload_under_load_answers_what_was_accepted_and_refuses_the_rest_clearly(
    faulty: ServerProcess, model: LoadedModel
) -> None:
    async def unload_and_load() -> None:
        await asyncio.sleep(0.2)
        for action in ("unload", "load"):
            answer = await send(faulty.port, control(action))
            assert answer.status == 200, answer

    got = asyncio.run(under_load(faulty.port, model, unload_and_load))
    for call, answer in got:
        if answer.status == 200:
            right(call, answer)
        else:
            assert answer.status == 503, answer
            assert "unloaded" in answer.body.decode() or "LOAD" in answer.body.decode()
    call, answer = got[-1]
    right(call, answer)


def test_every_request_of_a_drain_that_ends_too_early_gets_an_answer(
    folder: Path, model: LoadedModel
) -> None:
    call = predict_call("tiny-1d", field(), name="half sent")
    options = ("--drain-seconds", "0.5")

    async def main(server: ServerProcess) -> list[bytes]:
        connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
        for _, writer in connections:
            writer.write(head_of(call) + call.body[:20])
            await writer.drain()
        # a request in progress counts once its header is read
        async with httpx.AsyncClient(base_url=server.url) as client:
            while "turbofno_inflight_bytes 100.0\n" not in (await client.get("/metrics")).text:
                pass
        server.terminate()
        answers = [await asyncio.wait_for(reader.read(), 10) for reader, _ in connections]
        for _, writer in connections:
            writer.close()
        return answers

    with ServerProcess(folder / "repository", folder / "drain.txt", *options) as server:
        answers = asyncio.run(main(server))
        assert server.stop() == 0, server.tail()
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 503 "), answer
        assert b"before the whole body had come" in answer
        assert b"retry-after: 1" in answer.lower()
