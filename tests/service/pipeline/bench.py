"""A running scheduler with a model on small arrays."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import torch

from tests.service.pipeline.asking import ask
from turbofno.service.engine.interface import Fields, PredictRequest
from turbofno.service.engine.runnable import ModelOutput, Ran
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.scheduler import Scheduler
from turbofno.service.pipeline.ticket import Kind, Ticket
from turbofno.service.settings import Settings

BAD, NAN, HUGE, HUGE_TENSOR = 666.0, 777.0, 888.0, 999.0
"""First values that make the model raise, answer NaN, or run out of memory (in numpy, in torch)."""


LARGE = tuple(float(value % 500) for value in range(4000))


class ManualClock:
    """Stands in for the module `time`."""

    now = 1.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


class Doubler:
    """output = 2 * input. A gate lets a test block the device; `sizes` and `values` record the batches."""

    name, version = "doubler", "1"

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.values: list[list[float]] = []
        """First value of each field."""
        self.freed = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.seconds = 0.0
        self.threads: list[int] = []

    def start(
        self, parts: Sequence[Fields], output_buffers: Sequence[Fields] = ()
    ) -> Callable[[], ModelOutput]:
        del output_buffers
        output = self.run(np.concatenate(parts))
        return lambda: output

    def free_memory(self) -> None:
        self.freed += 1

    def run(self, fields: Fields) -> ModelOutput:
        self.entered.set()
        assert self.gate.wait(10)
        self.sizes.append(len(fields))
        self.values.append(fields[:, 0, 0].tolist())
        self.threads.append(threading.get_ident())
        time.sleep(self.seconds)
        if (fields[:, 0, 0] == BAD).any():
            raise ZeroDivisionError("poison")
        if (fields[:, 0, 0] == HUGE).any():
            raise MemoryError
        if (fields[:, 0, 0] == HUGE_TENSOR).any():
            torch.empty(1 << 50)
        output = fields * 2
        output[fields[:, 0, 0] == NAN] = np.nan
        return ModelOutput(output, Ran("fake"))


def fields(*values: float, grid: int = 4) -> Fields:
    array = np.zeros((len(values), 1, grid), np.float32)
    array[:, 0, :] = np.asarray(values, np.float32)[:, None]
    return array


def request(*values: float, **options: Any) -> PredictRequest:
    return PredictRequest("doubler", None, fields(*values), f"id-{values[0]:g}", **options)


class Bench:
    """A running scheduler and its parts."""

    def __init__(self, **settings: Any) -> None:
        self.metrics = Metrics()
        self.settings = Settings(**settings)
        self.capacity = QueueCapacity(self.settings, self.metrics)
        self.ended: list[Ticket] = []
        self.scheduler = Scheduler(
            self.settings, self.metrics, self.capacity, on_ended=self.ended.extend
        )
        self.model = Doubler()

    def submit(self, *values: float, **options: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(ask(self.scheduler, self.model, request(*values, **options)))

    async def block(self) -> asyncio.Task[Any]:
        """Block the device with one request until `model.gate` is set."""
        self.model.gate.clear()
        self.model.entered.clear()
        task = self.submit(0.0)
        await asyncio.to_thread(self.model.entered.wait, 5)
        return task

    def rejections(self, reason: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "turbofno_rejections_total", {"reason": reason, "model": self.model.name}
            )
            or 0.0
        )


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Bench]:
    bench = Bench(**settings)
    bench.scheduler.start()
    try:
        yield bench
    finally:
        bench.model.gate.set()
        await bench.scheduler.close(within=5)
        assert bench.capacity.total == 0, "queue capacity was lost"
        expected = (bench.capacity._bytes, *bench.capacity._ahead.values())
        assert not any(map(Counter.total, expected)), "later requests would be expected to wait"


def on_bench(**settings: Any) -> Callable[..., Callable[[], None]]:
    def decorate(test: Callable[[Bench], Any]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                async with running(**settings) as bench:
                    await test(bench)

            asyncio.run(main())

        run.__name__ = test.__name__
        return run

    return decorate


def block(bench: Bench, *values: float, **options: Any) -> list[Ticket]:
    """Tickets of one field each, submitted together."""
    tickets = unsubmitted(bench, *values, **options)
    bench.scheduler.submit(tickets)
    return tickets


def unsubmitted(bench: Bench, *values: float, **options: Any) -> list[Ticket]:
    """Tickets of one field each."""
    loop, kinds = asyncio.get_running_loop(), {}
    tickets = []
    for value in values:
        asked = request(value, **options)
        kind = kinds.setdefault(asked.priority, Kind.of(bench.model, asked))
        tickets.append(Ticket(kind, asked, time.monotonic(), loop.create_future(), 1))
    return tickets
