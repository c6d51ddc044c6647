"""The pure wheel holds the ops and the stand-alone client, and nothing of the application."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import turbofno_ops

ROOT = Path(__file__).resolve().parent.parent


def test_wheel_holds_the_ops_and_the_client_only(tmp_path: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", str(tmp_path), str(ROOT)),
        ],
        check=True,
        timeout=170,
        env={**os.environ, "TURBOFNO_PURE": "1"},
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"turbofno-{turbofno_ops.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        client = {
            Path(name).name: archive.read(name)
            for name in names
            if name.startswith("turbofno_client/")
        }
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"turbofno_ops", "turbofno_client"}
    folder = ROOT / "service" / "turbofno_client"
    files = [*folder.glob("*.py"), folder / "py.typed"]
    assert client == {path.name: path.read_bytes() for path in files}
    sources = {path.name for path in (ROOT / "turbofno_ops").glob("*.py")}
    assert {Path(name).name for name in names if name.startswith("turbofno_ops/")} == sources
