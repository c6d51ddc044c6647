"""benchmarks.serving: the load generator's counts, and the harness with two real servers."""

from __future__ import annotations

import asyncio
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from benchmarks.serving import measure
from benchmarks.serving.checkpoint import LIGHT, write_light
from benchmarks.serving.gpu import __main__ as gpu
from benchmarks.serving.gpu.stack import Setup, where
from benchmarks.serving.load import Load, Target, closed_loop, open_loop
from benchmarks.serving.measure import PEERS_HALF, Pace, Plan, rows
from benchmarks.serving.processes import split_cores
from benchmarks.serving.report import serving, summary
from benchmarks.serving.servers import OURS, SERVERS

REQUESTS = [b"POST /%d HTTP/1.1\r\nContent-Length: 0\r\n\r\n" % i for i in range(3)]


def load_against(
    answer: Callable[[int, int], bytes | None], work: Callable[[Target], asyncio.Future[Load]]
) -> Load:
    """The load on a server that answers its n-th request, for question i, with answer(n, i); None closes the connection."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            while head := await reader.read(1000):
                reply = answer(count, int(head[6:7]))
                count += 1
                if reply is None:
                    break
                writer.write(reply)
        finally:
            writer.close()

    async def main() -> Load:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        target = Target("127.0.0.1", port, REQUESTS, lambda i, body: body == b"%d" % i)
        try:
            return await work(target)
        finally:
            server.close()

    return asyncio.run(main())


def reply(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def closed(target: Target) -> asyncio.Future[Load]:
    return asyncio.ensure_future(closed_loop(target, connections=2, seconds=1.0, warm_up=0.1))


def test_only_right_answers_count() -> None:
    def answer(n: int, question: int) -> bytes:
        if n % 4 == 1:
            return reply(b"%d" % (question + 1))
        return reply(b"", b"503 Unavailable") if n % 4 == 2 else reply(b"%d" % question)

    load = load_against(answer, closed)
    assert set(load.errors) == {"wrong answer", "HTTP 503"}
    assert abs(load.errors["wrong answer"] - load.offered / 4) <= 2
    assert len(load.latencies) + load.errors.total() == load.offered
    assert load.rate > 0


def test_lost_connection_is_an_error_and_reopened() -> None:
    load = load_against(lambda n, question: reply(b"%d" % question) if n % 50 else None, closed)
    assert set(load.errors) == {"connection lost"}
    assert load.errors["connection lost"] > 1
    assert len(load.latencies) > 100


def offered_to(answer: Callable[[int, int], bytes], **arguments: Any) -> Load:
    """The load of an open loop with these arguments."""

    async def run(target: Target) -> Load:
        load, _ = await open_loop(target, **arguments)
        return load

    return load_against(answer, lambda target: asyncio.ensure_future(run(target)))


def test_stall_delays_every_request_due_during_it() -> None:
    stall = 0.3

    def answer(n: int, question: int) -> bytes:
        if n == 20:
            time.sleep(stall)
        return reply(b"%d" % question)

    load = offered_to(answer, rate=200.0, connections=1, seconds=1.5, warm_up=0.0)
    assert not load.errors
    # about 60 requests were due during the stall; a closed loop would show one slow request
    assert sum(latency > 0.2 * stall for latency in load.latencies) > 20
    assert 200 < load.offered < 400


def test_requests_that_wait_for_a_connection_at_the_end_are_still_sent() -> None:
    def answer(n: int, question: int) -> bytes:
        if n == 10:
            time.sleep(0.6)
        return reply(b"%d" % question)

    load = offered_to(answer, rate=100.0, connections=1, seconds=0.5, warm_up=0.0)
    assert not load.errors
    assert len(load.latencies) == load.offered
    assert load.right_in_time < load.offered


def test_requests_without_a_free_connection_are_counted() -> None:
    def answer(n: int, question: int) -> bytes:
        time.sleep(0.01)
        return reply(b"%d" % question)

    load = offered_to(answer, rate=1000.0, connections=2, seconds=0.3, warm_up=0.1)
    assert load.errors["never sent"] > 100
    assert len(load.latencies) + load.errors.total() == load.offered


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the harness needs Linux")
def test_the_harness_measures_turbofno_and_a_bare_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_SETTLE_SECONDS", 0.2)
    monkeypatch.setattr("benchmarks.serving.load._CONNECT_SECONDS", 0.1)
    # A stall of the machine may delay the answers of the bare handler, which refuses nothing.
    monkeypatch.setattr("benchmarks.serving.load.GRACE_SECONDS", 30.0)
    write_light(tmp_path)
    plans = [Plan("binary", 48, (1, 4), (0.5, 2.0)), Plan("JSON", 48, (1,))]
    by_name = {server.name: server for server in SERVERS}
    found = []
    for name in ("turbofno", "bare uvicorn + torch"):
        found += rows(
            by_name[name], tmp_path / LIGHT, plans, cores=split_cores()[1], pace=Pace(0.3, 0.1)
        )
    assert len(found) == 10
    for row in found:
        # after a stall of the machine an open loop may overfill the queue
        assert set(row["errors"]) <= {"HTTP 429", "never sent"}, row
        assert row["requests"] > 0
        assert 0 < row["p50 ms"] <= row["p99 ms"]
        assert row["CPU ms/field"] > 0
        assert "of peak" not in row or row["load"] == "open, 2 of peak"
    where = {"processor": "p", "torch": "t", "commit": "c", "at": "2026-11-21T00:00"}
    page = "\n".join(serving([where, {"client cores": 1, "server cores": 1}, *found]))
    assert "### light-2d, JSON, 48x48" in page


def test_page_has_both_networks_and_our_overhead() -> None:
    forward = {"server": "bare forward", "model": LIGHT, "side": 64, "load": "batch 1"}
    rows: list[dict[str, object]] = [
        {"processor": "p", "torch": "t", "commit": "c", "at": "2026-11-21T00:00"},
        {"client cores": 1, "server cores": 1},
        {**forward, "network": "ours", "p50 ms": 0.25, "fields/s": 4000.0},
        {**forward, "network": "torch.fft", "p50 ms": 0.5, "fields/s": 2000.0},
        {
            "server": "turbofno",
            "model": LIGHT,
            "body": "binary",
            "side": 64,
            "load": "closed, 1",
            "fields/s": 1000.0,
            "p50 ms": 1.0,
            "p99 ms": 2.0,
            "CPU ms/field": 1.0,
        },
    ]
    lines = [line for line in serving(rows) if line.startswith("| light-2d | 64")]
    assert [[cell.strip() for cell in line.split("|")][4:8] for line in lines] == [
        ["ours", "0.25", "4000", "0.75"],
        ["torch.fft", "0.5", "2000", ""],
    ]


def test_summary_has_each_servers_best_and_what_is_left_of_ours_under_overload() -> None:
    def row(
        server: str, load: str, rate: float, p99: float, body: str = "binary"
    ) -> dict[str, object]:
        of = {"server": server, "model": LIGHT, "body": body, "side": 64, "load": load}
        return {**of, "fields/s": rate, "p50 ms": 1.0, "p99 ms": p99, "CPU ms/field": 1.0}

    where = {"processor": "p", "torch": "t", "commit": "c", "at": "2026-11-21T00:00"}
    lines = [
        where,
        {"client cores": 1, "server cores": 1},
        *(row(OURS, f"closed, {n}", rate, 2.0) for n, rate in ((1, 400.0), (32, 1000.0))),
        {**row(OURS, "open, 4 of peak", 600.0, 2.0), "of peak": 0.9},
        row(OURS, PEERS_HALF, 125.0, 1.5),
        row(OURS, "closed, 1", 300.0, 2.0, body="JSON"),
        row("bare uvicorn + torch", "closed, 1", 800.0, 2.0),
        row("Peer 1.0", "closed, 1", 250.0, 2.0),
        row("Peer 1.0", "open, 0.5 of peak", 125.0, 3.0),
    ]
    assert summary(lines) == [
        "| fields/s | turbofno | bare uvicorn + torch | Peer 1.0 |",
        "| --- | --- | --- | --- |",
        "| light-2d, binary, 64x64 | 1000 | 800 | 250 |",
        "| light-2d, JSON, 64x64 | 300 |  |  |",
        "",
        "Offered four times its peak, turbofno serves, of its peak: 90% (light-2d, binary, 64x64).",
    ]
    page = "\n".join(serving(lines))
    assert (
        "turbofno: 4x the fields/s of the best peer (Peer 1.0); at half that peer's peak, p99 1.5 ms, 0.5x its own."
        in page
    )


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the harness needs Linux")
def test_the_cpu_time_of_engines_and_front_ends_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "few", lambda *_, **__: [{"load": "few"}])
    write_light(tmp_path)
    arguments = Namespace(
        only_service=False, devices=["cpu"], frontends=[1], max_batch=[8], clients=1, fields=[1],
        concurrency=2, seconds=0.3,
    )  # fmt: skip
    alone, closed, *_ = gpu._measured(tmp_path / LIGHT, tmp_path, arguments, whole=True)
    assert alone["engine CPU us/field"] >= alone["engine loop CPU us/field"] > 0
    assert closed["engine CPU us/field"] > 0
    roles = ("engine", "engine loop", "frontend", "frontend system")
    assert {f"{role} CPU us/field" for role in roles} <= closed.keys()


@pytest.mark.parametrize("devices", ["0", "0,1", "0+1", "0+1,2+3"])
def test_a_few_clients_are_served_by_one_device(
    devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []

    @contextmanager
    def serve(setup: Setup, _: Path) -> Iterator[Mock]:
        served.append(" ".join(where(setup)))
        yield Mock(measure=lambda phase: {"connections": phase.connections, "load": "closed"})

    monkeypatch.setattr(gpu, "serve", serve)
    setup = Setup(Path("m"), devices, 8, 64, (set(), set()), 4)
    found = list(gpu.few(setup, Path("q"), seconds=1.0))
    assert served == ["--device cuda:0", "--frontends 1 --devices 0"]
    assert [row["connections"] for row in found] == [*gpu.FEW] * 2
    assert {row["load"] for row in found} == {"few"}
