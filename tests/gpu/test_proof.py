"""The runner of the GPU tests, without a GPU."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu import ampere, run, sanitizer_shapes
from tests.gpu.zoo_errors import equal_to_three_digits
from tests.service import forked
from turbofno_ops import CompiledFNO


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_fails_without_a_gpu() -> None:
    program = "import runpy; runpy.run_module('tests.gpu.run', run_name='__main__')"
    status, output = forked.run(program, cwd=run.ROOT, env=os.environ)
    assert status != 0
    assert "sees no GPU" in output


def test_a_part_passes_fails_or_is_not_run() -> None:
    assert run.outcome(run.Part("a", [sys.executable, "-c", ""])).how == "passed"
    failed = run.outcome(run.Part("b", [sys.executable, "-c", "raise SystemExit(3)"]))
    assert (failed.how, failed.passed, failed.failed) == ("FAILED with exit code 3", 0, 1)
    missing = run.outcome(run.Part("c", ["no-such-program"]))
    assert missing.how.startswith("NOT RUN")
    assert missing.failed == 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Parts are not born with Ctrl-C ignored, as children of a job in the background are; the runner does the same."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_part_that_is_stopped_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_MAX_SECONDS", 3)
    waits = "import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: print('until here')"
    stopped = run.outcome(run.Part("d", [sys.executable, "-c", waits]))
    assert (stopped.failed, stopped.how) == (1, "STOPPED after 3 s")
    assert "\nuntil here\n" in capsys.readouterr().out


@pytest.mark.usefixtures("interruptible")
def test_a_run_that_is_ended_says_what_its_parts_found_and_starts_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "_ENDING", threading.Event())
    begun = tmp_path / "begun"
    waits = (
        f"import pathlib, time\ntry: pathlib.Path({str(begun)!r}).touch(); time.sleep(600)\n"
        "except KeyboardInterrupt: print('until here'); raise SystemExit(2)"
    )
    parts = [run.Part(name, [sys.executable, "-c", waits]) for name in ("now", "later")]

    def end_once_it_runs() -> None:
        while not begun.exists():
            time.sleep(0.01)
        run.end()

    ending = threading.Thread(target=end_once_it_runs)
    ending.start()
    found = dict(run.run_all(parts, at_once=1, cards=1))
    ending.join()
    assert (found["now"].how, found["now"].failed) == ("STOPPED", 1)
    assert found["later"] == run.NOT_RUN
    assert "\nuntil here\n" in capsys.readouterr().out


def test_tests_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # plugins and conftest.py take seconds to import
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    alone = ("--noconftest", "--rootdir", str(tmp_path))
    tests = tmp_path / "test_it.py"
    tests.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert False\n"
        "def test_left_out(): pytest.skip('no')\n"
    )
    found = run.outcome(run._pytest("t", *alone, str(tests)))
    assert (found.passed, found.failed, found.skipped) == (1, 1, 1)
    none = run.outcome(run._pytest("t", *alone, "--no-such-option"))
    assert (none.passed, none.failed) == (0, 1)


def test_parts_that_must_run_alone_run_after_all_others() -> None:
    alone = run.Part("alone", [sys.executable, "-c", ""], alone=True)
    others = [run.Part(name, [sys.executable, "-c", ""]) for name in ("a", "b", "c")]
    names = [name for name, _ in run.run_all([alone, *others], at_once=2, cards=1)]
    assert sorted(names[:-1]) == ["a", "b", "c"]
    assert names[-1] == "alone"


def test_all_parts_name_existing_files() -> None:
    arguments = [a for part in run.parts() for a in part.command if "tests/" in a]
    files = [a.removeprefix("--deselect=").partition("::")[0] for a in arguments]
    assert len(files) >= 8
    assert all((run.ROOT / file).exists() for file in files)


def test_the_a100_build_has_its_own_folder() -> None:
    configure, build = ampere.build_commands((9, 0))
    assert "-DCMAKE_CUDA_FLAGS=-gencode=arch=compute_80,code=sm_90" in configure
    assert str(ampere.FOLDER) in configure
    assert str(ampere.FOLDER) in build


def test_sanitizer_is_found_in_the_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    shutil.copy("/bin/true", tool)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert run.sanitizer() == str(tool)


def test_sanitizer_shapes_check_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    shape: sanitizer_shapes.Shape = (1, 9, (13,), (5,))
    cpu = torch.device("cpu")
    assert sanitizer_shapes.verdict(shape, {}, "fp32", cpu).startswith("right")
    with torch.inference_mode():
        monkeypatch.setattr(CompiledFNO, "_run_eager", lambda *_: torch.zeros(1, 4, 13))
        assert sanitizer_shapes.verdict(shape, {}, "fp32", cpu).startswith("WRONG 1.0e+00")
        monkeypatch.setattr(CompiledFNO, "refusal", lambda *_: "a reason")
        assert sanitizer_shapes.verdict(shape, {}, "fp32", cpu) == "REFUSED: a reason"


@pytest.mark.parametrize(
    ("measured", "recorded", "same"),
    [
        (0.0005205, 0.0005205, True),
        (0.0005209, 0.0005205, True),
        (0.0005215, 0.0005205, False),
        (0.01080, 0.01081, True),
        (0.0109, 0.01081, False),
        (float("nan"), 0.01081, False),
    ],
)
def test_three_digits(measured: float, recorded: float, same: bool) -> None:
    assert equal_to_three_digits(measured, recorded) is same
