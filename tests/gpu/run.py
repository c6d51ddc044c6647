"""All GPU tests: `make test-gpu`. Passes only if every part ran and passed.

Parts run in parallel if there are enough cores. The output of a part is printed when it ends, and the record (record.py) is
written; commit it. A run that is ended by SIGTERM or Ctrl-C prints what its parts found until there; `--continue` runs those
parts that have not passed, if the record is of these sources and GPUs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tests.draws import VARIABLE
from tests.gpu import record
from turbofno_ops import native_status
from turbofno_ops.__main__ import report

ROOT = Path(__file__).resolve().parents[2]
_PIPELINE = "tests/service/runtime/test_device_pipeline.py"
OVERLAP = f"{_PIPELINE}::test_copies_network_and_signals_overlap"
"""Compares times, so it runs alone."""
_SECOND_CARD = (
    f"{_PIPELINE}::test_models_run_on_a_device_that_is_not_the_default",
    "tests/turbofno_ops/test_plan_cuda.py::test_a_network_runs_on_its_card_whatever_the_current_one_is",
)
_CORES_PER_PART = 2
_MAX_SECONDS = 540  # of a part
_LAST_WORDS_SECONDS = 15  # of one that is stopped
_ENDING = threading.Event()
"""Set once the run is to end: no part starts any more."""
_RUNNING: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True)
class Part:
    """A command to run, additional environment variables, and whether it is pytest, whose counts are reported."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    counts: bool = False
    alone: bool = False
    """Run after all others, because it has deadlines."""


@dataclass(frozen=True)
class Outcome:
    """The result of a part. A part other than pytest counts as one check."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: int = 0
    how: str = "passed"


NOT_RUN = Outcome(failed=1, how="NOT RUN to its end")


def sanitizer() -> str | None:
    """Return compute-sanitizer from the PATH or the CUDA toolkit, or None."""
    places = [os.environ.get("PATH", "")]
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    homes += ["/usr/local/cuda", str(Path(nvcc).resolve().parents[1]) if nvcc else None]
    places += [str(Path(home) / "bin") for home in homes if home]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def _pytest(
    name: str, *arguments: str, module: str = "pytest", workers: int = 0, alone: bool = False
) -> Part:
    """Return a pytest part, on several workers if pytest-xdist is installed; `module` replaces pytest."""
    # a worker that has nothing left takes tests from others: a few tests take a minute
    several = ["-n", str(workers), "--dist", "worksteal"]
    spread = several if workers and importlib.util.find_spec("xdist") else []
    command = [
        sys.executable,
        "-m",
        module,
        "-q",
        "-rfEs",
        *("-p", "no:cacheprovider"),
        # pytest-benchmark warns under pytest-xdist, and warnings are errors here
        *("-p", "no:benchmark"),
        *spread,
        *arguments,
    ]
    # a thread a worker: with one a core, a test that takes seconds ran into its time limit of minutes
    threads = {"OMP_NUM_THREADS": "1"} if spread else {}
    return Part(name, command, threads, counts=True, alone=alone)


def parts() -> list[Part]:
    """Return all parts, longest first."""
    python, here = sys.executable, ROOT / "tests" / "gpu"
    tool = sanitizer() or "compute-sanitizer"
    watched = ["--error-exitcode", "1", python, str(here / "sanitizer_shapes.py")]
    ops = "tests/turbofno_ops"
    # those with code of their own for A100
    kernels = [
        f"{ops}/test_{name}.py" for name in ("cuda", "cuda_programs", "fft_cuda", "dense_dft")
    ]
    modules = (
        *("spectral_product", "batched_spectral", "plan_cuda"),
        *("module_graph", "dispatch", "ntt", "norms"),
    )
    others = [f"{ops}/test_{name}.py" for name in modules]
    # few workers: processes take turns on a GPU, and keep a core busy while they wait for it
    return [
        _pytest("ampere", *kernels, module="tests.gpu.ampere", workers=6),
        _pytest("ops", *kernels, *others, workers=4),
        Part(
            "memcheck",
            [tool, "--tool", "memcheck", "--report-api-errors", "no", *watched],
            # one allocation per array, so that reads past its end are found
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        ),
        # the slowest part, so it is cut in two
        Part("racecheck", [tool, "--tool", "racecheck", *watched, "plain", "transforms"]),
        Part("racecheck of blocks", [tool, "--tool", "racecheck", *watched, "blocks"]),
        # without the test that compiles every kernel again: `make test` has it, and the part ampere compiles them here
        _pytest("library", f"{ops}/test_native.py", "-k", "not compile_without_warnings"),
        _pytest(
            "service",
            *("tests/service/runtime", "tests/models/zoo/pde/test_random_fields.py"),
            "tests/models/test_gpu_transforms.py",
            "tests/models/verify/test_command.py",
            f"--deselect={OVERLAP}",
            workers=3,
        ),
        Part("zoo", [python, str(here / "zoo_errors.py")]),
        _pytest("distributed", f"{ops}/test_distributed.py", "-k", "on_gpus", alone=True),
        _pytest(
            "devices", "tests/service/processes/test_devices.py", OVERLAP, *_SECOND_CARD, alone=True
        ),
        _pytest("groups", "tests/service/processes/test_groups.py", "-k", "not cpu", alone=True),
    ]


def outcome(part: Part, card: int | None = None) -> Outcome:
    """Run a part, on one card if asked, print its output and return the outcome."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # a new seed for each run; a failure prints it. torch.compile starts a process per core unless told not to
    own = {VARIABLE: "new", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment = {**own, **os.environ, "PYTHONPATH": path, **part.environment}
    if card is not None:
        environment.setdefault("CUDA_VISIBLE_DEVICES", str(card))
    began = time.monotonic()
    if _ENDING.is_set():
        return NOT_RUN
    with TemporaryDirectory() as folder:
        counted = Path(folder) / "counts.xml"
        asked = [f"--junitxml={counted}"] if part.counts else []
        try:
            running = subprocess.Popen(
                [*part.command, *asked],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # What ends the runner must not end its parts, which then say nothing.
                start_new_session=True,
            )
        except FileNotFoundError:
            return Outcome(
                failed=1,
                how=f"NOT RUN: there is no {part.command[0]}, neither on the PATH nor in the CUDA toolkit",
            )
        said, late = _ended(running)
        passed, failed, skipped = _counts(counted) if part.counts else (1, 0, 0)
    print(f"\n== {part.name}: {' '.join(part.command)}\n{said}", flush=True)
    seconds = round(time.monotonic() - began)
    if running.returncode == 0 and not late:
        return Outcome(passed, failed, skipped, seconds)
    passed = passed if part.counts else 0
    how = f"FAILED with exit code {running.returncode}"
    if late:
        how = f"STOPPED after {_MAX_SECONDS} s"
    elif _ENDING.is_set():
        how = "STOPPED"
    return Outcome(passed, max(failed, 1), skipped, seconds, how)


def _ended(running: subprocess.Popen[str]) -> tuple[str, bool]:
    """Return what a part printed, and whether it was stopped; pytest then prints the failures until there."""
    _RUNNING.add(running)
    if _ENDING.is_set():
        running.send_signal(signal.SIGINT)
    try:
        return running.communicate(timeout=_MAX_SECONDS)[0], False
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGINT)
    finally:
        _RUNNING.discard(running)
    try:
        return running.communicate(timeout=_LAST_WORDS_SECONDS)[0], True
    except subprocess.TimeoutExpired:
        running.kill()
        return running.communicate()[0], True


