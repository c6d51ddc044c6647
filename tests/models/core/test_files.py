"""Hostile model folders: links that lead out, pipes, giant files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.service.tiny import save_tiny
from turbofno.models.core.checkpoint import WEIGHTS_FILE, CheckpointError, load_model
from turbofno.models.core.files import FileRefused, read_inside
from turbofno.models.core.registry import CONFIG_FILE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "models")
    return tmp_path / "models" / "tiny-1d"


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
@pytest.mark.parametrize("relative", [False, True])
def test_a_link_that_leaves_the_folder_is_refused(
    folder: Path, tmp_path: Path, name: str, relative: bool
) -> None:
    # The link's target is a valid file.
    target = tmp_path / "elsewhere"
    (folder / name).rename(target)
    (folder / name).symlink_to(f"../../{target.name}" if relative else target)
    for repository in (None, folder.parent):
        with pytest.raises(CheckpointError, match=f"{name} is a link that leads out of") as refused:
            load_model(folder, repository=repository)
        assert "elsewhere" not in str(refused.value)


def test_a_link_to_a_linked_folder_is_no_way_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (folder / WEIGHTS_FILE).rename(tmp_path / "outside" / WEIGHTS_FILE)
    (folder / "inside").symlink_to(tmp_path / "outside")
    (folder / WEIGHTS_FILE).symlink_to(f"inside/{WEIGHTS_FILE}")
    with pytest.raises(CheckpointError, match="leads out"):
        load_model(folder)


def test_links_within_the_folder_and_the_repository_are_followed(folder: Path) -> None:
    # Kubernetes mounts volumes like this: every file is a link into a linked folder.
    (folder / "..2026").mkdir()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        (folder / name).rename(folder / "..2026" / name)
        (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data").symlink_to("..2026")
    load_model(folder)
    # A blob store in the same repository.
    (folder / "..2026" / WEIGHTS_FILE).rename(folder.parent / "blob")
    (folder / "..2026" / WEIGHTS_FILE).symlink_to("../../blob")
    load_model(folder, repository=folder.parent)
    with pytest.raises(CheckpointError, match="leads out"):
        load_model(folder)


def test_a_folder_that_is_itself_a_link_is_loaded(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(folder)
    load_model(tmp_path / "linked", repository=tmp_path / "models")


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_pipe_keeps_nobody_waiting(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_model(folder)


def test_a_folder_in_place_of_a_file_is_refused(folder: Path) -> None:
    (folder / WEIGHTS_FILE).unlink()
    (folder / WEIGHTS_FILE).mkdir()
    with pytest.raises(CheckpointError, match=WEIGHTS_FILE):
        load_model(folder)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_link_to_itself_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    with pytest.raises(CheckpointError, match=f"{name}: cannot be read: Too many"):
        load_model(folder)


def test_an_error_does_not_show_where_a_link_leads(folder: Path) -> None:
    (folder / WEIGHTS_FILE).unlink()
    (folder / "elsewhere").mkdir()
    (folder / WEIGHTS_FILE).symlink_to("elsewhere")
    with pytest.raises(CheckpointError, match=f"{WEIGHTS_FILE}: cannot be read: Is a") as refused:
        load_model(folder)
    assert "elsewhere" not in str(refused.value)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_file_far_larger_than_it_may_be_is_not_read(folder: Path, name: str) -> None:
    # A sparse file, which uses no disk space.
    os.truncate(folder / name, 1 << 40)
    with pytest.raises(CheckpointError, match=f"{1 << 40} bytes; at most"):
        load_model(folder)


def test_a_file_is_read_up_to_its_size_at_opening(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    assert read_inside(file, tmp_path, limit=3) == b"abc"
    with pytest.raises(FileRefused, match="3 bytes; at most 2"):
        read_inside(file, tmp_path, limit=2)
    with pytest.raises(FileNotFoundError):
        read_inside(tmp_path / "nothing", tmp_path, limit=1)
