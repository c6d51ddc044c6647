"""A front end without HTTP: requests predictions from an engine process as fast as it answers.

`python -m benchmarks.serving.gpu.feeder ENGINE_ENDPOINT NAME MODEL SIDE CONCURRENCY SECONDS MAX_BATCH`; prints a line when the engine is ready, then JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import numpy as np
import uvloop

from turbofno.service.engine.interface import PredictRequest
from turbofno.service.metrics import Metrics
from turbofno.service.processes.messages import Peer
from turbofno.service.processes.remote_engine import RemoteEngine
from turbofno.service.settings import Settings

_WARM_UP_SECONDS = 0.5


async def main() -> None:
    """Send requests; print the number of answers in the measured seconds and in total, and the CPU time."""
    endpoint, name, model, side, concurrency, seconds, max_batch = sys.argv[1:]
    settings, n = Settings(max_batch_size=int(max_batch)), int(side)
    engine = RemoteEngine(name.encode(), settings, Metrics())
    engine.set_engines([Peer(b"engine", endpoint)])
    while not engine.ready:  # noqa: ASYNC110 - it has no event for that
        await asyncio.sleep(0.02)
    print("ready", flush=True)
    config = engine.config(model)
    field = np.random.default_rng().standard_normal((1, 1, n, n), np.float32)
    began = time.perf_counter() + _WARM_UP_SECONDS
    end = began + float(seconds)
    done = in_time = 0

    async def one() -> None:
        nonlocal done, in_time
        while time.perf_counter() < end:
            request = PredictRequest(
                model=model, version=None, fields=field, request_id=name, config=config,
                deadline=time.monotonic() + settings.request_deadline_seconds,
            )  # fmt: skip
            result = await engine.predict(request)
            done += 1
            in_time += began <= time.perf_counter() < end
            del request, result

    before = time.process_time()
    await asyncio.gather(*(one() for _ in range(int(concurrency))))
    print(json.dumps({"fields": in_time, "all": done, "cpu": time.process_time() - before}))


if __name__ == "__main__":
    uvloop.run(main())
