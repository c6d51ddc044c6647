"""Checkpoint files that change while they are loaded: the hashed bytes are loaded, and the process survives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from tests.service import forked
from tests.service.tiny import tiny_config
from tests.thorough import tried
from turbofno.models.core.checkpoint import WEIGHTS_FILE, save_model
from turbofno.models.core.fno import FNO

if TYPE_CHECKING:
    from turbofno.models.core.config import ModelConfig

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).resolve().parents[2]
LOADS = tried(60, thoroughly=150)
CUT = """
import sys, threading
from pathlib import Path
import torch
from turbofno.models.core.checkpoint import load_model

folder = Path(sys.argv[1])
first = load_model(folder).module.state_dict()
reading, cut = threading.Event(), threading.Event()
take = torch.nn.Module.load_state_dict

def take_while_it_is_cut(*given, **more):
    reading.set()
    cut.wait()
    return take(*given, **more)

def shorten():
    reading.wait()
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(0)
    cut.set()

torch.nn.Module.load_state_dict = take_while_it_is_cut
threading.Thread(target=shorten).start()
state = load_model(folder).module.state_dict()
assert all(torch.equal(state[name], first[name]) for name in first)
"""
RENAME = """
import sys, threading
from pathlib import Path
import torch
from turbofno.models.core.checkpoint import CheckpointError, load_model

folder, loads = Path(sys.argv[1]), int(sys.argv[2])
weights, other = folder / "model.safetensors", folder / "other"
first = load_model(folder).module.state_dict()
done = threading.Event()

def rename():
    contents = weights.read_bytes(), other.read_bytes()
    while not done.is_set():
        for content in contents:
            other.write_bytes(content)
            other.replace(weights)

renaming = threading.Thread(target=rename)
renaming.start()
wrong = 0
for _ in range(loads):
    try:
        state = load_model(folder).module.state_dict()
    except CheckpointError:
        continue
    wrong += any(not torch.equal(state[name], first[name]) for name in first)
done.set()
renaming.join()
assert not wrong, f"{wrong} times other weights under the good hash"
"""

IMPORT = """
import sys
from pathlib import Path
from turbofno.models.importers.tensor_files import read_safetensors

file = Path(sys.argv[1])
tensors = read_safetensors(file)
file.open("r+b").truncate(0)
assert tensors["weight"].sum() == 1 << 16
"""


def large_config() -> ModelConfig:
    """A checkpoint with 2 MiB of weights, so that files can change during a load."""
    config = tiny_config(n_dim=2)
    architecture = {"hidden_channels": 32, "modes": (16, 16)}
    return config.model_copy(
        update={"architecture": config.architecture.model_copy(update=architecture)}
    )


def run(program: str, *arguments: object) -> None:
    """Run `program` in a child process, which the fault would kill."""
    status, output = forked.run(program, *map(str, arguments), cwd=ROOT, env=os.environ)
    assert status == 0, f"{status}: {output}"


def test_a_file_that_is_cut_while_it_is_loaded_does_not_end_the_process(tmp_path: Path) -> None:
    config = large_config()
    save_model(tmp_path, config, FNO(config.architecture))
    run(CUT, tmp_path)


def test_a_file_that_is_renamed_while_it_is_loaded_is_not_served_under_the_other_hash(
    tmp_path: Path,
) -> None:
    config = large_config()
    for name in ("other", "model"):
        save_model(tmp_path / name, config, FNO(config.architecture))
    (tmp_path / "other" / WEIGHTS_FILE).replace(tmp_path / "model" / "other")
    run(RENAME, tmp_path / "model", LOADS)


def test_a_file_that_is_cut_while_it_is_imported_does_not_end_the_process(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(1 << 16)}, tmp_path / WEIGHTS_FILE)
    run(IMPORT, tmp_path / WEIGHTS_FILE)
