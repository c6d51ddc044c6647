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
from turbofno.service.engine.runnable import ModelOutput, Ran
from turbofno.service.runtime.device_pipeline import DevicePipeline
from turbofno_ops import CompiledFNO, compile_fno

Row = dict[str, Any]

BATCHES = (1, 4, 16, 64, 256)
_EXCHANGES = 4000
_COPIED = 64 * 2**20


def rows(checkpoint: Path, side: int, *, seconds: float) -> Iterator[Row]:
    """Fields a second of the compiled model in device memory, and through the pipeline from and to host memory."""
    module = load_model(checkpoint).module.cuda()
    forward = compile_fno(module.description(), device="cuda", max_batch=BATCHES[-1])
    for batch in BATCHES:
        fields = rotating((batch, module.arch.in_channels, side, side), most=4)
        (taken,) = milliseconds([each(forward, fields)], seconds=seconds)
        yield {
            "model": checkpoint.name,
            "side": side,
            "batch": batch,
            "on the device": batch * len(fields) / taken * 1e3,
            "through the pipeline": _piped(forward, batch, side, seconds),
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


def _piped(forward: CompiledFNO, batch: int, side: int, seconds: float) -> float:
    """Fields a second from single fields in host memory to answers there, with two threads as in the service."""
    pipeline = DevicePipeline(torch.device("cuda", torch.cuda.current_device()))
    rng = np.random.default_rng()
    parts = [rng.standard_normal((1, 1, side, side), np.float32) for _ in range(batch)]
    in_flight: queue.Queue[Callable[[], ModelOutput] | None] = queue.Queue(pipeline.max_in_flight)

    def finish() -> None:
        while (wait := in_flight.get()) is not None:
            hand_out(wait())

    def hand_out(answer: ModelOutput) -> None:
        assert answer.release is not None
        assert answer.fields is not None
        answer.fields.copy()
        answer.release()

    def run(x: torch.Tensor) -> tuple[torch.Tensor, Ran]:
        return forward(x), Ran(forward.backend)

    hand_out(pipeline.start(parts, run)())
    thread = threading.Thread(target=finish)
    thread.start()
    began = time.perf_counter()
    runs = 0
    while time.perf_counter() < began + seconds:
        in_flight.put(pipeline.start(parts, run))
        runs += 1
    in_flight.put(None)
    thread.join()
    return runs * batch / (time.perf_counter() - began)