def end(*_: object) -> None:
    """End the run: its parts say what they found."""
    _ENDING.set()
    for running in tuple(_RUNNING):
        running.send_signal(signal.SIGINT)


def _counts(file: Path) -> tuple[int, int, int]:
    """Return passed, failed and skipped tests of a JUnit file; zeros if it does not exist."""
    if not file.is_file():
        return 0, 0, 0
    suites = list(ET.parse(file).getroot().iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


def run_all(all_parts: list[Part], *, at_once: int, cards: int) -> Iterator[tuple[str, Outcome]]:
    """Yield name and outcome of every part as it ends, `at_once` in parallel, then those that run alone.

    Parallel parts take the cards in turns; those that run alone see all of them.
    """
    together = [part for part in all_parts if not part.alone]
    with ThreadPoolExecutor(at_once) as pool:
        begun = {pool.submit(outcome, part, i % cards): part for i, part in enumerate(together)}
        yield from ((begun[done].name, done.result()) for done in as_completed(begun))
    yield from ((part.name, outcome(part)) for part in all_parts if part.alone)


def main() -> None:
    """Run every part, also after a failure; print one line for each and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=record.FILE, help="the file to write")
    parser.add_argument(
        "--continue", action="store_true", dest="go_on", help="leave out what has passed"
    )
    arguments = parser.parse_args()
    print(report())
    if not torch.cuda.is_available():
        raise SystemExit(
            f"FAILED: these tests need a GPU, and PyTorch {torch.__version__} sees no GPU"
        )
    if not native_status().loaded:
        raise SystemExit(f"FAILED: the CUDA kernels are not loaded: {native_status().detail}")
    sources = record.hashes()
    at_once = max(1, (os.cpu_count() or 1) // _CORES_PER_PART)
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    run: record.Record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cards": cards,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    passed = record.passed(record.read(arguments.record), sources, run) if arguments.go_on else {}
    outcomes = {part.name: NOT_RUN for part in parts()}
    outcomes |= {name: Outcome(**found, how="passed before") for name, found in passed.items()}
    left = [part for part in parts() if part.name not in passed]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    for name, how in run_all(left, at_once=at_once, cards=len(cards)):
        outcomes[name] = how
        # after each part, so that an interrupted run leaves its results
        recorded = {part: _recorded(found) for part, found in outcomes.items()}
        record.written(arguments.record, sources, {**run, "parts": recorded})
    print(f"\n{', '.join(cards)}, PyTorch {torch.__version__}")
    for name, o in outcomes.items():
        print(
            f"{name:19} {o.how}: {o.passed} passed, {o.failed} failed, {o.skipped} skipped, {o.seconds} s"
        )
    print(f"written to {arguments.record}: {record.covers(record.read(arguments.record), sources)}")
    sys.exit(1 if any(o.failed for o in outcomes.values()) else 0)


def _recorded(of: Outcome) -> dict[str, int]:
    return {name: value for name, value in asdict(of).items() if name != "how"}


if __name__ == "__main__":
    main()
