"""Cross-site requests and DNS rebinding are refused over both transports."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from tests.service.http.live import connected, listening
from tests.service.http.raw import in_loop, raw_request, reply
from tests.service.http.serving import serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.http.fake_engine import FakeEngine

pytestmark = pytest.mark.timeout(30)

PREDICT, UNLOAD = "/v1/models/tiny-1d:predict", "/v2/repository/models/tiny-1d/unload"
INFER = "/v2/models/tiny-1d/infer?shape=1,1,16"
BODY = {"inputs": {"u0": [0.5] * 16}}
RAW = np.zeros(16, np.float32).tobytes()
RAW_HEADERS = {"Inference-Header-Content-Length": "0"}
ORIGIN = "https://lab.example.com"


def ask(
    method: str = "POST",
    path: str = UNLOAD,
    *,
    settings: dict[str, Any] | None = None,
    **what: Any,
) -> tuple[httpx.Response, FakeEngine]:
    async def main() -> tuple[httpx.Response, FakeEngine]:
        async with serving(**{"model_control": True, **(settings or {})}) as (client, engine):
            return await client.request(method, path, **what), engine

    return asyncio.run(main())


def status_for(called: str, **settings: Any) -> int:
    response, _ = ask("GET", "/v1/models", headers={"Host": called}, settings=settings)
    return response.status_code


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LOCALHOST:8080", "localhost.:1", "127.0.0.1", "127.0.0.1:8080", "10.1.2.3:80", "[::1]",
        "[::1]:8080", "[fe80::1%25eth0]", "",
    ],
)  # fmt: skip
def test_localhost_and_ip_addresses_are_served_on_any_interface(host: str) -> None:
    assert status_for(host) == 200
    assert status_for(host, host="0.0.0.0") == 200


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example", "attacker.example:8080", "localhost.attacker.example", "127.0.0.1.attacker.example",
        "localhost@attacker.example", "a:b:c", "[localhost]", "attacker.example:8080:localhost",
    ],
)  # fmt: skip
def test_an_unknown_name_is_refused_on_any_interface(host: str) -> None:
    for settings in ({}, {"host": "0.0.0.0"}):
        response, _ = ask("GET", "/v1/models", headers={"Host": host}, settings=settings)
        assert response.status_code == 421
        assert "TURBOFNO_ALLOWED_HOSTS" in response.json()["detail"]


@pytest.mark.parametrize(
    "host",
    ["turbofno:8080", "turbofno.prod.svc:80", "turbofno.prod.svc.cluster.local", "gpu.local"],
)
def test_names_without_public_dns_are_served_except_on_loopback(host: str) -> None:
    assert status_for(host, host="0.0.0.0") == 200
    assert status_for(host) == 421


def test_names_in_the_settings_are_served() -> None:
    hosts = {"allowed_hosts": "fno.example.com,*.lab.example.com"}
    assert status_for("FNO.example.com:443", **hosts) == 200
    assert status_for("a.b.lab.example.com", **hosts) == 200
    assert status_for("lab.example.com", **hosts) == 421
    assert status_for("other.example.com", **hosts) == 421
    assert status_for("any.example.com", allowed_hosts="*") == 200
    assert status_for("box.example.com:80", host="box.example.com") == 200


def test_a_host_longer_than_any_name_is_refused_unread() -> None:
    allowed = {"allowed_hosts": "*.lab.example.com"}
    assert status_for(f"{'a.' * 100}lab.example.com", **allowed) == 200
    # Each dot would begin a parent name to look up: half a second for a header of the largest size.
    assert status_for(f"{'a.' * 10_000}lab.example.com", **allowed) == 421


def test_one_unknown_host_of_two_is_refused() -> None:
    headers = [("Host", "localhost"), ("Host", "attacker.example")]
    assert ask("GET", "/v1/models", headers=headers)[0].status_code == 421
    assert status_for("attacker.example, gpu.local", host="0.0.0.0") == 421


def test_the_name_of_the_machine_is_served_except_on_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Node7.example.com")
    assert status_for("node7.example.com", host="0.0.0.0") == 200
    assert status_for("node7.example.com") == 421


def test_a_page_without_an_origin_of_its_own_is_refused_whatever_the_host() -> None:
    response, _ = ask(headers={"Host": "", "Origin": "null"})
    assert response.status_code == 403
    assert "a web page of 'null' sent" in response.json()["error"]


@pytest.mark.parametrize("over_asgi", [False, True])
@in_loop
async def test_only_http_1_1_requires_a_host(over_asgi: bool) -> None:
    async with listening(over_asgi=over_asgi) as (port, _, context):
        for version, host, status in (
            ("1.1", "", 400),
            ("1.1", "Host:\r\n", 200),
            ("1.0", "", 200),
            ("1.0", "Host: attacker.example\r\n", 421),
        ):
            async with connected(port) as (reader, writer):
                writer.write(f"GET /v1/models HTTP/{version}\r\n{host}\r\n".encode())
                found, _, body = await reply(reader)
                assert found == status, body
                if status == 400:
                    assert "no Host header" in json.loads(body)["detail"]
        read = context.metrics.registry.get_sample_value
        assert read("turbofno_rejections_total", {"model": "", "reason": "host"}) == 2


@in_loop
async def test_the_host_of_a_whole_url_replaces_the_header() -> None:
    async with listening() as (port, _, _):
        for host, header, status in (
            ("localhost", "Host: attacker.example", 200),
            (f"127.0.0.1:{port}", "Host: localhost", 200),
            ("attacker.example", "Host: localhost", 421),
            ("attacker.example:80", "Host: localhost", 421),
            ("localhost@attacker.example", "Host: localhost", 421),
            ("localhost", "Origin: http://localhost", 400),
            ("localhost:1", "Host: x\r\nOrigin: http://localhost:1", 200),
            ("localhost:1", "Host: x\r\nOrigin: http://x", 403),
        ):
            async with connected(port) as (reader, writer):
                writer.write(
                    raw_request(f"http://{host}{INFER}", RAW, header).replace(
                        b"Host: localhost\r\n", b"", 1
                    )
                )
                found, _, body = await reply(reader)
                assert found == status, (host, header, body)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
        {"Origin": "http://attacker.example"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "null"},
    ],
)
def test_posts_by_pages_of_other_origins_are_refused(headers: dict[str, str]) -> None:
    for path in (UNLOAD, PREDICT, "/v1/models/tiny-1d:solve?seed=1", "/nowhere"):
        response, engine = ask(path=path, headers=headers)
        assert response.status_code == 403
        assert "TURBOFNO_CORS_ORIGINS" in response.text
        assert not engine.unloaded + engine.requests
    assert ask("GET", "/v1/models", headers=headers)[0].status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://localhost"},
        {"Origin": "https://localhost"},
        {"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:8080"},
        {"Host": "localhost:80", "Origin": "http://localhost"},
    ],
)
def test_posts_by_the_own_page_and_by_non_browsers_are_served(headers: dict[str, str]) -> None:
    response, engine = ask(headers=headers)
    assert (response.status_code, engine.unloaded) == (200, ["tiny-1d"])


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "TEXT/plain; charset=utf-8", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"],
)  # fmt: skip
def test_what_a_form_can_send_is_refused_where_json_is_read(kind: str) -> None:
    headers = {"Content-Type": kind}
    for path in (UNLOAD, "/v2/repository/index", "/v2/models/tiny-1d/infer"):
        response, engine = ask(path=path, headers=headers, content=b"{}")
        assert response.status_code == 415
        assert "application/json" in response.json()["error"]
        assert not engine.unloaded
    response, _ = ask(path=PREDICT, headers=headers, json=BODY)
    assert response.status_code == 415


def test_refusals_are_counted() -> None:
    async def main() -> list[float | None]:
        async with listening(model_control=True) as (port, _, context):
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                await client.post(PREDICT, json=BODY, headers={"Host": "attacker.example"})
                await client.post(PREDICT, json=BODY, headers={"Origin": "http://attacker.example"})
                await client.post(UNLOAD, content=b"{}", headers={"Content-Type": "text/plain"})
            read = context.metrics.registry.get_sample_value
            reasons = ("host", "origin", "form_type")
            return [
                read("turbofno_rejections_total", {"reason": one, "model": ""}) for one in reasons
            ]

    assert asyncio.run(main()) == [1, 1, 1]


@pytest.mark.parametrize("over_asgi", [False, True])
@pytest.mark.parametrize("path", [PREDICT, INFER])
def test_both_ways_of_a_prediction_refuse_and_allow_the_same(over_asgi: bool, path: str) -> None:
    body: dict[str, Any] = {"json": BODY} if path == PREDICT else {"content": RAW}
    page = {"Sec-Fetch-Site": "cross-site", "Origin": ORIGIN}

    async def main() -> list[httpx.Response]:
        async with (
            listening(over_asgi=over_asgi, cors_origins=ORIGIN) as (port, engine, _),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            answers = [
                await client.post(path, headers={**RAW_HEADERS, **headers}, **body)
                for headers in (
                    {"Host": "attacker.example"},
                    {"Origin": "http://attacker.example"},
                    {},
                    page,
                )
            ]
            assert len(engine.requests) == 2
            return answers

    rebound, foreign, plain, allowed = asyncio.run(main())
    assert [one.status_code for one in (rebound, foreign, plain, allowed)] == [421, 403, 200, 200]
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-origin" not in plain.headers
    assert "Origin" in plain.headers["vary"]


def test_preflights_are_answered_only_for_origins_in_the_settings(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice alice-0123456789abcdef\n")
    settings = {"cors_origins": ORIGIN, "api_keys_file": keys}
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    # Browsers send no key with a preflight.
    response, _ = ask("OPTIONS", PREDICT, headers=asked, settings=settings)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in response.headers["access-control-allow-methods"]
    assert "Authorization" in response.headers["access-control-allow-headers"]
    other, _ = ask("OPTIONS", PREDICT, headers={**asked, "Origin": "https://x"}, settings=settings)
    assert other.status_code == 403
    assert "access-control-allow-origin" not in other.headers
    off, _ = ask("OPTIONS", PREDICT, headers=asked)
    assert off.status_code == 403
    # The page must be able to read the error.
    refused, _ = ask(path=PREDICT, headers={"Origin": ORIGIN}, settings=settings, json=BODY)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == ORIGIN


def test_no_cors_headers_unless_origins_are_allowed() -> None:
    response, _ = ask("GET", "/v1/models", headers={"Origin": "http://attacker.example"})
    assert "access-control-allow-origin" not in response.headers
    assert "vary" not in response.headers
