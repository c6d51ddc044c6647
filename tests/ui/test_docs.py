"""The API documentation in a browser that can reach only the server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.timeout(120)


def test_the_root_leads_to_the_page(page: Page) -> None:
    page.goto("/")
    expect(page).to_have_url(re.compile(r"/ui/(#.*)?$"))


def test_the_documentation_shows_routes_and_tries_them_without_a_cdn(page: Page) -> None:
    page.goto("/docs")
    route = page.locator(".opblock-get", has=page.locator('[data-path="/v1/models"]'))
    expect(page.locator(".opblock", has_text=":predict").first).to_be_visible()
    route.locator(".opblock-summary-control").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    status = route.locator(".live-responses-table .response-col_status").last
    expect(status).to_contain_text("200")
