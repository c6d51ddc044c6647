"""One real server for the whole session, with the zoo's models and two tiny ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.server_process import ServerProcess
from tests.service.tiny import save_tiny
from turbofno.models.core.checkpoint import LoadedModel, load_model
from turbofno.models.zoo import TRAINED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny-1d, tiny-2d and links to every model of the zoo."""
    root = tmp_path_factory.mktemp("repository")
    for n_dim in (1, 2):
        save_tiny(root, f"tiny-{n_dim}d", n_dim=n_dim)
    for folder in TRAINED.iterdir():
        (root / folder.name).symlink_to(folder)
    return root


@pytest.fixture(scope="session")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The running server. At the end, SIGTERM must end it with status 0 and without a traceback in its log."""
    with ServerProcess(repository, tmp_path_factory.mktemp("server") / "log.txt") as running:
        yield running
        assert running.stop() == 0, running.tail()
        assert "Traceback" not in running.log.read_text(errors="replace"), running.tail()


@pytest.fixture(scope="session")
def tiny(repository: Path) -> dict[str, LoadedModel]:
    """The tiny models in this process, whose outputs are the expected ones."""
    return {name: load_model(repository / name) for name in ("tiny-1d", "tiny-2d")}
