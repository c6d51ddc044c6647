"""A headless Chromium, if installed, and helpers for pages in it."""

from __future__ import annotations

import re
import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import BrowserContext, Locator, Page

CHROMIUM = shutil.which("chromium")
MISSING = "needs Chromium: apt-get install chromium"

_OPTIONS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
SECONDS = 15.0


@contextmanager
def chromium(url: str, *options: str) -> Iterator[BrowserContext]:
    """A browser with an empty profile and base URL `url`; `options` are those of its context."""
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            headless=True,
            base_url=url,
            args=[*_OPTIONS, *options],
            viewport={"width": 1280, "height": 900},
        )
        context.set_default_timeout(SECONDS * 1e3)
        expect.set_options(timeout=SECONDS * 1e3)
        yield context
        context.close()


def wait_for(locator: Locator, text: str) -> str:
    """Wait until the text of an element matches; return it."""
    expect(locator).to_have_text(re.compile(text))
    return locator.text_content() or ""


def open_at(page: Page, model: str) -> None:
    """Open the page with this model, and wait for its first prediction and solution."""
    page.goto(f"/ui/#{model}")
    expect(page.locator("#about-title")).to_have_text(model)
    wait_for(page.locator("#state"), "solved:|^Predicted in")


def figure(page: Page, title: str, group: str = "#fields") -> Locator:
    """The figure with this title."""
    return page.locator(f"{group} .field", has=page.locator(f"strong:text-is('{title}')"))
