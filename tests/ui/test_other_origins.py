"""A web page of another origin, in a real browser, can neither change nor read a server on loopback."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess
from tests.service.tiny import save_tiny
from tests.ui.browser import CHROMIUM, MISSING, chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason=MISSING),
]

UNLOAD = "/v2/repository/models/tiny-1d/unload"
PREDICT = "/v1/models/tiny-1d:predict"
BODY = json.dumps({"inputs": {"u0": [0.5] * 16}})
SEND = """async ([url, options]) => {
    try {
        const answer = await fetch(url, options);
        return [answer.status, answer.type === "opaque" ? "" : await answer.text()];
    } catch (error) { return [0, String(error)]; }
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of an attacker's web server with one empty page."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "index.html").write_text("<!doctype html><title>elsewhere</title>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, elsewhere: int) -> Iterator[ServerProcess]:
    """A server with model control, so that only the check of the origin protects its models."""
    root = tmp_path_factory.mktemp("attacked")
    save_tiny(root / "models")
    options = ("--model-control", "true", "--cors-origins", f"http://friend.test:{elsewhere}")
    with ServerProcess(root / "models", root / "log", *options) as running:
        yield running


@pytest.fixture(scope="module")
def visitor(server: ServerProcess) -> Iterator[Page]:
    """A tab of a browser that resolves every name to this machine."""
    with chromium(server.url, "--host-resolver-rules=MAP *.test 127.0.0.1") as browser:
        yield browser.new_page()


def state(server: ServerProcess) -> str:
    (entry,) = httpx.post(f"{server.url}/v2/repository/index").json()
    return str(entry["state"])


@pytest.mark.parametrize("place", ["127.0.0.1", "localhost", "attacker.test"])
@pytest.mark.parametrize("kind", ["text/plain", "application/json", None])
def test_a_page_of_another_origin_unloads_nothing(
    server: ServerProcess, visitor: Page, elsewhere: int, place: str, kind: str | None
) -> None:
    visitor.goto(f"http://{place}:{elsewhere}/")
    options = {"method": "POST", "body": "{}", "headers": {"Content-Type": kind} if kind else {}}
    # Without CORS the page cannot read the response, but its request is sent.
    for mode in ("no-cors", "cors"):
        visitor.evaluate(SEND, [server.url + UNLOAD, {**options, "mode": mode}])
    assert state(server) == "READY"


def test_a_form_of_another_origin_unloads_nothing(
    server: ServerProcess, visitor: Page, elsewhere: int
) -> None:
    visitor.goto(f"http://attacker.test:{elsewhere}/")
    form = f'<form method=post enctype=text/plain action="{server.url}{UNLOAD}"><button>x</button></form>'
    visitor.set_content(form)
    with visitor.expect_navigation() as arrived:
        visitor.click("button")
    assert arrived.value is not None
    assert arrived.value.status == 403
    assert state(server) == "READY"


def test_a_name_rebound_to_this_machine_reads_and_changes_nothing(
    server: ServerProcess, visitor: Page
) -> None:
    # For the browser all of this has one origin.
    arrived = visitor.goto(f"http://attacker.test:{server.port}/v1/models")
    assert arrived is not None
    assert arrived.status == 421
    assert "tiny-1d" not in arrived.text()
    options = {"method": "POST", "body": "{}", "headers": {"Content-Type": "application/json"}}
    status, text = visitor.evaluate(SEND, [UNLOAD, options])
    assert status == 421
    assert "TURBOFNO_ALLOWED_HOSTS" in text
    assert state(server) == "READY"


def test_the_page_of_an_allowed_origin_predicts_and_reads_the_answer(
    server: ServerProcess, visitor: Page, elsewhere: int
) -> None:
    visitor.goto(f"http://friend.test:{elsewhere}/")
    headers = {"Content-Type": "application/json", "Authorization": "Bearer x"}
    options = {"method": "POST", "body": BODY, "headers": headers}
    status, text = visitor.evaluate(SEND, [server.url + PREDICT, options])
    assert status == 200
    assert len(json.loads(text)["outputs"]["u"]) == 16


def test_the_servers_own_page_predicts(server: ServerProcess, visitor: Page) -> None:
    visitor.goto(f"{server.url}/ui/")
    options = {"method": "POST", "body": BODY, "headers": {"Content-Type": "application/json"}}
    status, _ = visitor.evaluate(SEND, [PREDICT, options])
    assert status == 200
