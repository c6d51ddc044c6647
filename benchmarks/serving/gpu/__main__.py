"""Throughput of a GPU without and with HTTP: `python -m benchmarks.serving.gpu`."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.device import machine, require_gpu
from benchmarks.serving.checkpoint import HEAVY, LIGHT, WIDE, questions, write_light, write_wide
from benchmarks.serving.gpu import alone, engine
from benchmarks.serving.gpu.report import over_several
from benchmarks.serving.gpu.stack import Phase, Setup, serve
from benchmarks.timing import print_table, save
from turbofno.models.zoo import TRAINED

Row = dict[str, Any]

SIDE = 128
SHARE = 0.7
"""Rate of the open loop, as a share of the closed loop before it."""
FEW = (1, 2, 4, 8)
"""Connections of a few clients."""
_MOST_CONNECTIONS = 1024
_OPEN_LOOP = 4
"""Connections of an open loop for each of the closed loop before it. With many more, each rests so long between two requests
that TCP starts slowly again."""
_SHOWN = (
    "devices", "frontends", "max batch", "load", "fields a request", "connections", "fields/s",
    "p50 ms", "p99 ms", "mean batch", "device s", "late ms",
    "engine CPU us/field", "engine loop CPU us/field", "frontend CPU us/field", "frontend system CPU us/field", "client CPU us/field", "errors",
)  # fmt: skip


def _cores(clients: int) -> tuple[set[int], set[int]]:
    """Cores of the server and of the clients; on a small machine they share all."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 * clients:
        return set(cores), set(cores)
    return set(cores[clients:]), set(cores[:clients])


def served(
    setup: Setup, questions_file: Path, sizes: list[int], *, concurrency: int, seconds: float
) -> Iterator[Row]:
    """For requests of each size in fields: a closed loop, then an open one at SHARE of its rate.

    Connections and concurrent fields are for each engine.
    """
    engines = _engines(setup.devices)
    most, concurrency = engines * _MOST_CONNECTIONS, engines * concurrency
    with serve(setup, questions_file) as stack:
        for fields in sizes:
            connections = min(most, max(setup.clients, concurrency // fields))
            best = stack.measure(Phase(fields, connections, seconds))
            yield best
            if best["fields/s"]:
                rate = SHARE * best["fields/s"] / fields
                enough = min(most, _OPEN_LOOP * connections)
                yield stack.measure(Phase(fields, enough, seconds, rate))


def few(setup: Setup, questions_file: Path, *, seconds: float) -> Iterator[Row]:
    """Single fields of a few clients on the first device, in a closed loop: without front ends, and with one."""
    first, *_ = setup.devices.replace("+", ",").split(",")
    for frontends in (0, 1):
        one = replace(setup, devices=first, frontends=frontends, clients=1)
        with serve(one, questions_file) as stack:
            for connections in FEW:
                yield {**stack.measure(Phase(1, connections, seconds)), "load": "few"}


def _setups(checkpoint: Path, arguments: argparse.Namespace, *, whole: bool) -> Iterator[Setup]:
    """Each number of front ends with the first devices and batch size, the largest with each of the others; or just the largest."""
    *fewer, most = arguments.frontends
    first, *others = arguments.max_batch
    devices, *further = arguments.devices
    wanted = [(devices, most, first), *((other, most, first) for other in further)]
    if whole:
        wanted = [
            *((devices, few, first) for few in fewer),
            *wanted,
            *((devices, most, other) for other in others),
        ]
    cores = _cores(arguments.clients)
    for on, frontends, max_batch in wanted:
        yield Setup(checkpoint, on, frontends * _engines(on), max_batch, cores, arguments.clients)


def _engines(devices: str) -> int:
    return len(devices.split(","))


def _measured(
    checkpoint: Path, folder: Path, arguments: argparse.Namespace, *, whole: bool
) -> Iterator[Row]:
    """Measure and print all rows of one model."""
    name = checkpoint.name
    if not arguments.only_service:
        if arguments.devices != ["cpu"]:
            rows = list(alone.rows(checkpoint, SIDE, seconds=0.4))
            print_table(f"{name} {SIDE}x{SIDE}, fields/s without HTTP", rows)
            yield from rows
        if whole:
            setup = next(_setups(checkpoint, arguments, whole=False))
            row = engine.row(setup, side=SIDE, concurrency=512, seconds=arguments.seconds)
            print_table("the engine process alone", [row])
            yield row
    asked = questions(checkpoint, SIDE)
    file = folder / "questions.npz"
    np.savez(
        file,
        fields=np.concatenate([one.field for one in asked]),
        truths=np.concatenate([one.truth for one in asked]),
    )
    setups = list(_setups(checkpoint, arguments, whole=whole))
    for setup in setups:
        rows = list(
            served(
                setup, file, arguments.fields,
                concurrency=arguments.concurrency, seconds=arguments.seconds,
            )
        )  # fmt: skip
        _show(f"{name} over HTTP", rows)
        yield from rows
    rows = list(few(setups[0], file, seconds=arguments.seconds))
    _show(f"{name}, few clients", rows)
    yield from rows


def _show(title: str, rows: list[Row]) -> None:
    print_table(title, [{key: row.get(key) for key in _SHOWN} for row in rows])


def main() -> None:
    """Measure; write results/serving_gpu.jsonl, or serving_gpus.jsonl of several GPUs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.gpu", description=__doc__)
    parser.add_argument(
        "--devices",
        nargs="+",
        default=["0"],
        help="each as for `turbofno serve`; with cpu nothing is saved",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=[WIDE, HEAVY],
        help="the first with all setups, others with the most front ends only; default %(default)s",
    )
    parser.add_argument(
        "--frontends", nargs="+", type=int, default=[1, 4, 8], help="for each engine"
    )
    parser.add_argument("--max-batch", nargs="+", type=int, default=[128, 64])
    parser.add_argument(
        "--fields", nargs="+", type=int, default=[1, 16], help="fields in a request"
    )
    parser.add_argument(
        "--clients", type=int, default=4, help="number of load generators, each on a core"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        default=1024,
        help="concurrent fields of an engine in a closed loop",
    )
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of a phase, default %(default)s"
    )
    parser.add_argument("--only-service", action="store_true", help="nothing is saved")
    parser.add_argument("--commit", help="name of the commit, if the tree is no git checkout")
    arguments = parser.parse_args()
    on_gpu = arguments.devices != ["cpu"]
    if on_gpu:
        require_gpu()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_wide(folder)
        write_light(folder)
        own = {WIDE: folder / WIDE, LIGHT: folder / LIGHT}
        found = [
            row
            for name in arguments.models
            for row in _measured(
                own.get(name, TRAINED / name),
                folder,
                arguments,
                whole=name == arguments.models[0],
            )
        ]
    if on_gpu and not arguments.only_service:
        found += [*alone.bus_rows(), alone.loopback_row(SIDE)]
        print_table("the bus", found[-4:-1])
        print_table("sockets", found[-1:])
        name = "serving_gpus" if over_several(found) else "serving_gpu"
        rows = [asdict(machine(arguments.commit)), *found]
        print(f"\nwritten to {save(name, rows, named=arguments.commit)}")


if __name__ == "__main__":
    main()
