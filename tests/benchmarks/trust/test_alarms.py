"""Held-out fields almost never raise a warning; plainly wrong inputs always do."""

from __future__ import annotations

import pytest

from benchmarks.trust import alarms


def test_tables_of_burgers(capsys: pytest.CaptureFixture[str]) -> None:
    alarms.main(["burgers-1d", "--n", "64"])
    good, recorded, gross = capsys.readouterr().out.strip().split("\n\n")
    row = good.splitlines()[2].split("|")
    assert row[1:3] == [" burgers-1d ", " 64 "]
    assert all(float(share.removesuffix("% ")) <= 2.0 for share in row[5:8])
    assert "| burgers-1d | mean + 1 | 1e+02 % | 12 of 12 | - |" in recorded.splitlines()
    lines = gross.splitlines()[2:]
    assert len(lines) == len(alarms.GROSS)
    assert all(line.endswith("| 16 of 16 | 16 of 16 |") for line in lines)
