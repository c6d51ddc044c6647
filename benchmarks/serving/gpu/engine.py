"""The engine process without HTTP: feeders send it requests as fast as it answers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.serving.gpu.stack import Setup, cpu_seconds
from benchmarks.serving.servers import ROOT
from turbofno.service.processes.channel import Channel, new_endpoint
from turbofno.service.processes.fork_server import ForkServer
from turbofno.service.processes.launch import Launch
from turbofno.service.processes.messages import Heartbeat, Message
from turbofno.service.settings import Settings

_READY_SECONDS = 120.0


def row(setup: Setup, *, side: int, concurrency: int, seconds: float) -> dict[str, Any]:
    """The row for requests of one field from `setup.clients` feeders, with `concurrency` requests at a time."""
    settings = Settings(
        model_repository=setup.checkpoint.parent,
        models=(setup.checkpoint.name,),
        device="cpu" if setup.devices == "cpu" else f"cuda:{setup.devices.split(',')[0]}",
        max_batch_size=setup.max_batch,
        log_level="warning",
    )
    return asyncio.run(_fed(setup, settings, side, concurrency, seconds))


async def _fed(
    setup: Setup, settings: Settings, side: int, concurrency: int, seconds: float
) -> dict[str, Any]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def receive(_: bytes, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, Heartbeat) and message.endpoint and not ready.done():
                ready.set_result(message.endpoint)

    supervisor = Channel(receive).listen(endpoint := new_endpoint())
    launch = Launch("engine", 0, 1, os.getpid(), endpoint, settings)
    fork_server = ForkServer()
    engine = await fork_server.start(launch)
    try:
        at = await asyncio.wait_for(ready, _READY_SECONDS)
        command = [sys.executable, "-m", "benchmarks.serving.gpu.feeder", at]
        share = str(concurrency // setup.clients)
        feeders = [
            await asyncio.create_subprocess_exec(
                *command, f"feeder-{i}", setup.checkpoint.name, str(side), share, str(seconds),
                str(setup.max_batch),
                stdout=subprocess.PIPE, cwd=ROOT,
            )
            for i in range(setup.clients)
        ]  # fmt: skip
        for one in feeders:
            # It prints a line once the model is loaded.
            assert one.stdout is not None
            await one.stdout.readline()
        before = _cpu_seconds(engine.pid)
        told = [json.loads((await one.communicate())[0]) for one in feeders]
        after = _cpu_seconds(engine.pid)
    finally:
        supervisor.close()
        engine.kill()
        await engine.wait()
        await fork_server.close()
    all_fields = sum(one["all"] for one in told)
    return {
        "model": setup.checkpoint.name,
        "max batch": setup.max_batch,
        "load": f"{setup.clients} feeders, {concurrency} concurrent fields",
        "fields/s": sum(one["fields"] for one in told) / seconds,
        "engine CPU us/field": (after[0] - before[0]) / all_fields * 1e6,
        "engine loop CPU us/field": (after[1] - before[1]) / all_fields * 1e6,
        "feeder CPU us/field": sum(one["cpu"] for one in told) / all_fields * 1e6,
    }


def _cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU seconds of the process and of its event loop."""
    return sum(cpu_seconds(pid)), sum(cpu_seconds(pid, main_thread=True))
