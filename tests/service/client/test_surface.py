"""The public surface of the client: names, version, signatures and docstrings, the same on both clients."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import turbofno_client
import turbofno_ops
from turbofno_client import AsyncClient, BadInput, BlowUp, Client

BOTH = ("predict", "predict_detailed", "vjp", "vjp_detailed", "rollout", "sample", "solve")
BOTH += ("models", "model", "card", "ready", "wait_ready", "close")
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "predict": ("m", [1.0]),
    "predict_detailed": ("m", [1.0]),
    "vjp": ("m", [1.0], [1.0]),
    "vjp_detailed": ("m", [1.0], [1.0]),
    "rollout": ("m", [1.0], 3),
    "sample": ("m",),
    "solve": ("m", [1.0]),
    "model": ("m",),
    "card": ("m",),
}


def refuse(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"sent {request}")


def public(kind: type) -> dict[str, Any]:
    return {name: one for name, one in inspect.getmembers(kind) if not name.startswith("_")}


def test_the_public_names_are_those_of_all() -> None:
    assert len(set(turbofno_client.__all__)) == len(turbofno_client.__all__)
    shown = {
        name
        for name, one in vars(turbofno_client).items()
        if not name.startswith("_") and not inspect.ismodule(one)
    }
    assert shown == set(turbofno_client.__all__)


def test_the_version_is_that_of_the_wheel() -> None:
    assert turbofno_client.__version__ == turbofno_ops.__version__


def test_both_clients_have_the_same_methods_but_objective() -> None:
    assert set(public(AsyncClient)) == set(BOTH)
    assert set(public(Client)) == {*BOTH, "objective"}


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_every_method_has_a_docstring_and_its_own_keywords(kind: type) -> None:
    for name, method in public(kind).items():
        assert inspect.getdoc(method), name
        parameters = inspect.signature(method).parameters.values()
        assert not [one for one in parameters if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    told = inspect.signature(public(kind)["predict"])
    keywords = [one.name for one in told.parameters.values() if one.kind == one.KEYWORD_ONLY]
    assert keywords == ["version", "deadline", "priority", "output_grid"]
    assert told.return_annotation == "Fields | Named"
    assert "[channels, *grid]" in (inspect.getdoc(public(kind)["predict"]) or "")


def test_async_methods_are_coroutine_functions() -> None:
    for name, method in public(AsyncClient).items():
        assert inspect.iscoroutinefunction(method) == (name != "rollout"), name


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_misspelt_keyword_is_a_type_error_before_anything_is_sent(name: str) -> None:
    with Client("http://test", transport=httpx.MockTransport(refuse)) as client:
        method = getattr(client, name)
        with pytest.raises(TypeError, match="outputgrid"):
            method(*ARGUMENTS[name], outputgrid=(4,))

    async def ask() -> None:
        async with AsyncClient("http://test", transport=httpx.MockTransport(refuse)) as client:
            call = getattr(client, name)
            with pytest.raises(TypeError, match="outputgrid"):
                await call(*ARGUMENTS[name], outputgrid=(4,))

    asyncio.run(ask())


def test_a_misspelt_keyword_of_the_clients_themselves_is_a_type_error() -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(TypeError, match="apikey"):
            kind(apikey="k")  # type: ignore[call-arg]
        assert {"api_key", "verify"} <= set(inspect.signature(kind).parameters)


@pytest.mark.parametrize("name", [name for name in BOTH if name != "close"])
def test_a_closed_client_raises_an_error_of_its_own(name: str) -> None:
    client, other = Client("http://test"), AsyncClient("http://test")
    client.close()
    with pytest.raises(BadInput, match="the client is closed: make a new one"):
        # A rollout sends its request when its first frame is asked for.
        next(getattr(client, name)(*ARGUMENTS.get(name, ())))

    async def ask() -> None:
        await other.close()
        answer = getattr(other, name)(*ARGUMENTS.get(name, ()))
        await (anext(answer) if name == "rollout" else answer)

    with pytest.raises(BadInput, match="the client is closed: make a new one"):
        asyncio.run(ask())


def test_an_api_key_is_sent_with_every_request() -> None:
    seen: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"models": []})

    for key in ("secret", None):
        transport = httpx.MockTransport(handler)
        with Client("http://test", api_key=key, transport=transport) as client:
            client.models()
            client.ready()
    assert seen == ["Bearer secret"] * 2 + [None] * 2


@pytest.mark.parametrize("key", ["secret-of-a-file\n", "secr\u00e9t", "secret\x00"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ValueError, match=r"key\.strip\(\)") as caught:
        Client("http://test", api_key=key)
    assert "secr" not in str(caught.value)


@pytest.mark.parametrize("duplicate", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_errors_can_be_copied_and_pickled(duplicate: Callable[[Exception], Exception]) -> None:
    response = httpx.Response(422, json={"detail": "why"}, headers={"x-request-id": "7"})
    for error in (
        BadInput("text", response),
        BlowUp("text", response, step=3, reason="energy"),
    ):
        copied = duplicate(error)
        assert type(copied) is type(error)
        assert (str(copied), vars(copied)) == ("text", vars(error))


def test_a_file_without_certificate_authorities_is_named(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.touch()
    for path, kind in ((missing, FileNotFoundError), (empty, OSError), (tmp_path, OSError)):
        with pytest.raises(kind, match=rf"authorities from '{path}', expected .* PEM file: \S"):
            Client("https://host", verify=str(path))


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "localhost", "ftp://host", ""])
def test_a_url_without_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"begins with http://"):
        Client(url)
