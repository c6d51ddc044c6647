"""Valid files with random damage: each is imported or refused, in bounded time and memory."""

from __future__ import annotations

import argparse
import copy
import io
import json
import random
import resource
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.attacks import honest
from tests.thorough import tried
from turbofno.models.importers import arguments as import_arguments
from turbofno.models.importers import command as import_command
from turbofno.models.importers.normalizers import read_normalizer
from turbofno.models.importers.refusal import ImportRefused

ROUNDS = tried(30, thoroughly=200)
MAX_SECONDS = 30.0
MAX_GROWTH = 700 << 20
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**31, 2**62, 1e308, float("nan"), "", "x\x1b[2J", "\ud800", b"x", [], {}, (),
    [1, "a", None], {"a": 1}, {1: 2}, [[2, 3], [4]], torch.nn.GELU(), torch.tanh, torch.Size([2]),
)  # fmt: skip
KINDS = (
    "legacy.pt", "module.pt", "packed.npz", "scaling.json", "scaling.npz", "script.pt", "script.safetensors",
    "tar.mdlus", "theirs_state_dict.pt", "training.pt", "zip.mdlus",
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    assert [path.name for path in honest.write_all(folder)] == list(KINDS)
    return folder


def attempt(path: Path, repository: Path) -> str:
    """Import a checkpoint or read a normaliser; return the reason of a refusal, or ""."""
    parser = argparse.ArgumentParser()
    import_arguments.add_arguments(parser)
    arguments = parser.parse_args([str(path), "--name", "model", "--force"])
    said = ""
    try:
        if path.suffix in (".npz", ".json"):
            read_normalizer(path)
        else:
            import_command.run(arguments, repository)
    except ImportRefused as refusal:
        said = str(refusal)
    assert said.isprintable()
    return said


def damaged(content: bytes, random_: random.Random) -> bytes:
    """A copy with a random fault: truncated, a piece removed or repeated, bytes or bits changed."""
    raw = bytearray(content)
    kind = random_.randrange(5)
    a, b = sorted(random_.randrange(len(raw)) for _ in range(2))
    if kind == 0:
        return bytes(raw[:a])
    if kind == 1:
        return bytes(raw[:a] + raw[b:])
    if kind == 2:
        return bytes(raw[:b] + raw[a:])
    for _ in range(1 + random_.randrange(6)):
        at = random_.randrange(len(raw))
        raw[at] = random_.randrange(256) if kind == 3 else raw[at] ^ 1 << random_.randrange(8)
    return bytes(raw)


def damaged_inside(content: bytes, random_: random.Random) -> bytes:
    """A copy of a zip archive with one damaged member and valid checksums."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random_.choice([name for name in members if members[name]])
    members[name] = damaged(members[name], random_)
    return honest.zip_of(members)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """The container and key of every entry of nested dicts, lists and modules."""
    inside = vars(value) if isinstance(value, torch.nn.Module) else value
    if isinstance(inside, dict | list):
        for key in list(inside) if isinstance(inside, dict) else range(len(inside)):
            yield inside, key
            yield from places(inside[key])


def distorted(path: Path, random_: random.Random) -> bytes:
    """The file's content saved again with one to three entries replaced, removed or renamed."""
    content = torch.load(path, weights_only=False)
    for _ in range(1 + random_.randrange(3)):
        container, key = random_.choice(list(places(content)))
        kind = random_.randrange(5)
        old = container[key]
        if kind == 0 and isinstance(container, dict):
            container[random_.choice(["x", 1, None, "conv0.weights1", f"{key}"[:-1]])] = old
        elif kind == 1:
            del container[key]
        elif kind == 2 and isinstance(old, torch.Tensor):
            container[key] = odd_tensor(old.detach(), random_)
        else:
            container[key] = copy.deepcopy(random_.choice(ODD_VALUES))
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def odd_tensor(old: torch.Tensor, random_: random.Random) -> torch.Tensor:
    choices: list[Callable[[], torch.Tensor]] = [
        lambda: old.flatten(), lambda: old[None], lambda: old[:0], lambda: old.sum(),
        lambda: torch.cat([old.flatten(), old.flatten()]), lambda: torch.zeros(1).expand(1000, 1000),
        lambda: old.to(torch.int8), lambda: old.bfloat16(), lambda: old.to(torch.complex128),
        lambda: old * float("nan"), lambda: old.transpose(0, -1) if old.ndim else old,
        lambda: torch.zeros([1] * 20), lambda: torch.zeros(0, 2**40),
    ]  # fmt: skip
    return random_.choice(choices)()


def check(path: Path, content: bytes, repository: Path, number: int) -> None:
    path.write_bytes(content)
    started = time.monotonic()
    try:
        attempt(path, repository)
    except Exception as error:
        raise AssertionError(f"round {number}: {type(error).__name__}: {error}") from error
    assert time.monotonic() - started < MAX_SECONDS, number
    path.unlink()


@pytest.mark.parametrize("name", KINDS)
def test_undamaged_file_is_imported(name: str, originals: Path, tmp_path: Path) -> None:
    assert attempt(originals / name, tmp_path) == ""


@pytest.mark.parametrize("name", KINDS)
def test_damaged_file_is_imported_or_refused(name: str, originals: Path, tmp_path: Path) -> None:
    shutil.copy(originals / "theirs_metadata.pkl", tmp_path)
    original, before = (originals / name).read_bytes(), memory()
    zipped = zipfile.is_zipfile(originals / name) and not name.startswith("tar")
    random_ = random.Random(torch.initial_seed())
    for number in range(ROUNDS):
        damage = damaged_inside if zipped and number % 2 else damaged
        check(tmp_path / name, damage(original, random_), tmp_path / "repository", number)
    assert memory() - before < MAX_GROWTH


@pytest.mark.parametrize(
    "name", ["legacy.pt", "module.pt", "training.pt", "theirs_state_dict.pt", "theirs_metadata.pkl"]
)
def test_distorted_content_is_imported_or_refused(
    name: str, originals: Path, tmp_path: Path
) -> None:
    """Valid files with invalid content."""
    before, random_ = memory(), random.Random(torch.initial_seed())
    read = name.replace("_metadata.pkl", "_state_dict.pt")
    for number in range(ROUNDS):
        for beside in originals.glob("theirs_*"):
            shutil.copy(beside, tmp_path)
        content = distorted(originals / name, random_)
        if read != name:
            (tmp_path / name).write_bytes(content)
            content = (originals / read).read_bytes()
        check(tmp_path / read, content, tmp_path / "repository", number)
    assert memory() - before < MAX_GROWTH


@pytest.mark.parametrize(
    "claim", ["in_channels", "latent_channels", "decoder_layers", "num_fno_layers"]
)
@pytest.mark.parametrize("size", [5_000_000, 2**31, 2**62])
def test_arguments_that_contradict_the_tensors_are_refused(
    claim: str, size: int, tmp_path: Path
) -> None:
    members, before, started = honest.mdlus(), memory(), time.monotonic()
    kind = json.loads(members["args.json"])
    kind["__args__"][claim] = size
    members["args.json"] = json.dumps(kind).encode()
    (tmp_path / "model.mdlus").write_bytes(honest.zip_of(members))
    assert attempt(tmp_path / "model.mdlus", tmp_path) != ""
    assert time.monotonic() - started < MAX_SECONDS
    assert memory() - before < MAX_GROWTH


def memory() -> int:
    """Peak memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
