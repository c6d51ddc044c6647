"""Thousands of concurrent good and bad requests: each gets one correct response, and memory does not grow."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import time
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
import torch

from tests.e2e.server_process import ServerProcess
from tests.e2e.traffic import NPY, Call, bad_calls, good_calls, judge, npy
from tests.service.tiny import rollable_module, save_rollable, save_tiny
from turbofno.models.core.checkpoint import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.server_process import Footprint
    from turbofno.models.core.fno import FNO

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "1000"))
"""`make soak` sends two hundred times as many."""
CONNECTIONS = 64
MIB = 1024 * 1024
ROLLOUT = "/v1/models/tiny-flow:rollout?steps="


def rollout_call(module: FNO) -> Call:
    """A short rollout in one response."""
    x = torch.randn(2, 1, 24)
    body, frames = npy(x.numpy()), []
    with torch.inference_mode():
        for _ in range(6):
            x = module(x)
            frames.append(x.numpy())
    return Call("rollout", ROLLOUT + "6", body, NPY, truth=np.stack(frames))


async def _leave_a_rollout(client: httpx.AsyncClient) -> None:
    """Start a long rollout, and disconnect after its first frames."""
    headers = {**NPY, "Accept": "application/vnd.turbofno.frames"}
    body = npy(np.ones((1, 1, 24), np.float32))
    async with client.stream("POST", ROLLOUT + "9000", content=body, headers=headers) as response:
        assert response.status_code == 200
        async for _ in response.aiter_raw():
            break


LATE_THREADS = 8
"""Maximum number of threads that thread pools, for large bodies and for frames, start on demand."""


async def _send_all(url: str, calls: list[Call]) -> list[str]:
    """Send the calls over CONNECTIONS connections; return the request id of each response."""
    identifiers: list[str] = []
    waiting = iter(enumerate(calls))

    async def work() -> None:
        # A client each: one looks through all its connections for each request.
        async with httpx.AsyncClient(base_url=url, timeout=60.0, verify=False) as client:
            for number, call in waiting:
                response = await client.request(
                    call.method,
                    call.path,
                    content=call.body,
                    headers={**call.headers, "X-Request-Id": f"soak-{number}"},
                )
                judge(call, response)
                identifiers.append(response.headers["x-request-id"])
                if number % 100 == 99:
                    await _leave_a_rollout(client)

    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    return identifiers


def _settled(server: ServerProcess, files: int) -> Footprint:
    """The footprint once the server has closed its side of the connections, or after 5 s."""
    until = time.monotonic() + 5.0
    while (now := server.footprint()).files > files and time.monotonic() < until:
        time.sleep(0.05)
    return now


def _left_held(server: ServerProcess) -> dict[str, float]:
    """Resources that requests hold, by metric, once they hold none, or after 5 s: a rollout that was just left ends its step."""
    names = ("inflight_bytes", "shared_memory_bytes", "queue_depth")
    until = time.monotonic() + 5.0
    while True:
        text = httpx.get(server.url + "/metrics", timeout=20).text
        held = {
            name: sum(map(float, re.findall(rf"^turbofno_{name}(?:{{.*}})? (\S+)$", text, re.M)))
            for name in names
        }
        if not any(held.values()) or time.monotonic() > until:
            return held
        time.sleep(0.05)


@pytest.mark.timeout(180 + REQUESTS // 6)
@pytest.mark.parametrize(
    ("growth", "options"),
    [
        # Above the usual variation. A leak of the bodies, some 2 kB each, would exceed it.
        (2 * MIB, ()),
        (4 * MIB, ("--frontends", "2", "--devices", "cpu")),
    ],
    ids=["one", "several"],
)
def test_soak_of_mixed_requests_loses_nothing_and_leaves_nothing_behind(
    tmp_path: Path, growth: int, options: tuple[str, ...]
) -> None:
    repository, flow = tmp_path / "repository", rollable_module()
    for n_dim in (1, 2):
        save_tiny(repository, f"tiny-{n_dim}d", n_dim=n_dim)
    save_rollable(repository, flow)
    tiny = {name: load_model(repository / name) for name in ("tiny-1d", "tiny-2d")}
    # Archives that inflate to the limit have their own test: they are freed only after the response, and some
    # dozens at once would measure max_inflight_bytes instead of a leak.
    bad = [call for call in bad_calls() if "inflates" not in call.name]
    # One grid other than the training grid: its graph is recorded in the warm-up, that of a second one only after a pause.
    good = [call for call in good_calls(tiny) if "(2, 1, 32" not in call.name]
    good.append(rollout_call(flow))
    mixed = [(good if number % 3 else bad) for number in range(REQUESTS)]
    calls = [kind[number % len(kind)] for number, kind in enumerate(mixed)]
    random.Random(0).shuffle(calls)
    with ServerProcess(repository, tmp_path / "log.txt", *options) as server:
        idle = server.footprint().files
        # Memory grows up to the largest peak of concurrent work, in each process: the more requests, the longer.
        for _ in range(2):
            asyncio.run(_send_all(server.url, calls[: max(500, REQUESTS // 4)]))
        before = _settled(server, idle)

        identifiers = asyncio.run(_send_all(server.url, calls))

        assert sorted(identifiers) == sorted(f"soak-{number}" for number in range(REQUESTS))
        after = _settled(server, before.files)
        sys.stdout.write(f"before {before}\nafter  {after}\n")
        assert after.processes == before.processes, server.tail()
        assert after.files <= before.files
        assert after.threads <= before.threads + LATE_THREADS
        assert after.rss_bytes <= before.rss_bytes + growth
        left_held = _left_held(server)
        assert not any(left_held.values()), left_held
        assert server.stop() == 0, server.tail()
        assert "Traceback" not in server.log.read_text(errors="replace"), server.tail()
