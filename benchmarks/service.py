"""The service over loopback HTTP against the bare forward pass of the same checkpoint: fields/s, p50, p99."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import quantiles

import httpx
import numpy as np
import torch

from benchmarks.timing import medians, print_table, save
from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import TRAINED
from turbofno.service.pipeline.worker import arithmetic_threads
from turbofno_client import Client

_LARGEST_DIFFERENCE = 1e-5
CONCURRENCIES = (1, 8, 32)


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The URL of a `turbofno serve` process on a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "turbofno.service",
            "serve",
            "--port",
            str(port),
            "--log-level",
            "warning",
        ],
        env={**os.environ, "TURBOFNO_DEVICE": "cpu"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        with Client(url, timeout=60) as client:
            client.wait_ready(timeout=60)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    """One request on an open connection, with little CPU time in this process."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    answer = await reader.readexactly(int(length[1]) if length else 0)
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{head.splitlines()[0]!r}: {answer[:200]!r}")


async def load(url: str, body: bytes, *, concurrency: int, seconds: float) -> list[float]:
    """Latencies of a closed loop: `concurrency` clients, each with one request at a time."""
    target = httpx.URL(url)
    request = (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.host}\r\n"
        f"Content-Type: application/x-npy\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    latencies: list[float] = []
    connections = [
        await asyncio.open_connection(target.host, target.port) for _ in range(concurrency)
    ]

    async def one_client(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, until: float
    ) -> None:
        while (began := time.perf_counter()) < until:
            await ask(reader, writer, request)
            latencies.append(time.perf_counter() - began)

    for reader, writer in connections:
        await ask(reader, writer, request)
    until = time.perf_counter() + seconds
    await asyncio.gather(*(one_client(*pair, until) for pair in connections))
    for _, writer in connections:
        writer.close()
        await writer.wait_closed()
    return latencies


def measure(url: str, name: str, *, seconds: float) -> list[dict[str, object]]:
    """Rows of one model: the bare forward pass at batch 1 and 16, then the service at each concurrency."""
    model = load_model(TRAINED / name)
    grid = model.config.grid.training
    generator = np.random.default_rng()
    shape = (1, model.config.architecture.in_channels, *grid)
    fields = np.abs(generator.standard_normal(shape, np.float32))  # darcy-2d takes values above 0
    one = torch.from_numpy(fields)
    many = one.expand(16, *one.shape[1:]).contiguous()
    with torch.inference_mode():
        expected = model.module(one).numpy()
        bare = medians(
            {"1": lambda: model.module(one), "16": lambda: model.module(many)}, seconds=seconds
        )
    with Client(url) as client:
        answer = client.predict(name, fields)
    difference = float(np.linalg.norm(answer - expected) / np.linalg.norm(expected))
    if not difference <= _LARGEST_DIFFERENCE:
        raise RuntimeError(f"{name}: the service's answer differs by {difference:.2e}")
    rows: list[dict[str, object]] = [
        {
            "model": name,
            "what": f"bare forward, batch {batch}",
            "fields/s": int(batch) / taken,
            "p50 ms": taken * 1e3,
            "p99 ms": "",
        }
        for batch, taken in bare.items()
    ]
    buffer = io.BytesIO()
    np.save(buffer, fields)
    path = f"{url}/v1/models/{name}:predict"
    for concurrency in CONCURRENCIES:
        latencies = asyncio.run(
            load(path, buffer.getvalue(), concurrency=concurrency, seconds=seconds)
        )
        percentiles = quantiles(latencies, n=100)
        rows.append(
            {
                "model": name,
                "what": f"service, {concurrency} clients",
                "fields/s": len(latencies) / seconds,
                "p50 ms": percentiles[49] * 1e3,
                "p99 ms": percentiles[98] * 1e3,
            }
        )
    return rows


def main() -> None:
    """Measure every zoo model; write results/service.jsonl. The load generator shares the processor with the server."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="per row, default %(default)s")
    arguments = parser.parse_args()
    names = sorted(
        folder.name for folder in TRAINED.iterdir() if (folder / "config.json").is_file()
    )
    # as many threads as the server gives its models
    torch.set_num_threads(arithmetic_threads(on_cpu=True) or torch.get_num_threads())
    with server() as url:
        rows = [row for name in names for row in measure(url, name, seconds=arguments.seconds)]
    print_table("service over HTTP (.npy body), client and server on one machine", rows)
    print(f"written to {save('service', rows)}")


if __name__ == "__main__":
    main()
