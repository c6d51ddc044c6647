"""The site builds without a warning, holds what the code says, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from turbofno.service.metrics import Metrics
from turbofno.service.settings import Settings, env_name

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("mkdocs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def text(page: Path) -> str:
    """A page's text without its markup."""
    return re.sub(r"<[^>]+>", "", page.read_text())


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        html = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?([^\s\">]+)", html)
        loaded += re.findall(r"<link[^>]*\shref=\"?([^\s\">]+)", html)
        assert not [url for url in loaded if "//" in url], page


def test_every_setting_is_in_the_reference(site: Path) -> None:
    page = text(site / "reference" / "settings.html")
    assert not [name for name in Settings.model_fields if env_name(name) not in page]


def test_every_metric_is_in_the_reference(site: Path) -> None:
    page = text(site / "reference" / "metrics.html")
    families = [family for family in Metrics().registry.collect() if "turbofno" in family.name]
    assert len(families) > 20
    assert not [family.name for family in families if family.name not in page]


def test_every_exported_name_of_the_libraries_is_in_the_reference(site: Path) -> None:
    import turbofno_client
    import turbofno_ops

    client, ops = (text(site / "reference" / f"{name}.html") for name in ("client", "ops"))
    assert not [name for name in turbofno_client.__all__ if name not in client]
    functions = [name for name in turbofno_ops.__all__ if name[0].islower()]
    assert not [name for name in functions if name not in ops]


@pytest.mark.parametrize(
    "route", ["POST /v1/models/{name}:predict", "POST /v2/models/{model}/infer"]
)
def test_routes_are_in_the_reference(site: Path, route: str) -> None:
    assert route in text(site / "reference" / "http.html")
