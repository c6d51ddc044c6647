"""Which models a repository folder holds: name/ or name/version/ folders with a config.json."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turbofno.models.core.files import is_inside

CONFIG_FILE = "config.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Where one version of a model lies. Its checkpoint has not been looked into yet."""

    name: str
    version: str
    path: Path


def discover(root: Path) -> list[ModelLocation]:
    """Every model below `root`, sorted by name, then by version as a number.

    `root/NAME/config.json` is version 1 of NAME; `root/NAME/V/config.json`, V digits, is version V.
    Other folders and files are passed over, and, with a warning, those whose name is no text, and versions that
    are links out of both NAME and `root`. NAME itself may be a link: who runs the service puts it there.

    Raises:
        NotADirectoryError: `root` is not a folder.
    """
    if not root.is_dir():
        raise NotADirectoryError(f"model repository {root} is not a folder")
    found = []
    for folder in _with_names(root):
        if (folder / CONFIG_FILE).is_file():
            found.append(ModelLocation(folder.name, "1", folder))
            continue
        if not folder.is_dir():
            continue
        found += [
            ModelLocation(folder.name, version.name, version)
            for version in folder.iterdir()
            if version.name.isdecimal()
            and (version / CONFIG_FILE).is_file()
            and _stays_inside(version, folder, root)
        ]
    return sorted(found, key=lambda model: (model.name, int(model.version)))


def _stays_inside(version: Path, folder: Path, root: Path) -> bool:
    if is_inside(version, folder, root):
        return True
    logger.warning("%s is passed over: it is a link that leads out of the model's folder", version)
    return False


def _with_names(root: Path) -> Iterator[Path]:
    """What lies there, but for names that are not UTF-8: they could not be told, nor asked for."""
    for path in root.iterdir():
        try:
            path.name.encode()
        except UnicodeEncodeError:
            logger.warning("%a in %s is passed over: its name is not UTF-8", path.name, root)
        else:
            yield path
