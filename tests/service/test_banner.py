"""The shell commands that `serve` prints."""

from __future__ import annotations

from tests.service.tiny import tiny_config
from turbofno.service.banner import banner


def test_a_description_of_several_lines_stays_one_comment() -> None:
    config = tiny_config().model_copy(update={"description": "first\nrm -rf x\r\u2028end"})
    lines = banner("http://x", [config], page=False).split("\n")
    assert lines[2] == "# tiny-1d: first rm -rf x end"
    assert lines[3].startswith("python3 -c ")


def test_the_banner_names_the_page_if_it_is_served() -> None:
    assert "http://x/ui)" in banner("http://x", [], page=True)
    assert "/ui" not in banner("http://x", [], page=False)
