"""The comparison: install the servers, run each under every load, save the results."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.serving.checkpoint import HEAVY, LIGHT, write_light
from benchmarks.serving.forward import REPLAYED, TORCH_FFT
from benchmarks.serving.measure import (
    Pace,
    Plan,
    Row,
    ServerFailed,
    forward_ms,
    generator_rows,
    rows,
)
from benchmarks.serving.processes import split_cores
from benchmarks.serving.report import best_peer
from benchmarks.serving.servers import OURS, SERVERS, Server, install
from benchmarks.timing import print_table, save
from turbofno.models.zoo import TRAINED

LIGHT_PLANS = [
    Plan("binary", 64, (1, 8, 32), (0.5, 0.9, 2.0, 4.0)),
    Plan("binary", 128, (1, 32), (0.5, 2.0, 4.0)),
    Plan("JSON", 64, (1, 32), (0.5,)),
    Plan("JSON", 128, (1, 32), (0.5,)),
]
HEAVY_PLANS = [Plan("binary", 64, (1, 32), (0.5,))]
_SHOWN = ("load", "offered/s", "fields/s", "p50 ms", "p99 ms", "CPU ms/field", "errors")


def measure(
    server: Server, checkpoints: dict[Path, list[Plan]], cores: set[int], pace: Pace
) -> list[Row]:
    """All rows of one server, or one row with the reason if it cannot be measured."""
    found: list[Row] = []
    try:
        for checkpoint, plans in checkpoints.items():
            found += rows(server, checkpoint, plans, cores=cores, pace=pace)
    except (ServerFailed, OSError) as error:
        print(f"\n{server.name}: left out: {error}")
        found.append({"server": server.name, "failed": str(error).splitlines()[0]})
    return found


def of_plan(found: list[Row], plan: Plan, model: str) -> list[Row]:
    """The rows of a network with the plan's body format and size."""
    key = {"model": model, "body": plan.body, "side": plan.side}
    return [row for row in found if key.items() <= row.items()]


def at_the_peers_half(
    found: list[Row], checkpoints: dict[Path, list[Plan]]
) -> dict[Path, list[Plan]]:
    """Plans with one load each: half the peak of the best peer that batches."""
    return {
        checkpoint: [
            Plan(plan.body, plan.side, peers_half=peer["fields/s"] / 2)
            for plan in plans
            if (peer := best_peer(of_plan(found, plan, checkpoint.name))) is not None
        ]
        for checkpoint, plans in checkpoints.items()
    }


def forward_rows(light: Path, cores: set[int]) -> list[Row]:
    """The network without a server: the module, replayed as turbofno runs it, and through torch.fft."""
    return [
        {
            "server": "bare forward",
            "model": checkpoint.name,
            "side": side,
            "load": f"batch {batch}",
            "network": network,
            "fields/s": batch / taken * 1e3,
            "p50 ms": taken,
        }
        for checkpoint, side in ((light, 64), (light, 128), (TRAINED / HEAVY, 64))
        for batch in (1, 16)
        for network, options in (("ours", ()), (REPLAYED, (REPLAYED,)), (TORCH_FFT, (TORCH_FFT,)))
        for taken in [forward_ms(checkpoint, side, batch, cores, *options)]
    ]


def show(found: list[Row], plans: list[Plan], model: str) -> None:
    """Print the rows of one server, a table for each body format and size."""
    for plan in plans:
        if of := of_plan(found, plan, model):
            title = f"{of[0]['server']}: {model}, {plan.body} {plan.side}x{plan.side}"
            print_table(title, [{name: row[name] for name in _SHOWN} for row in of])


def main() -> None:
    """Measure all servers; write results/serving.jsonl."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    names = [server.name for server in SERVERS]
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {names}; nothing is saved")
    parser.add_argument(
        "--seconds", type=float, default=1.2, help="of a phase, default %(default)s"
    )
    arguments = parser.parse_args()
    chosen = [s for s in SERVERS if arguments.only is None or s.name in arguments.only]
    for server in chosen:
        install(server)
    # SIGTERM must still stop the servers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    client, cores = split_cores()
    os.sched_setaffinity(0, client)
    pace, began = Pace(arguments.seconds), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        write_light(Path(folder))
        light = Path(folder) / LIGHT
        checkpoints = {light: LIGHT_PLANS, TRAINED / HEAVY: HEAVY_PLANS}
        found = [row for side in (64, 128) for row in generator_rows(side, cores, pace)]
        found += forward_rows(light, cores)
        for server in chosen:
            of = measure(server, checkpoints, cores, pace)
            show(of, LIGHT_PLANS, LIGHT)
            show(of, HEAVY_PLANS, HEAVY)
            found += of
        # Once their peaks are known.
        for server in chosen:
            if server.name.startswith(OURS):
                found += measure(server, at_the_peers_half(found, checkpoints), cores, pace)
    print(f"\ntook {time.monotonic() - began:.0f} s")
    if arguments.only is None:
        print(
            f"written to {save('serving', [{'client cores': len(client), 'server cores': len(cores)}, *found])}"
        )


if __name__ == "__main__":
    main()
