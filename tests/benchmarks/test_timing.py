"""Benchmarks that take no options say so, instead of measuring."""

from __future__ import annotations

import runpy
import sys

import pytest


@pytest.mark.parametrize(
    "name",
    [
        *("caches", "factorised", "gpu.picture", "models", "resolution", "serving.budget"),
        *("startup", "tables", "tfno", "trust.cost"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_a_command_without_options_refuses_them(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--n", "3"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert stopped.value.code == 2
    assert "unrecognized arguments: --n 3" in capsys.readouterr().err
