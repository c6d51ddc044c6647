"""CPU time of a small binary prediction by part of the service, without sockets: `python -m benchmarks.serving.budget`.

Connections of the server's protocol class get requests as bytes; their answers are dropped. CPU time varies with other load
on the machine, though less than wall time: run two commits in turn, and compare the numbers of calls, which are exact.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from uvicorn.server import ServerState

from benchmarks.serving.checkpoint import LIGHT, write_light
from benchmarks.serving.forms import TURBOFNO
from benchmarks.serving.servers import MAX_BATCH, MAX_WAITING
from benchmarks.timing import no_options, print_table, save
from turbofno.service import logs
from turbofno.service.app import create_app
from turbofno.service.pipeline.worker import THREAD_NAME
from turbofno.service.server import server_config
from turbofno.service.settings import Settings
from turbofno.service.system import SWITCH_SECONDS, keep_imports, keep_models

_REQUESTS = 1500
_ROUNDS = 7
_PARTS = {
    "HTTP: parse, write (uvicorn, httptools)": ("uvicorn/", "httptools", "http/edge.py", "http/exchange.py", "http/eager_task.py"),
    "call, checks by the headers, access log": (
        "http/call.py", "http/operations.py", "http/route.py", "http/reception.py", "http/guard.py", "http/parameters.py",
        "http/served.py", "http/shedding.py", "http/access_log.py", "service/logs.py",
    ),
    "read the body": ("http/body.py", "pipeline/admission.py"),
    "decode, check, encode": (
        "service/codec/", "http/offload.py", "http/oip_infer.py", "http/trust.py", "service/answer_warnings.py", "numpy/",
    ),
    "queue, batch, hand out": ("service/pipeline/", "service/engine/", "service/runtime/", "http/inference.py"),
    "metrics": ("prometheus_client/", "service/metrics.py", "service/histogram_batch.py", "service/shared_sums.py"),
    "asyncio, contextlib": ("asyncio/", "contextlib.py", "_weakrefset.py"),
}  # fmt: skip
"""Part -> pieces of file paths. A function belongs to the first part of which its path contains a piece."""


class Wire:
    """A transport that is always writable and drops what is written."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        """Drop the data."""

    writelines = write

    def close(self) -> None:
        raise RuntimeError("the server closed the connection")

    abort = pause_reading = resume_reading = close


class Load:
    """Connections, each with one request at a time."""

    def __init__(self, app: Any, settings: Settings, connections: int) -> None:
        config = server_config(app)
        config.load()
        field = np.random.default_rng().standard_normal((1, 1, 64, 64), np.float32)
        self._request = TURBOFNO["binary"].request(field, model=LIGHT, port=settings.port)
        self._left = self._active = 0
        self._done = asyncio.Event()
        loop, answered = asyncio.get_running_loop(), self._send
        protocol: Any = config.http_protocol_class

        class Answered(protocol):  # type: ignore[misc]
            def on_response_complete(self) -> None:
                super().on_response_complete()
                loop.call_soon(answered, self)

        state = ServerState()
        self._connections = [Answered(config, state, {}) for _ in range(connections)]
        for connection in self._connections:
            connection.connection_made(Wire())

    def _send(self, connection: Any) -> None:
        if self._left:
            self._left -= 1
            connection.data_received(self._request)
            return
        self._active -= 1
        if not self._active:
            self._done.set()

    async def run(self, requests: int) -> None:
        """Send that many requests; return when all are answered."""
        self._left, self._active = requests, len(self._connections)
        self._done.clear()
        for connection in self._connections:
            self._send(connection)
        await self._done.wait()


async def measure(repository: Path, connections: int) -> list[dict[str, Any]]:
    """A row with CPU microseconds of the threads, then a row for each part of the event loop's work."""
    settings = Settings(
        model_repository=repository, models=(LIGHT,), device="cpu", torch_threads=1, port=8080,
        max_batch_size=MAX_BATCH, max_queued_fields_per_model=MAX_WAITING, max_fields_per_request=MAX_BATCH, log_level="warning",
    )  # fmt: skip
    logs.configure(settings)
    app = create_app(settings)
    keep_imports()
    async with app.router.lifespan_context(app):
        engine = app.state.context.engine
        while not engine.ready:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.02)
        keep_models()
        load = Load(app, settings, connections)
        await load.run(_REQUESTS)
        idents = [t.ident for t in threading.enumerate() if t.name.startswith(THREAD_NAME)]
        clocks = [time.pthread_getcpuclockid(ident) for ident in idents if ident is not None]
        rounds = []
        for _ in range(_ROUNDS):
            loop, device = time.thread_time(), sum(map(time.clock_gettime, clocks))
            await load.run(_REQUESTS)
            rounds.append(
                (time.thread_time() - loop, sum(map(time.clock_gettime, clocks)) - device)
            )
        loop, device = (min(column) / _REQUESTS * 1e6 for column in zip(*rounds, strict=True))
        counters = await engine.counters(LIGHT, "1")
        profile = cProfile.Profile()
        profile.enable()
        await load.run(_REQUESTS)
        profile.disable()
    whole = {
        "connections": connections,
        "event loop us": loop,
        "device thread us": device,
        "fields a batch": counters.inference_count / counters.execution_count,
    }
    parts = _parts(profile)
    whole["calls"] = sum(part["calls"] for part in parts)
    print_table("CPU time of a request (best round), calls on the event loop", [whole])
    print_table("The event loop by parts", parts)
    return [whole, *({"connections": connections, **part} for part in parts)]


def _parts(profile: cProfile.Profile) -> list[dict[str, Any]]:
    calls: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    stats: dict[tuple[str, int, str], Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, name), (_, count, own, _, callers) in stats.items():
        if file != "~":
            calls[_part(file)] += count
            seconds[_part(file)] += own
        elif "SimpleQueue" not in name:
            # time in SimpleQueue is the device thread waiting for the GIL
            for (caller, _, _), (_, times, own_for, _) in callers.items():
                calls[_part(caller)] += times
                seconds[_part(caller)] += own_for
    return [
        {
            "part": part,
            "calls": calls[part] / _REQUESTS,
            "profile %": 100 * seconds[part] / seconds.total(),
        }
        for part in (*_PARTS, "other")
    ]


def _part(file: str) -> str:
    return next((part for part, names in _PARTS.items() if any(n in file for n in names)), "other")


def main() -> None:
    """Measure with 1 and 32 connections; write results/serving_budget.jsonl."""
    sys.setswitchinterval(SWITCH_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        write_light(Path(folder))
        found = []
        for connections in (1, 32):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found += runner.run(measure(Path(folder), connections))
    print(f"\nwritten to {save('serving_budget', found)}")


if __name__ == "__main__":
    no_options(__doc__)
    main()
