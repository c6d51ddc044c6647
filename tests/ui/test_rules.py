"""Accessibility of the page (axe-core), its content security policy, and API keys kept only in memory."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import httpx
import pytest

pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import expect

from tests.e2e.server_process import ServerProcess
from tests.service.tiny import save_tiny
from tests.ui.browser import open_at, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.timeout(120)

KEY = "alice-0123456789abcdef"
# WCAG levels A and AA, and axe's best practices.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(page: Page) -> list[str]:
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    page.evaluate(axe)
    found = page.evaluate("(tags) => axe.run({ runOnly: tags })", RULES)
    assert len(found["passes"]) > 20
    return [
        f"{one['id']}: {node['html']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]


def test_axe_finds_nothing_in_light_or_dark_with_or_without_an_error(
    page: Page, tmp_path: Path
) -> None:
    open_at(page, "navier-stokes-2d")
    page.get_by_role("button", name="Play").click()
    wait_for(page.locator("#rollout-state"), "^Step")
    page.get_by_text("Model card").click()
    expect(page.locator("#card-text table").first).to_be_visible()
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.locator("#command")).to_be_visible()
    assert violations(page) == []
    page.locator("#grid").select_option("32,32")
    expect(page.locator("#verdict .bad").first).to_be_visible()
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []
    page.get_by_label("Upload").check()
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    page.get_by_label("File (.npy)").set_input_files(tmp_path / "bad.npy")
    expect(page.get_by_role("alert")).to_be_visible()
    assert violations(page) == []


def test_the_content_policy_allows_only_the_pages_own_files(
    browser: BrowserContext, server: ServerProcess
) -> None:
    redirect = httpx.get(f"{server.url}/ui")
    assert (redirect.status_code, redirect.headers["location"]) == (307, "ui/")
    answer = httpx.get(f"{server.url}/ui/")
    policy = dict(one.strip().partition(" ")[::2] for one in answer.headers["content-security-policy"].split(";"))  # fmt: skip
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = browser.new_page()
    page.goto("/ui/")
    ran = page.evaluate(
        """() => {
            const script = document.createElement("script");
            try { script.textContent = "window.ran = true"; document.head.append(script); } catch {}
            return Boolean(window.ran);
        }"""
    )
    assert ran is False
    page.close()


def test_a_key_is_requested_and_not_stored(browser: BrowserContext, tmp_path: Path) -> None:
    save_tiny(tmp_path / "models", "tiny-1d")
    (tmp_path / "keys").write_text(f"alice {KEY}\n")
    options = ("--api-keys-file", str(tmp_path / "keys"))
    with ServerProcess(tmp_path / "models", tmp_path / "log", *options) as guarded:
        page = browser.new_page()
        page.goto(f"{guarded.url}/ui/")
        wait_for(page.get_by_role("alert"), "an API key is needed")
        expect(page.get_by_label("API key")).to_be_focused()
        page.keyboard.type("wrong-0123456789abcdef")
        page.keyboard.press("Enter")
        wait_for(page.get_by_role("alert"), "this API key is not known")
        # As a program for text turns three points, or a table that cuts a key.
        page.get_by_label("API key").fill("alice-0123456789…")
        page.keyboard.press("Enter")
        wait_for(page.get_by_role("alert"), "no API key: keys have only ASCII")
        expect(page.get_by_label("API key")).to_be_focused()
        page.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        wait_for(page.locator("#state"), "^Predicted in")
        expect(page.get_by_role("alert")).to_be_hidden()
        kept = page.evaluate(
            "() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href])"
        )
        assert KEY not in kept
        page.reload()
        wait_for(page.get_by_role("alert"), "an API key is needed")
        page.close()
        assert guarded.stop() == 0
        assert KEY not in guarded.log.read_text()
