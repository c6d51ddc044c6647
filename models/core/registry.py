"""The models of a repository folder: NAME/ or NAME/VERSION/ folders with a config.json."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turbofno.models.core.files import is_inside

CONFIG_FILE = "config.json"
CARD_FILE = "card.md"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Name, version and folder of a model; its files have not been read yet."""

    name: str
    version: str
    path: Path


def discover(root: Path, name: str | None = None) -> list[ModelLocation]:
    """Every model below `root`, or every version of one, sorted by name, then by version as a number.

    `root/NAME/config.json` is version 1 of NAME; `root/NAME/V/config.json`, V digits, is version V. Everything else is
    skipped, folders whose names begin with a dot without being read: no model's name does. With a warning are skipped a
    second folder of a version, such as `02` beside `2`, names that are not UTF-8, folders that cannot be read, and versions
    that are links out of both NAME and `root`. NAME itself may be a link: only the operator can create it.

    Raises:
        OSError: `root` is not a folder, or cannot be read.
    """
    if not root.is_dir():
        raise NotADirectoryError(f"model repository {root} is not a folder")
    found = []
    for folder in _folders(root, name):
        try:
            found += _models_in(folder, root)
        except OSError as error:
            # as lost+found, on a volume with a file system of its own, or one that was renamed meanwhile
            logger.warning("%s is skipped: %s", folder, error)
    return sorted(found, key=lambda model: (model.name, int(model.version)))


def _models_in(folder: Path, root: Path) -> list[ModelLocation]:
    if not folder.is_dir():
        return []
    found: dict[int, ModelLocation] = {}
    if (folder / CONFIG_FILE).is_file():
        found[1] = ModelLocation(folder.name, "1", folder)
    for version in sorted(version_folders(folder), key=lambda one: (len(one.name), one.name)):
        number = int(version.name)
        if number in found:
            taken = found[number].path
            logger.warning("%s is skipped: %s is version %d, too", version, taken, number)
        elif _stays_inside(version, folder, root):
            found[number] = ModelLocation(folder.name, version.name, version)
    return list(found.values())


def version_folders(folder: Path) -> list[Path]:
    """The folders of versions below that of a model."""
    return [
        version
        for version in folder.iterdir()
        if version.name.isdecimal() and (version / CONFIG_FILE).is_file()
    ]


def _stays_inside(version: Path, folder: Path, root: Path) -> bool:
    if is_inside(version, folder, root):
        return True
    logger.warning("%s is skipped: it is a link that leads out of the model's folder", version)
    return False


def _folders(root: Path, name: str | None) -> Iterator[Path]:
    """The entries of `root` that may be models, or the one of that name."""
    for path in root.iterdir():
        if path.name.startswith(".") or name not in (None, path.name):
            continue
        try:
            path.name.encode()
        except UnicodeEncodeError:
            # No request could name it.
            logger.warning("%a in %s is skipped: its name is not UTF-8", path.name, root)
        else:
            yield path
