"""Discovery of models in a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from turbofno.models.core.registry import ModelLocation, discover


def put_config(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_discover_finds_flat_and_versioned_models_in_order(tmp_path: Path) -> None:
    flat = put_config(tmp_path / "flat")
    second = put_config(tmp_path / "deep" / "2")
    tenth = put_config(tmp_path / "deep" / "10")
    put_config(tmp_path / "deep" / "draft")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("not a model")
    assert discover(tmp_path) == [
        ModelLocation("deep", "2", second),
        ModelLocation("deep", "10", tenth),
        ModelLocation("flat", "1", flat),
    ]


def test_versions_beside_a_flat_model_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in ("a", "a/2", "a/10", "a/1", "a/01"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "config.json").write_text("{}")
    found = [(one.version, one.path.relative_to(tmp_path).as_posix()) for one in discover(tmp_path)]
    assert found == [("1", "a"), ("2", "a/2"), ("10", "a/10")]
    assert {one.getMessage() for one in caplog.records} == {
        f"{tmp_path}/a/{name} is skipped: {tmp_path}/a is version 1, too" for name in ("1", "01")
    }


def test_the_shortest_name_of_a_version_is_the_one_that_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So that what answers does not depend on the order in which the file system lists the folders."""
    for name in ("002", "2", "02", "010"):
        put_config(tmp_path / "a" / name)
    assert [one.version for one in discover(tmp_path)] == ["2", "010"]
    assert {one.getMessage() for one in caplog.records} == {
        f"{tmp_path}/a/{name} is skipped: {tmp_path}/a/2 is version 2, too"
        for name in ("02", "002")
    }


def test_a_folder_whose_name_is_not_utf8_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_config(tmp_path / "odd-\udcff")
    put_config(tmp_path / "odd-\udcfe" / "1")
    fine = put_config(tmp_path / "größe")
    assert discover(tmp_path) == [ModelLocation("größe", "1", fine)]
    assert caplog.text.count("not UTF-8") == 2


def test_a_folder_that_may_not_be_read_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lost+found of a volume. Tests may run as root, who may read everything."""
    fine = put_config(tmp_path / "flow")
    (tmp_path / "lost+found").mkdir()
    is_file = Path.is_file

    def forbidden(path: Path) -> bool:
        if path.parent.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", forbidden)
    assert discover(tmp_path) == [ModelLocation("flow", "1", fine)]
    assert "lost+found is skipped" in caplog.text


def test_a_folder_that_is_renamed_meanwhile_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = put_config(tmp_path / "flow")
    put_config(tmp_path / "new" / "1")
    is_dir = Path.is_dir

    def renaming(path: Path) -> bool:
        found = is_dir(path)
        if path.name == "new":
            path.rename(tmp_path / "renamed")
        return found

    monkeypatch.setattr(Path, "is_dir", renaming)
    assert ModelLocation("flow", "1", fine) in discover(tmp_path)


def test_a_version_that_is_a_link_out_of_the_repository_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    for folder in (elsewhere, root / "flow" / "1", root / "blobs"):
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
    (root / "flow" / "2").symlink_to(elsewhere)
    (root / "flow" / "3").symlink_to(root / "blobs")
    (root / "linked").symlink_to(elsewhere)
    found = [(model.name, model.version) for model in discover(root)]
    assert found == [("blobs", "1"), ("flow", "1"), ("flow", "3"), ("linked", "1")]
    assert "leads out" in caplog.text


def test_a_folder_whose_name_begins_with_a_dot_is_no_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that is being copied, to be renamed at the end, or one of the file system."""
    fine = put_config(tmp_path / "flow")
    put_config(tmp_path / ".flow")
    put_config(tmp_path / ".snapshot" / "1")
    assert discover(tmp_path) == [ModelLocation("flow", "1", fine)]
    assert not caplog.records


def test_the_versions_of_one_model_are_found_without_reading_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    second = put_config(tmp_path / "flow" / "2")
    for folder in ("heat/2", "heat/02", "odd-\udcff"):
        put_config(tmp_path / folder)
    assert discover(tmp_path, "flow") == [ModelLocation("flow", "2", second)]
    assert discover(tmp_path, "../" + tmp_path.name + "/flow") == []
    assert not caplog.records


def test_discover_refuses_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere"):
        discover(tmp_path / "nowhere")
