"""API keys: the file, access, limits per caller, and keys never in logs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.service.http.serving import serving
from turbofno.service.http.keys import Keys
from turbofno.service.pipeline.admission import Caller

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.http.fake_engine import FakeEngine

ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdefgh"
LINES = f"# who calls\n\nalice {ALICE} fields=8\n  bob   {BOB} bytes=1000 fields=2\n"
BODY = {"inputs": {"u0": [0.5] * 16}}
PREDICT = "/v1/models/tiny-1d:predict"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(LINES)
    return path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(
    path: str, key_file: Path, *, method: str = "GET", headers: Any = None, **settings: Any
) -> tuple[httpx.Response, FakeEngine]:
    async def main() -> tuple[httpx.Response, FakeEngine]:
        async with serving(api_keys_file=key_file, **settings) as (client, engine):
            json = BODY if method == "POST" else None
            return await client.request(method, path, headers=headers, json=json), engine

    return asyncio.run(main())


def test_a_known_key_is_accepted_and_its_name_and_limit_reach_the_engine(key_file: Path) -> None:
    response, engine = ask(PREDICT, key_file, method="POST", headers=bearer(ALICE))
    assert response.status_code == 200
    assert (engine.requests[0].client, engine.requests[0].client_max_fields) == ("alice", 8)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(ALICE[:-1]),
        bearer(ALICE + "x"),
        bearer(ALICE.upper()),
        bearer("alice"),
        bearer(""),
        {"Authorization": ALICE},
        {"Authorization": f"Basic {ALICE}"},
        {"X-Api-Key": ALICE},
        [(b"Authorization", f"Bearer {ALICE}".encode())] * 2,
        [(b"Authorization", b"Bearer \xff\xfe")],
    ],
)
@pytest.mark.parametrize("path", [PREDICT, "/v2/models/tiny-1d/infer", "/v2/repository/index"])
def test_any_other_key_is_401_with_a_hint(key_file: Path, headers: Any, path: str) -> None:
    response, engine = ask(path, key_file, method="POST", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith('Bearer realm="turbofno"')
    assert response.headers["x-request-id"]
    text = response.json()["error" if path.startswith("/v2") else "detail"]
    assert "Authorization: Bearer KEY" in text
    assert engine.requests == []


def test_health_is_open_and_metrics_only_by_setting(key_file: Path) -> None:
    for path in ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"):
        assert ask(path, key_file)[0].status_code == 200, path
    for path in (
        "/metrics",
        "/v1/models",
        "/docs",
        "/openapi.json",
        "/v2",
        "/nothing",
        "/healthz/",
    ):
        assert ask(path, key_file)[0].status_code == 401, path
    assert ask("/metrics", key_file, public_metrics=True)[0].status_code == 200


def test_refused_keys_are_counted(key_file: Path) -> None:
    async def main() -> str:
        async with serving(api_keys_file=key_file) as (client, _):
            await client.get("/v1/models", headers=bearer("x" * 20))
            return (await client.get("/metrics", headers=bearer(BOB))).text

    text = asyncio.run(main())
    assert 'turbofno_rejections_total{model="",reason="unauthorized"} 1.0' in text
    assert 'code="401"' in text


def test_each_key_has_its_own_byte_limit(key_file: Path) -> None:
    headers = bearer(BOB) | {"Content-Type": "application/json"}
    response, _ = ask(PREDICT, key_file, method="POST", headers=headers)
    assert response.status_code == 200

    async def large(key: str) -> int:
        async with serving(api_keys_file=key_file) as (client, _):
            body = {"inputs": {"u0": [0.123456] * 1000}}
            return (await client.post(PREDICT, json=body, headers=bearer(key))).status_code

    assert asyncio.run(large(BOB)) == 413, "never let in"
    assert asyncio.run(large(ALICE)) == 422, "let in, and only then found to be too fine a grid"


def test_access_line_names_the_caller_and_no_line_holds_a_key(
    key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(PREDICT, key_file, method="POST", headers=bearer(ALICE))
        ask(PREDICT, key_file, method="POST", headers=bearer("wrong-" + "z" * 20))
    lines = [record for record in caplog.records if record.name == "service.access"]
    assert [record.data.get("key") for record in lines] == ["alice", None]  # type: ignore[attr-defined]
    everything = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert ALICE not in everything
    assert "z" * 20 not in everything


def test_file_is_read_with_its_limits(key_file: Path) -> None:
    keys = Keys(key_file)
    assert keys.caller(f"Bearer {ALICE}".encode()) == Caller("alice", 8, 0)
    assert keys.caller(f"bearer  {BOB} ".encode()) == Caller("bob", 2, 1000)
    assert ALICE not in str(vars(keys))


def test_a_file_of_another_editor_is_read_or_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"alice {ALICE}\r\n", "utf-8-sig")
    assert Keys(path).caller(f"Bearer {ALICE}".encode()) == Caller("alice", 0, 0)
    path.write_text(f"alice {ALICE}\n", "utf-16")
    with pytest.raises(
        ValueError, match=r"TURBOFNO_API_KEYS_FILE=\S*keys, line 1: the name must be"
    ):
        Keys(path)


def test_a_missing_file_is_named_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"TURBOFNO_API_KEYS_FILE=\S*none cannot be read: No such"):
        Keys(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no key"),
        ("# only a comment\n", "holds no key"),
        ("alice", "expected NAME KEY"),
        ("alice short", "16 to 256"),
        (f"al/ice {ALICE}", "name must be"),
        (f"alice {ALICE} fields=0", "fields=N"),
        (f"alice {ALICE} rate=3", "fields=N"),
        (f"alice {ALICE} fields=8 fields=1", "each once"),
        (f"alice {ALICE}\nalice {BOB}", "line 2: the name or the key is repeated"),
        (f"alice {ALICE}\nbob {ALICE}", "line 2: the name or the key is repeated"),
    ],
)
def test_wrong_file_is_refused_by_line_without_showing_a_key(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ValueError, match="TURBOFNO_API_KEYS_FILE") as caught:
        Keys(path)
    assert says in str(caught.value)
    assert ALICE not in str(caught.value)
    assert BOB not in str(caught.value)
