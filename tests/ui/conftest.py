"""One server with the zoo's models and one without a solver, and one browser, for all tests of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.server_process import ServerProcess
from tests.service.tiny import save_tiny
from turbofno.models.zoo import TRAINED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import BrowserContext, Page


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server, which must end with status 0."""
    root = tmp_path_factory.mktemp("page")
    models = root / "models"
    save_tiny(models, "tiny-1d")
    save_tiny(models, "tiny-3d", n_dim=3)
    for name in ("burgers-1d", "navier-stokes-2d"):
        (models / name).symlink_to(TRAINED / name)
    with ServerProcess(models, root / "log") as running:
        yield running
        assert running.stop() == 0, running.tail()
        assert "Traceback" not in running.log.read_text(errors="replace"), running.tail()


# Not for the session: it runs an event loop, and other tests start their own.
@pytest.fixture(scope="module")
def browser(server: ServerProcess) -> Iterator[BrowserContext]:
    """The browser; skips without one."""
    from tests.ui.browser import CHROMIUM, MISSING, chromium

    if CHROMIUM is None:
        pytest.skip(MISSING)
    with chromium(server.url) as context:
        yield context


@pytest.fixture
def page(browser: BrowserContext, server: ServerProcess) -> Iterator[Page]:
    """A new tab, which must have no errors and no requests to other servers."""
    opened = browser.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    opened.on("request", lambda sent: None if sent.url.startswith(server.url) else wrong.append(sent.url))  # fmt: skip
    yield opened
    opened.close()
    # The browser's console message for a 4xx response, which the page shows itself.
    assert [line for line in wrong if "Failed to load resource" not in line] == []
