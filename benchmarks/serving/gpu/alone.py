"""Rates without HTTP: the compiled model, the bus, the service's pipeline, sockets."""

from __future__ import annotations

import queue
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.device import each, milliseconds, rotating
from turbofno.models.core.checkpoint import load_model
from turbofno.service.engine.runnable import ModelOutput
from turbofno.service.runtime.device_pipeline import IN_FLIGHT, DevicePipeline
from turbofno.service.runtime.forward import Forward
from turbofno.service.runtime.model_instance import ModelInstance

Row = dict[str, Any]

BATCHES = (1, 4, 16, 64, 256)
_EXCHANGES = 4000
_COPIED = 64 * 2**20


def rows(checkpoint: Path, side: int, *, seconds: float) -> Iterator[Row]:
    """Fields a second of the compiled model in device memory, and of the model as the service runs it, from and to host memory."""
    device = torch.device("cuda", torch.cuda.current_device())
    loaded = load_model(checkpoint, device=device)
    precision = loaded.config.precision
    forward = Forward(
        checkpoint.name, loaded.module, device, precision=precision, max_batch=BATCHES[-1]
    )
    assert forward.chain is not None
    pipeline = DevicePipeline(device)
    served = ModelInstance(
        loaded.config, forward, pipeline, device=device, asked=precision, trust=True
    )
    for batch in BATCHES:
        fields = rotating((batch, loaded.config.architecture.in_channels, side, side), most=4)
        (taken,) = milliseconds([each(forward.chain, fields)], seconds=seconds)
        yield {
            "model": checkpoint.name,
            "side": side,
            "batch": batch,
            "on the device": batch * len(fields) / taken * 1e3,
            "through the pipeline": _piped(served, batch, side, seconds),
        }


def bus_rows() -> Iterator[Row]:
    """Bytes a second between pinned and device memory: in, out, and each way during both at once."""
    host_in, host_out = (torch.empty(_COPIED, dtype=torch.uint8, pin_memory=True) for _ in "io")
    held_in, held_out = (torch.empty(_COPIED, dtype=torch.uint8, device="cuda") for _ in "io")
    side = torch.cuda.Stream()

    def copy_in() -> None:
        held_in.copy_(host_in, non_blocking=True)

    def copy_out() -> None:
        host_out.copy_(held_out, non_blocking=True)

    def both() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy_out()
        copy_in()
        torch.cuda.current_stream().wait_stream(side)

    times = milliseconds([copy_in, copy_out, both], seconds=0.3)
    for what, taken in zip(("in", "out", "each way at once"), times, strict=True):
        yield {"bus": what, "GB/s": _COPIED / taken / 1e6}


def loopback_row(side: int) -> Row:
    """Time to send a field over loopback and one back, with blocking sockets; CPU time of both ends."""
    size = side * side * 4
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()

    def exchange(end: socket.socket, *, first: bool) -> None:
        room = memoryview(bytearray(size))
        for _ in range(_EXCHANGES):
            if first:
                end.sendall(room)
            got = 0
            while got < size:
                got += end.recv_into(room[got:])
            if not first:
                end.sendall(room)

    with there, here:
        other = threading.Thread(target=exchange, args=(here,), kwargs={"first": False})
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        other.start()
        exchange(there, first=True)
        other.join()
        taken, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "loopback": f"{size} bytes each way",
        "us": taken / _EXCHANGES * 1e6,
        "system CPU us": (after.ru_stime - before.ru_stime) / _EXCHANGES * 1e6,
        "user CPU us": (after.ru_utime - before.ru_utime) / _EXCHANGES * 1e6,
    }


def _piped(served: ModelInstance, batch: int, side: int, seconds: float) -> float:
    """Fields a second from single fields in host memory to answers there, with two threads as in the service."""
    rng, channels = np.random.default_rng(), served.config.architecture.in_channels
    parts = [rng.standard_normal((1, channels, side, side), np.float32) for _ in range(batch)]
    in_flight: queue.SimpleQueue[Callable[[], ModelOutput] | None] = queue.SimpleQueue()
    slots = threading.Semaphore(IN_FLIGHT)

    def finish() -> None:
        while (wait := in_flight.get()) is not None:
            hand_out(wait())
            slots.release()

    def hand_out(answer: ModelOutput) -> None:
        assert answer.release is not None
        assert answer.fields is not None
        answer.fields.copy()
        answer.release()

    hand_out(served.start(parts)())
    thread = threading.Thread(target=finish)
    thread.start()
    began = time.perf_counter()
    runs = 0
    while time.perf_counter() < began + seconds:
        slots.acquire()
        in_flight.put(served.start(parts))
        runs += 1
    in_flight.put(None)
    thread.join()
    return runs * batch / (time.perf_counter() - began)
