"""Other libraries' releases for parity tests, each installed without dependencies into its own folder.

They run in processes of their own (`library_worker.py`), so that several releases of one package can be
compared and nothing of theirs comes into this environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from tests.service import forked

# What PhysicsNeMo imports on the way to its FNO; what is heavier has a stand-in in library_worker.py.
_LIGHT = [
    "treelib==1.8.0", "six==1.17.0", "importlib_metadata==8.5.0", "zipp==4.1.2", "tqdm==4.70.1",
    "requests==2.34.2", "termcolor==3.3.0", "jaxtyping==0.3.11", "wadler_lindig==0.1.8",
    "einops==0.8.2", "gitpython==3.2.1", "gitdb==4.0.12", "smmap==5.0.3", "psutil==7.2.2",
    "charset_normalizer==3.5.2",
]  # fmt: skip
REQUIREMENTS = {
    "neuraloperator-0.3.0": ["neuraloperator==0.3.0"],
    # the index's 1.0.0 lacks most files
    "neuraloperator-1.0": ["neuraloperator==1.0.2"],
    "modulus-0.9": ["nvidia-modulus==0.9.0", *_LIGHT],
    "physicsnemo-1": ["nvidia-physicsnemo==1.3.0", *_LIGHT],
    "physicsnemo-2": ["nvidia-physicsnemo==2.2.2", *_LIGHT],
    # it declares an older Python, but its networks run on this one
    "pdebench": ["pdebench==0.1.0", "--ignore-requires-python"],
}


def installed(name: str) -> Path:
    """The folder of this library, installed on first use; skips the test if that fails."""
    folder = Path(sys.prefix) / "other-libraries" / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
        target = Path(fresh) / "target"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        call = [*pip, "--no-deps", "--retries=1", f"--target={target}", *REQUIREMENTS[name]]
        done = subprocess.run(call, capture_output=True, text=True, timeout=170, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            pytest.skip(f"{name} cannot be installed: {reason}")
        if not folder.is_dir():
            target.rename(folder)
    return folder


def draw_and_save(name: str, folder: Path, count: int) -> None:
    """Draw `count` random networks, save them into `folder` and run them, with that library.

    Writes for each i the checkpoint `i.mdlus` or `i.pt` and `i_answers.pt`, a dict of lists: fields and
    outputs in float32, and outputs64 to the same fields in float64.
    """
    module = "tests.models.importers.library_worker"
    seed = str(torch.initial_seed() % 2**31)
    run_module(module, name, str(folder), seed, str(count), path=str(installed(name)))


def run_module(module: str, *arguments: str, path: str = "") -> None:
    """Run a module as a program, with this folder on its path."""
    program = (
        f"import runpy, sys, warnings\nwarnings.simplefilter('ignore')\nsys.path.insert(1, {path!r})\n"
        f"runpy.run_module({module!r}, run_name='__main__')"
    )
    status, output = forked.run(program, *arguments, cwd=Path(__file__).parents[3], env=os.environ)
    assert status == 0, output[-4000:]
