"""Files that run code in an ordinary loader run none in the importers, and are refused with a reason."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.attacks import payloads
from turbofno.models.importers.detect import read_checkpoint
from turbofno.models.importers.normalizers import read_normalizer
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.safe_pickle import read_pickle

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Attack:
    """A file, the marker that its code creates, and our reader for such files."""

    name: str
    file: Path
    marker: Path
    read: Callable[[Path], object]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with importable fakes of a library whose names checkpoints may contain, and of a user's code."""
    root = tmp_path_factory.mktemp("library")
    (root / "physicsnemo").mkdir()
    (root / "physicsnemo" / "__init__.py").touch()
    (root / "physicsnemo" / "evil.py").write_text(payloads.EVIL_LIBRARY)
    (root / "evil_code.py").write_text(payloads.EVIL_LIBRARY)
    return root


@pytest.fixture(scope="module")
def attacks(tmp_path_factory: pytest.TempPathFactory) -> list[Attack]:
    files, markers = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("markers")
    found: list[Attack] = []

    def add(
        name: str, suffix: str, make: Callable[[Path], bytes], read: Callable[[Path], object]
    ) -> None:
        number = f"{len(found):02}"
        file, marker = files / f"{number}{suffix}", markers / number
        file.write_bytes(make(marker))
        found.append(Attack(name, file, marker, read))

    for name in payloads.plain_pickles(markers / "x"):
        add(name, ".pickle", lambda m, name=name: payloads.plain_pickles(m)[name],
            lambda path: read_pickle(path.read_bytes()))  # fmt: skip
    for name in payloads.torch_files(markers / "x"):
        add(name, ".pt", lambda m, name=name: payloads.torch_files(m)[name], read_checkpoint)
        add(f"{name}, as a normaliser", ".pt", lambda m, name=name: payloads.torch_files(m)[name],
            read_normalizer)  # fmt: skip
    add("object array", ".npz", payloads.object_array, read_normalizer)
    add("mdlus", ".mdlus", payloads.mdlus, read_checkpoint)
    return found


def test_every_payload_runs_in_an_ordinary_loader(attacks: list[Attack], library: Path) -> None:
    path = os.pathsep.join([str(library), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, "-m", "tests.attacks.plain_loader", str(attacks[0].file.parent)]
    done = subprocess.run(
        program, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip
    harmless = [attack.name for attack in attacks if not attack.marker.exists()]
    for attack in attacks:
        attack.marker.unlink(missing_ok=True)
    assert not harmless, done.stderr


def test_no_payload_runs_in_the_importers(
    attacks: list[Attack], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(library)
    assert len(attacks) > 25
    for attack in attacks:
        if attack.name in payloads.INERT:
            attack.read(attack.file)
        else:
            with pytest.raises(ImportRefused) as refusal:
                attack.read(attack.file)
            assert len(str(refusal.value)) > 30, attack.name
        assert not attack.marker.exists(), attack.name
        assert not {"physicsnemo", "evil_code"} & set(sys.modules), attack.name


def test_importers_and_service_call_no_unsafe_loader() -> None:
    """The source of importers and service contains no call of a loader that can execute code."""
    forbidden = re.compile(
        r"torch\.(load|jit|hub)\b|\bpickle\.\w|Unpickler|allow_pickle=True|\b(eval|exec|__import__)\("
    )
    files = [*(ROOT / "models" / "importers").rglob("*.py"), *(ROOT / "service").rglob("*.py"),
             ROOT / "models" / "core" / "checkpoint.py"]  # fmt: skip
    assert len(files) > 50
    found = []
    for file in files:
        code = re.sub(r"\.eval\(\)", "", file.read_text())
        found += [f"{file.name}: {match[0]}" for match in forbidden.finditer(code)]
    assert found == []
    assert forbidden.search("value = pickle.loads(raw)")
