"""One of several concurrent load generators: reads phases as JSON lines from standard input, writes results to standard output.

`python -m benchmarks.serving.gpu.client QUESTIONS.npz PORT MODEL`
"""

from __future__ import annotations

import gc
import json
import resource
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from benchmarks.serving.checkpoint import Array, Question
from benchmarks.serving.forms import TURBOFNO
from benchmarks.serving.load import Load, Target, closed_loop, open_loop
from benchmarks.serving.measure import run

WARM_UP_SECONDS = 0.7
_FORM = TURBOFNO["binary"]


def target(truth: list[Question], fields: int, *, model: str, port: int) -> Target:
    """Requests of `fields` fields each; the i-th starts with the i-th field."""
    asked = [_together(truth, start, fields) for start in range(len(truth))]
    verdicts: dict[tuple[int, bytes], bool] = {}

    def is_right(index: int, body: bytes) -> bool:
        # repeated answers are the same object, whose hash is cached
        known = verdicts.get((index, body))
        if known is None:
            known = asked[index].is_answered_by(_FORM.values(body))
            verdicts[index, body] = known
        return known

    requests = [_FORM.request(question.field, model=model, port=port) for question in asked]
    return Target("127.0.0.1", port, requests, is_right)


def _together(truth: list[Question], start: int, fields: int) -> Question:
    of = [truth[(start + i) % len(truth)] for i in range(fields)]
    return Question(
        np.concatenate([one.field for one in of]), np.concatenate([one.truth for one in of])
    )


def _measured(phase: dict[str, Any], at: Target) -> tuple[Load, float]:
    if phase["rate"]:
        loop = open_loop(
            at,
            rate=phase["rate"],
            connections=phase["connections"],
            seconds=phase["seconds"],
            warm_up=WARM_UP_SECONDS,
        )
        return run(loop)
    closed = closed_loop(
        at,
        connections=phase["connections"],
        seconds=phase["seconds"],
        warm_up=WARM_UP_SECONDS,
    )
    return run(closed), 0.0


def _phases() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    """Run phase after phase until standard input ends."""
    file, port, model = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    kept = np.load(file)
    fields: Array = kept["fields"]
    truth = [Question(fields[i : i + 1], kept["truths"][i : i + 1]) for i in range(len(fields))]
    # Else a collection, of all modules too, stops the load for tens of milliseconds.
    gc.freeze()
    # buffered even with PYTHONUNBUFFERED, so that long lines are written whole
    with open(sys.stdout.fileno(), "w", closefd=False) as out:
        print("ready", file=out, flush=True)
        _serve_phases(out, truth, model=model, port=port)


def _serve_phases(out: TextIO, truth: list[Question], *, model: str, port: int) -> None:
    targets: dict[int, Target] = {}
    for phase in _phases():
        size = phase["fields"]
        if size not in targets:
            targets[size] = target(truth, size, model=model, port=port)
        before = _cpu_seconds()
        load, late = _measured(phase, targets[size])
        told = {
            "rate": load.rate,
            "latencies": load.latencies,
            "answered": load.answered,
            "errors": dict(load.errors),
            "late": late,
            "cpu": _cpu_seconds() - before,
        }
        print(json.dumps(told), file=out, flush=True)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
