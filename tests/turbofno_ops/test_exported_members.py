"""`__all__`, the examples of docstrings, and an import without CUDA context."""

from __future__ import annotations

import doctest
import subprocess
import sys

import torch

import turbofno_ops
import turbofno_ops.fourier_layer
import turbofno_ops.spectral_conv

WITH_EXAMPLE = (
    "GraphCache",
    "Replay",
    "compile_fno",
    "explain",
    "fourier_layer",
    "last_choice",
    "spectral_conv",
)


def test_all_can_be_imported() -> None:
    assert len(set(turbofno_ops.__all__)) == len(turbofno_ops.__all__)
    for name in turbofno_ops.__all__:
        assert getattr(turbofno_ops, name) is not None


def test_docstring_examples_run() -> None:
    for name in WITH_EXAMPLE:
        function = getattr(turbofno_ops, name)
        tests = doctest.DocTestFinder().find(function, name, globs={"torch": torch, name: function})
        runner = doctest.DocTestRunner()
        for test in tests:
            runner.run(test)
        assert runner.summarize(verbose=False).attempted > 0
        assert runner.summarize(verbose=False).failed == 0


def test_import_creates_no_cuda_context() -> None:
    # in a new process, because other tests may use the GPU
    code = "import torch, turbofno_ops; raise SystemExit(torch.cuda.is_initialized())"
    subprocess.run([sys.executable, "-c", code], check=True)
