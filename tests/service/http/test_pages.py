"""`/` for browsers and programs, and documentation that loads nothing from elsewhere."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.service.http.serving import serving
from turbofno.service.http import pages
from turbofno.service.version import VERSION

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def get(path: str, headers: dict[str, str] | None = None, **settings: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with serving(**settings) as (client, _):
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize(("page", "where"), [(True, "ui/"), (False, "docs")])
def test_a_browser_is_redirected_to_the_page_or_the_documentation(page: bool, where: str) -> None:
    answer = get("/", BROWSER, ui=page)
    assert (answer.status_code, answer.headers["location"]) == (307, where)


@pytest.mark.parametrize("page", [True, False])
def test_a_program_gets_the_entry_points_as_json(page: bool) -> None:
    document = get("/", ui=page).json()
    assert (document["name"], document["version"]) == ("turbofno", VERSION)
    assert document["models"] == "/v1/models"
    assert ("page" in document) == page
    for path in (document["models"], document["documentation"], document["openapi"], *filter(None, [document.get("page")])):  # fmt: skip
        assert get(path, ui=page).status_code == 200, path


def test_the_root_needs_no_key(tmp_path: Any) -> None:
    (tmp_path / "keys").write_text("alice alice-0123456789abcdef\n")
    assert get("/", api_keys_file=tmp_path / "keys", ui=True).status_code == 200
    assert get("/v1/models", api_keys_file=tmp_path / "keys").status_code == 401


def test_the_documentation_loads_only_its_own_files() -> None:
    answer = get("/docs")
    assert "//" not in re.sub(r"<!doctype.*?>", "", answer.text)
    files = re.findall(r'(?:src|href)="(docs/[^"]+)"', answer.text)
    assert len(files) == 3
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    for file in files:
        found = get(f"/{file}")
        assert found.status_code == 200, file
        assert found.headers["content-type"].startswith(("text/javascript", "text/css"))
    assert get("/docs/other.js").status_code == 404


def test_slow_readers_share_the_documentations_largest_file() -> None:
    """1.5 MB, which no limit on bytes counts."""
    first, second = (
        asyncio.run(pages.documentation_file("swagger-ui-bundle.js")).body for _ in range(2)
    )
    assert first is second
