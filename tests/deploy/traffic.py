"""Mixed load on a service, and metrics of a simulated GPU."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

import httpx
import numpy as np
import torch
from prometheus_client import start_http_server

from tests.draws import generator
from tests.e2e.server_process import free_port
from turbofno.models.zoo.problems import PROBLEMS
from turbofno.service.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB = 2**30
POSITIVE = {one.name for one in PROBLEMS.values() if one.inputs[0].exclusive_minimum == 0.0}
"""Models of the zoo that take only values above 0."""


def npy(fields: np.ndarray) -> bytes:
    """`fields` as the body of a prediction."""
    body = io.BytesIO()
    np.save(body, fields)
    return body.getvalue()


@contextmanager
def load(url: str, models: dict[str, tuple[int, ...]], clients: int = 4) -> Iterator[list[int]]:
    """Valid, invalid and too large requests until the block ends. Yields each client's number of predicted fields."""
    stop = threading.Event()
    predicted = [0] * clients

    def send(number: int, random: np.random.Generator) -> None:
        with httpx.Client(base_url=url, timeout=30.0) as client:
            # Prometheus scrapes every second: a round in a tenth is enough for each window.
            while not stop.wait(0.1):
                for model, grid in models.items():
                    fields = random.standard_normal((4, 1, *grid), np.float32)
                    if model in POSITIVE:
                        fields = np.abs(fields)
                    answer = _predict(client, model, npy(fields))
                    answer.raise_for_status()
                    predicted[number] += 4
                    assert _predict(client, model, npy(fields[..., :2])).status_code == 422
                    assert _predict(client, model, bytes(2_000_000)).status_code == 413

    with ThreadPoolExecutor(clients) as pool:
        sending = [pool.submit(send, number, generator()) for number in range(clients)]
        try:
            yield predicted
        finally:
            stop.set()
        for one in sending:
            one.result()
    assert all(predicted)


def _predict(client: httpx.Client, model: str, body: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/x-npy"}
    return client.post(f"/v1/models/{model}:predict", content=body, headers=headers)


@contextmanager
def gpu_stand_in() -> Iterator[str]:
    """host:port of the service's GPU metrics with made-up readings."""
    metrics = Metrics(version="stand-in")
    readings = {
        "memory_allocated": 21 * GIB,
        "memory_reserved": 30 * GIB,
        "max_memory_allocated": 28 * GIB,
    }
    metrics.device_memory.watch(torch.device("cuda", 0), limit=72 * GIB, models=lambda: 9 * GIB)
    metrics.out_of_memory_splits.labels("tiny-2d", "1").inc(3)
    metrics.lowered_batch_limit.labels("tiny-2d", "1").set(8)
    port = free_port()
    stand_ins = {name: lambda _, value=value: value for name, value in readings.items()}
    stand_ins["host_memory_stats"] = lambda: {"allocated_bytes.current": GIB // 4}
    with patch.multiple(torch.cuda, **stand_ins):
        server, thread = start_http_server(port, "127.0.0.1", registry=metrics.registry)
        yield f"127.0.0.1:{port}"
        server.shutdown()
        server.server_close()
        thread.join()
