"""Takes the documentation's screenshots of the page: `python -m tests.ui.pictures docs`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.e2e.server_process import ServerProcess
from tests.ui.browser import chromium, figure, open_at, wait_for
from turbofno.models.zoo import TRAINED

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTH = 1400


def main(folder: Path) -> None:
    """Write ui.png, ui-3d.png and ui-rollout.png."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        with ServerProcess(TRAINED, log) as server, chromium(server.url) as browser:
            page = browser.new_page()
            page.set_viewport_size({"width": WIDTH, "height": 900})
            open_at(page, "darcy-2d")
            _load(page, server)
            figure(page, "Prediction").locator(".plot").hover()
            _save(page, folder / "ui.png", "header", "#readout + *")
            open_at(page, "nagumo-3d")
            page.get_by_label("Plane across").select_option("y")
            figure(page, "Prediction").locator(".plot").hover()
            _save(page, folder / "ui-3d.png", "header", "#readout + *")
            page.emulate_media(color_scheme="dark")
            open_at(page, "navier-stokes-2d")
            page.get_by_role("button", name="Play").click()
            wait_for(page.locator("#rollout-state"), "^Step 2[0-9] of")
            page.get_by_role("button", name="Pause").click()
            page.get_by_role("button", name="Solve to this step").click()
            wait_for(figure(page, "Error", "#rollout-fields").locator(".note"), "relative L2")
            page.wait_for_timeout(5000)
            _save(page, folder / "ui-rollout.png", "#rollout", "#charts")


def _load(page: Page, server: ServerProcess) -> None:
    """Send requests for the charts to show."""
    field = httpx.get(f"{server.url}/v1/models/burgers-1d/sample").content
    url, headers = (
        f"{server.url}/v1/models/burgers-1d:predict",
        {"Content-Type": "application/x-npy"},
    )
    for second in range(24):
        for _ in range(4 + 3 * (second % 5)):
            httpx.post(url, content=field, headers=headers)
        page.wait_for_timeout(800)


def _save(page: Page, file: Path, first: str, last: str) -> None:
    """The region from the top of one element to the bottom of another, over the width of the page."""
    top, end = (page.locator(selector).first.bounding_box() for selector in (first, last))
    assert top is not None
    assert end is not None
    scrolled = page.evaluate("() => scrollY")
    start = max(0.0, top["y"] + scrolled - 12)
    height = end["y"] + end["height"] + scrolled + 28 - start
    clip = {"x": 0.0, "y": start, "width": float(WIDTH), "height": height}
    page.screenshot(path=file, full_page=True, clip=clip)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
