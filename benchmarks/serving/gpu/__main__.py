"""What a GPU computes and what of it arrives over HTTP: `python -m benchmarks.serving.gpu`."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.device import machine, require_gpu
from benchmarks.serving.checkpoint import HEAVY, LIGHT, WIDE, questions, write_light, write_wide
from benchmarks.serving.gpu import alone, engine
from benchmarks.serving.gpu.stack import Phase, Setup, serve
from benchmarks.serving.servers import ROOT
from benchmarks.timing import print_table, save

Row = dict[str, Any]

SIDE = 128
SHARE = 0.7
"""Of the best closed loop, for the open one."""
_FIELDS = (1, 16)
"""Fields in a request."""
_SHOWN = (
    "devices", "frontends", "max batch", "load", "fields a request", "connections", "fields/s",
    "p50 ms", "p99 ms", "mean batch", "device s", "late ms",
    "engine CPU us/field", "engine loop CPU us/field", "frontend CPU us/field", "frontend system CPU us/field", "client CPU us/field", "errors",
)  # fmt: skip


def _cores(clients: int) -> tuple[set[int], set[int]]:
    """Of the server and of so many clients; on a small machine they share."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 * clients:
        return set(cores), set(cores)
    return set(cores[clients:]), set(cores[:clients])


def served(setup: Setup, questions_file: Path, *, under_way: int, seconds: float) -> Iterator[Row]:
    """Closed loops with one field and with several in a request, then each at a share of what that reached."""
    with serve(setup, questions_file) as stack:
        for fields in _FIELDS:
            best = stack.measure(Phase(fields, max(setup.clients, under_way // fields), seconds))
            yield best
            if best["fields/s"]:
                rate = SHARE * best["fields/s"] / fields
                yield stack.measure(Phase(fields, 2 * under_way, seconds, rate))


def main() -> None:
    """Measure, print, save results/serving_gpu.jsonl."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.gpu", description=__doc__
    )
    parser.add_argument("--devices", default="0", help="as `turbofno serve` takes them; cpu tries this out, saves nothing")
    parser.add_argument("--models", nargs="+", default=[HEAVY, "darcy-2d", WIDE])
    parser.add_argument("--frontends", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--clients", type=int, default=4, help="load generators, each on a core")
    parser.add_argument("--max-batch", type=int, default=64)
    parser.add_argument("--under-way", type=int, default=256, help="fields under way in a closed loop")
    parser.add_argument("--seconds", type=float, default=3.0, help="a phase, default %(default)s")
    parser.add_argument("--skip-alone", action="store_true", help="without the model alone; nothing is saved")
    parser.add_argument("--commit", help="to write beside the figures where git does not know it")
    arguments = parser.parse_args()
    on_gpu = arguments.devices != "cpu"
    if on_gpu:
        require_gpu()
    cores, found = _cores(arguments.clients), []
    with tempfile.TemporaryDirectory() as folder:
        write_wide(Path(folder))
        write_light(Path(folder))
        for name in arguments.models:
            checkpoint = Path(folder) / name if name in (WIDE, LIGHT) else ROOT / "models/zoo" / name
            asked = questions(checkpoint, SIDE)
            file = Path(folder) / "questions.npz"
            np.savez(
                file,
                fields=np.concatenate([one.field for one in asked]),
                truths=np.concatenate([one.truth for one in asked]),
            )
            rows: list[Row] = []
            if on_gpu and not arguments.skip_alone:
                rows += alone.rows(checkpoint, SIDE, seconds=0.4)
                print_table(f"{name} {SIDE}x{SIDE}, fields/s without HTTP", rows)
            rows.append(
                engine.row(
                    Setup(checkpoint, arguments.devices.split(",")[0], 0, arguments.max_batch, cores, arguments.clients),
                    side=SIDE, under_way=arguments.under_way, seconds=arguments.seconds,
                )
            )  # fmt: skip
            print_table("the engine process alone", rows[-1:])
            for frontends in arguments.frontends:
                setup = Setup(checkpoint, arguments.devices, frontends, arguments.max_batch, cores, arguments.clients)
                of = list(served(setup, file, under_way=arguments.under_way, seconds=arguments.seconds))
                print_table(f"{name} over HTTP", [{key: row.get(key) for key in _SHOWN} for row in of])
                rows += of
            found += rows
    if on_gpu and not arguments.skip_alone:
        where = machine(arguments.commit)
        found += alone.bus_rows()
        print_table("the bus", found[-3:])
        found.append(alone.loopback_row(SIDE))
        print_table("sockets", found[-1:])
        print(f"\nwritten to {save('serving_gpu', [asdict(where), *found])}")


if __name__ == "__main__":
    main()
