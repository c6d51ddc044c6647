"""What people paste works: the curl lines of the README and those that `serve` prints when ready."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.server_process import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.server_process import ServerProcess

_BLOCK = re.compile(r"^```(?:sh|bash|shell)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# curl ends with 0 on any answer; this makes it fail, as a reader of the error would.
_STRICT = 'set -euo pipefail\ncurl() { command curl --fail-with-body --max-time 60 "$@"; }\n'


def readme_blocks() -> list[str]:
    """The shell blocks of the README that call curl."""
    text = (ROOT / "README.md").read_text()
    return [block for block in _BLOCK.findall(text) if "curl" in block]


def paste(script: str, folder: Path) -> str:
    """Run a script in a folder that looks like the checkout; returns what it printed."""
    for entry in ROOT.iterdir():
        (folder / entry.name).symlink_to(entry)
    done = subprocess.run(
        ["bash", "-c", _STRICT + script],
        cwd=folder,
        env=os.environ | {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_readme_calls_curl() -> None:
    assert readme_blocks()


@pytest.mark.parametrize("block", readme_blocks())
def test_curl_block_of_the_readme_works_when_pasted(
    server: ServerProcess, block: str, tmp_path: Path
) -> None:
    here = re.sub(r"http://(127\.0\.0\.1|localhost):8080", server.url, block)
    assert server.url in here, "the README names another address than the default"
    paste(here, tmp_path)


def test_banner_has_a_line_for_each_model_that_works_when_pasted(
    server: ServerProcess, repository: Path, tmp_path: Path
) -> None:
    log = server.log.read_text()
    lines = [line for line in log.splitlines() if line.startswith("python3 -c")]
    models = sorted(folder.name for folder in repository.iterdir())
    assert sorted(re.findall(r"/v1/models/([^:]+):predict", "\n".join(lines))) == models
    for number, line in enumerate(lines):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert '"outputs"' in paste(line, folder)
    assert f"{server.url}/docs" in log
