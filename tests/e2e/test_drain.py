"""SIGTERM under load: accepted requests are answered, new ones refused, and the exit code is 0."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
import torch

from models.checkpoint import save_model
from models.fno import FNO
from tests.e2e.server_process import ServerProcess
from tests.e2e.traffic import Call, judge, predict_call
from tests.service.tiny import tiny_config

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = 24


@pytest.fixture
def slow_call(tmp_path: Path) -> Call:
    """A request to a model large enough that a queue of them outlasts the signal."""
    config = tiny_config("slow-2d", n_dim=2)
    large = {"hidden_channels": 48, "n_layers": 4}
    config = config.model_copy(
        update={"architecture": config.architecture.model_copy(update=large)}
    )
    torch.manual_seed(0)
    module = FNO(config.architecture).eval()
    save_model(tmp_path / "repository" / config.name, config, module)
    fields = np.random.default_rng(0).standard_normal((16, 1, 64, 64)).astype(np.float32)
    with torch.inference_mode():
        truth = module(torch.from_numpy(fields)).numpy()
    return predict_call(config.name, fields, name="accepted", truth=truth)


@pytest.mark.timeout(120)
def test_sigterm_answers_what_was_accepted_refuses_the_rest_and_exits_with_0(
    slow_call: Call, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path / "repository", tmp_path / "log.txt") as server:
        accepted, refused = asyncio.run(_terminate_under_load(server, slow_call))
        assert server.stop() == 0, server.tail()
    assert len(accepted) == REQUESTS
    for response in accepted:
        judge(slow_call, response)
    assert refused, "all work was done before a new request could be tried"
    assert set(refused) <= {"503 with Retry-After", "no connection"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)
    assert "Traceback" not in server.log.read_text(), server.tail()


async def _terminate_under_load(
    server: ServerProcess, call: Call
) -> tuple[list[httpx.Response], list[str]]:
    """Fill the queue, send SIGTERM, and try new requests for as long as accepted ones run.

    Returns the answers to the accepted requests, and what became of each new one.
    """
    limits = httpx.Limits(max_connections=REQUESTS)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=60.0) as client:
        work = [asyncio.create_task(_send(client, call)) for _ in range(REQUESTS)]
        until = time.monotonic() + 30.0
        while await _admitted_bytes(server.url) < REQUESTS * len(call.body):
            assert not any(task.done() for task in work), "the work is too small for this test"
            assert time.monotonic() < until, "the requests were not admitted"
            await asyncio.sleep(0.01)
        server.terminate()
        await asyncio.sleep(0.05)
        outcomes = []
        while not all(task.done() for task in work):
            outcomes.append(await _try_new(server.url, call))
            await asyncio.sleep(0.05)
        return await asyncio.gather(*work), outcomes


async def _send(client: httpx.AsyncClient, call: Call) -> httpx.Response:
    return await client.post(call.path, content=call.body, headers=call.headers)


async def _admitted_bytes(url: str) -> float:
    async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
        text = (await client.get("/metrics")).text
    (value,) = re.findall(r"^turbofno_inflight_bytes (\S+)$", text, re.MULTILINE)
    return float(value)


async def _try_new(url: str, call: Call) -> str:
    try:
        async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
            response = await _send(client, call)
    except httpx.NetworkError:
        return "no connection"
    told = " with Retry-After" if "retry-after" in response.headers else ""
    return f"{response.status_code}{told}"
