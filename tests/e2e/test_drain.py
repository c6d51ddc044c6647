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

from tests.draws import generator
from tests.e2e.server_process import ServerProcess
from tests.e2e.traffic import Call, judge, predict_call
from tests.service.tiny import save_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from turbofno.models.core.fno import FNO

REQUESTS = 24
HELD_UP = """
import pathlib
import time
from turbofno.service.runtime.model_instance import ModelInstance

start = ModelInstance.start

def held_up(slot, parts):
    while pathlib.Path("hold").exists():
        time.sleep(0.01)
    return start(slot, parts)

ModelInstance.start = held_up
"""
"""The device computes nothing while this file exists beside the log."""


@pytest.mark.timeout(120)
def test_sigterm_answers_what_was_accepted_refuses_the_rest_and_exits_with_0(
    tmp_path: Path,
) -> None:
    module = save_tiny(tmp_path / "repository", "tiny-2d", n_dim=2)
    calls = [_call(module) for _ in range(REQUESTS)]
    with ServerProcess(tmp_path / "repository", tmp_path / "log.txt", fault=HELD_UP) as server:
        hold = tmp_path / "hold"
        hold.touch()
        answers, late = asyncio.run(_terminate_under_load(server, calls, hold))
        assert server.stop() == 0, server.tail()
    for call, answer in zip(calls, answers, strict=True):
        judge(call, answer)
    assert late == ["503 with Retry-After"] * REQUESTS
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)
    assert "Traceback" not in server.log.read_text(), server.tail()


def _call(module: FNO) -> Call:
    fields = generator().standard_normal((16, 1, 16, 16)).astype(np.float32)
    with torch.inference_mode():
        truth = module(torch.from_numpy(fields)).numpy()
    return predict_call("tiny-2d", fields, name="accepted", truth=truth)


async def _terminate_under_load(
    server: ServerProcess, calls: list[Call], hold: Path
) -> tuple[list[httpx.Response], list[str]]:
    """Queue all, send SIGTERM, try the same again, and only then let the device compute.

    Returns the answers to the accepted requests, and what became of each new one.
    """
    limits = httpx.Limits(max_connections=REQUESTS)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=60.0) as client:
        work = [asyncio.create_task(_send(client, call)) for call in calls]
        end = time.monotonic() + 15.0
        while await _admitted_bytes(server.url) < sum(len(call.body) for call in calls):
            assert time.monotonic() < end, "the requests were not admitted"
            await asyncio.sleep(0.01)
        server.terminate()
        while (await _get(server.url, "/readyz")).status_code == 200:
            assert time.monotonic() < end, "the signal changed nothing"
            await asyncio.sleep(0.01)
        late = [await _try_new(server.url, call) for call in calls]
        await asyncio.to_thread(hold.unlink)
        return await asyncio.gather(*work), late


async def _send(client: httpx.AsyncClient, call: Call) -> httpx.Response:
    return await client.post(call.path, content=call.body, headers=call.headers)


async def _get(url: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
        return await client.get(path)


async def _admitted_bytes(url: str) -> float:
    text = (await _get(url, "/metrics")).text
    (value,) = re.findall(r"^turbofno_inflight_bytes (\S+)$", text, re.MULTILINE)
    return float(value)


async def _try_new(url: str, call: Call) -> str:
    async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
        response = await _send(client, call)
    told = " with Retry-After" if "retry-after" in response.headers else ""
    return f"{response.status_code}{told}"
