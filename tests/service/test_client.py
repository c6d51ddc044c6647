"""The client: requests, responses, errors, retries."""

from __future__ import annotations

import asyncio
import io
import json
import math
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from pathlib import Path

import httpx
import numpy as np
import pytest

import turbofno_client
from turbofno_client import (
    AsyncClient,
    BadInput,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    NotFound,
    Overloaded,
    Prediction,
    PredictionWarning,
    ServerError,
    TurboFNOError,
)

Handler = Callable[[httpx.Request], httpx.Response]
FIELD = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(1, 12)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def doubling(request: httpx.Request) -> httpx.Response:
    array = np.load(io.BytesIO(request.content), allow_pickle=False)
    return httpx.Response(200, content=npy(2 * array))


def client_for(handler: Handler, **settings: object) -> Client:
    return Client("http://test", transport=httpx.MockTransport(handler), **settings)  # type: ignore[arg-type]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the pauses of the client, and advances the clock by them at once."""
    waited: list[float] = []
    real = time.monotonic
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(time, "monotonic", lambda: real() + sum(waited))
    return waited


def test_predict_sends_float32_npy_and_returns_the_answer() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return doubling(request)

    with client_for(handler) as client:
        result = client.predict("burgers-1d", FIELD.astype(np.float64).T.copy().T)
    (request,) = seen
    assert (request.method, request.url.path) == ("POST", "/v1/models/burgers-1d:predict")
    assert request.headers["content-type"] == request.headers["accept"] == "application/x-npy"
    sent = np.load(io.BytesIO(request.content), allow_pickle=False)
    assert sent.dtype == np.dtype("<f4")
    assert sent.flags.c_contiguous
    np.testing.assert_array_equal(result, 2 * FIELD)
    assert result.dtype == np.float32


def test_predict_passes_version_priority_and_deadline_only_when_given() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return doubling(request)

    with client_for(handler) as client:
        client.predict("m", FIELD)
        client.predict("m", FIELD, version=2, priority=1, deadline=1.5)
    plain, full = seen
    assert plain.url.query == b""
    assert "x-deadline-ms" not in plain.headers
    assert full.url.path == "/v1/models/m/versions/2:predict"
    assert dict(full.url.params) == {"priority": "1"}
    assert 1000.0 < float(full.headers["x-deadline-ms"]) <= 1500.0


def test_predict_quotes_the_model_name() -> None:
    paths: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return doubling(request)

    with client_for(handler) as client:
        client.predict("../a b?", FIELD)
        client.predict("m", FIELD, version="1/2")
    assert paths == [b"/v1/models/..%2Fa%20b%3F:predict", b"/v1/models/m/versions/1%2F2:predict"]


def test_predict_detailed_reads_version_request_id_and_timings() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        headers = {
            "x-model-version": "3",
            "x-request-id": "abc",
            "server-timing": 'decode;dur=0.5, queue;desc="in line";dur=2, compute;dur=12.25',
            "x-trust": "unknown",
            "x-trust-residual": "0.25",
        }
        return httpx.Response(200, content=doubling(request).content, headers=headers)

    with client_for(handler) as client:
        prediction = client.predict_detailed("m", FIELD)
    assert isinstance(prediction, Prediction)
    assert (prediction.version, prediction.request_id) == ("3", "abc")
    assert (prediction.trust, prediction.trust_status) == ({"residual": 0.25}, "unknown")
    assert prediction.timings == pytest.approx({"decode": 5e-4, "queue": 2e-3, "compute": 0.01225})


@pytest.mark.parametrize("grid", [(64, 32), [64, 32], np.array([64, 32])])
def test_predict_sends_the_output_grid(grid: Sequence[int]) -> None:
    seen: list[httpx.URL] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return doubling(request)

    with client_for(handler) as client:
        client.predict("m", FIELD, output_grid=grid)
    assert dict(seen[0].params) == {"output_grid": "64,32"}


def test_an_output_grid_in_a_string_is_refused() -> None:
    """Its digits would be the points: "64" a grid of 6 x 4."""
    with (
        client_for(doubling) as client,
        pytest.raises(BadInput, match=r"such as \(64, 64\), got '64'"),
    ):
        client.predict("m", FIELD, output_grid="64")  # type: ignore[call-overload]


def test_vjp_sends_its_arrays_and_options_and_returns_the_gradient() -> None:
    seen: list[httpx.Request] = []
    answers = [
        npz(gradient=3 * FIELD),
        npz(**{"gradient": 3 * FIELD, "output.u": 2 * FIELD}),
        npz(gradient=3 * FIELD),
    ]

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=answers[len(seen) - 1], headers={"X-Warning": "far"})

    with client_for(handler) as client:
        with pytest.warns(PredictionWarning, match="far") as caught:
            found = client.vjp("m", FIELD, -FIELD, version=3, deadline=1.5, priority=2)
        assert caught[0].filename == __file__
        both = client.vjp_detailed("m", FIELD, {"u": -FIELD}, output=True)
        with pytest.raises(ServerError, match="with gradient: is this a turbofno server"):
            client.vjp("m", {"a": FIELD}, -FIELD)
    for one in (found, both.gradient):
        np.testing.assert_array_equal(one, 3 * FIELD)
    assert list(both.output) == ["u"]
    np.testing.assert_array_equal(both.output["u"], 2 * FIELD)
    full, plain, _ = seen
    assert full.url.path == "/v1/models/m/versions/3:vjp"
    assert dict(full.url.params) == {"priority": "2"}
    assert 1000.0 < float(full.headers["x-deadline-ms"]) <= 1500.0
    assert dict(plain.url.params) == {"output": "true"}
    for request, name in ((full, "cotangent"), (plain, "cotangent.u")):
        sent = np.load(io.BytesIO(request.content), allow_pickle=False)
        assert sorted(sent) == [name, "input"]
        np.testing.assert_array_equal(sent[name], -FIELD)


def test_warnings_are_issued_by_predict_and_returned_by_predict_detailed() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        answer = doubling(request)
        answer.headers["X-Warning"] = "the one: a, b; the other"
        return answer

    with client_for(handler) as client:
        assert client.predict_detailed("m", FIELD).warnings == ("the one: a, b", "the other")
        with pytest.warns(PredictionWarning) as caught:
            client.predict("m", FIELD)
    assert [str(one.message) for one in caught] == ["the one: a, b", "the other"]
    assert caught[0].filename == __file__

    async def ask() -> None:
        transport = httpx.MockTransport(handler)
        async with AsyncClient("http://test", transport=transport) as client:
            await client.predict("m", FIELD)

    with pytest.warns(PredictionWarning) as caught:
        asyncio.run(ask())
    assert len(caught) == 2


def record(event: dict[str, object], payload: bytes = b"") -> bytes:
    """A record of a stream of frames."""
    text = json.dumps(event).encode()
    return struct.pack("<II", len(text), len(payload)) + text + payload


def test_warnings_of_a_rollout_are_issued_with_its_frames() -> None:
    off = {"trust": {"residual": [0.1, 48.6]}, "warnings": ["the residual", "the horizon"]}
    frames = [
        record({"event": "start", "shape": [1, 1, 12]}),
        record({"event": "frame", "step": 1}, FIELD.tobytes()),
        record({"event": "frame", "step": 2, **off}, FIELD.tobytes()),
        record({"event": "end", "step": 2}),
    ]

    def handler(_: httpx.Request) -> httpx.Response:
        kind = {"Content-Type": "application/vnd.turbofno.frames", "X-Warning": "the grid"}
        return httpx.Response(200, stream=httpx.ByteStream(b"".join(frames)), headers=kind)

    with client_for(handler) as client, pytest.warns(PredictionWarning) as caught:
        first, second = client.rollout("m", FIELD, 2)
    expected = ["the grid", "the residual", "the horizon"]
    assert [str(one.message) for one in caught] == expected
    assert {one.filename for one in caught} == {__file__}
    assert (first.trust, first.warnings) == ({}, ())
    assert (second.trust, second.warnings) == ({"residual": 48.6}, tuple(off["warnings"]))

    async def ask() -> list[tuple[str, ...]]:
        transport = httpx.MockTransport(handler)
        async with AsyncClient("http://test", transport=transport) as client:
            return [frame.warnings async for frame in client.rollout("m", FIELD, 2)]

    with pytest.warns(PredictionWarning) as caught:
        assert asyncio.run(ask()) == [(), second.warnings]
    assert [str(one.message) for one in caught] == expected


def test_the_deadline_of_a_rollout_is_for_its_start_and_does_not_cut_its_answer() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        kind = {"Content-Type": "application/vnd.turbofno.frames"}
        body = record({"event": "start", "shape": [1, 1, 12]}) + record({"event": "end", "step": 2})
        return httpx.Response(200, stream=httpx.ByteStream(body), headers=kind)

    with client_for(handler, timeout=50.0) as client:
        assert not list(client.rollout("m", FIELD, 2, deadline=0.5))
    (request,) = seen
    assert 0.0 < float(request.headers["x-deadline-ms"]) <= 500.0
    assert request.extensions["timeout"]["read"] == 50.0
    assert request.extensions["timeout"]["connect"] == 5.0
    assert dict(request.url.params) == {"steps": "2", "frames": "all", "start": "0"}
    np.testing.assert_array_equal(np.load(io.BytesIO(request.content)), FIELD)


def test_a_rollout_begins_within_the_timeout_its_retries_included(pauses: list[float]) -> None:
    limits: list[float] = []
    body = record({"event": "start", "shape": [1, 1, 12]}) + record({"event": "end", "step": 2})
    kind = {"Content-Type": "application/vnd.turbofno.frames"}
    answers = [
        httpx.Response(503, headers={"retry-after": "30"}),
        httpx.Response(200, stream=httpx.ByteStream(body), headers=kind),
    ]
    sent: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        limits.append(request.extensions["timeout"]["read"])
        if not answers:
            raise httpx.ReadTimeout("slow", request=request)
        return answers.pop(0)

    with client_for(handler, timeout=50.0) as client:
        assert not list(client.rollout("m", FIELD, 2))
        assert pauses[0] >= 30.0
        first, second = limits
        assert second <= first - pauses[0]
        assert sent[-1].extensions["timeout"]["read"] == 50.0, "between pieces of what has begun"
        with pytest.raises(DeadlineExceeded, match="no response within 50 s"):
            list(client.rollout("m", FIELD, 2, deadline=0.5))


def test_malformed_server_timing_is_ignored() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        timing = "a;dur=1.2.3, b;dur=., c;dur=, d;dur=5, e;dur=1x"
        return httpx.Response(
            200, content=doubling(request).content, headers={"server-timing": timing}
        )

    with client_for(handler) as client:
        assert client.predict_detailed("m", FIELD).timings == {"d": 5e-3}


@pytest.mark.parametrize("answer", [{"data": []}, {"models": 5}, {"models": None}, [], 3])
def test_unknown_json_is_a_server_error(answer: object) -> None:
    with client_for(lambda _: httpx.Response(200, json=answer)) as client:
        for call in (client.models, lambda: client.model("m")):
            with pytest.raises(ServerError, match="is this a turbofno server"):
                call()


@pytest.mark.parametrize("fields", [np.array(["a"]), np.array([1j]), [[None]], "text"])
def test_predict_refuses_anything_but_real_numbers_without_sending(fields: object) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"sent {request}")

    with client_for(handler) as client, pytest.raises(BadInput, match="real numbers"):
        client.predict("m", fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadInput),
        (401, BadInput),
        (404, NotFound),
        (406, BadInput),
        (413, BadInput),
        (415, BadInput),
        (422, BadInput),
        (500, ServerError),
        (501, ServerError),
        (504, DeadlineExceeded),
        (302, ServerError),
    ],
)
def test_refusals_raise_their_type_with_the_problem_text_and_are_not_retried(
    status: int, kind: type[TurboFNOError], pauses: list[float]
) -> None:
    calls: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        problem = {"title": "Refused", "detail": "input has 2 channels, expected 1", "status": 1}
        return httpx.Response(status, json=problem, headers={"x-request-id": "r7"})

    with client_for(handler) as client, pytest.raises(TurboFNOError) as caught:
        client.predict("m", FIELD)
    error = caught.value
    assert type(error) is kind
    assert str(error) == error.message == "input has 2 channels, expected 1"
    assert (error.status, error.request_id, error.problem["title"]) == (status, "r7", "Refused")
    assert len(calls) == 1
    assert pauses == []


def test_refusals_in_the_v2_form_or_as_plain_text_keep_their_text() -> None:
    answers = iter([httpx.Response(400, json={"error": "v2 text"}), httpx.Response(504, text="oh")])
    with client_for(lambda _: next(answers)) as client:
        with pytest.raises(BadInput, match="v2 text"):
            client.predict("m", FIELD)
        with pytest.raises(DeadlineExceeded, match="oh"):
            client.predict("m", FIELD)


@pytest.mark.parametrize("status", [500, 502])
def test_a_proxy_error_for_a_lost_server_is_retried(status: int, pauses: list[float]) -> None:
    answers = iter([httpx.Response(status, text="the actor died"), httpx.Response(status)])
    with client_for(lambda request: next(answers, None) or doubling(request)) as client:
        np.testing.assert_array_equal(client.predict("m", FIELD), 2 * FIELD)
    assert len(pauses) == 2
    lasting = httpx.Response(status, text="the actor died")
    with (
        client_for(lambda _: lasting, retries=1) as client,
        pytest.raises(ServerError, match="the actor died"),
    ):
        client.predict("m", FIELD)


@pytest.mark.parametrize("status", [429, 503])
def test_overload_is_retried_after_retry_after_plus_jitter(
    status: int, pauses: list[float]
) -> None:
    answers = iter([httpx.Response(status, headers={"retry-after": "2"})] * 2)

    def handler(request: httpx.Request) -> httpx.Response:
        return next(answers, None) or doubling(request)

    with client_for(handler) as client:
        np.testing.assert_array_equal(client.predict("m", FIELD), 2 * FIELD)
    first, second = pauses
    assert 2.05 <= first <= 2.1
    assert 2.1 <= second <= 2.2


def test_overload_waits_until_a_retry_after_date(pauses: list[float]) -> None:
    header = {"retry-after": formatdate(time.time() + 5, usegmt=True)}
    answers = iter([httpx.Response(503, headers=header)])
    with client_for(lambda request: next(answers, None) or doubling(request)) as client:
        client.predict("m", FIELD)
    assert 3.5 < pauses[0] < 5.2


def test_overload_is_raised_when_retries_run_out(pauses: list[float]) -> None:
    calls: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(429, json={"detail": "queue full"}, headers={"retry-after": "0"})

    with client_for(handler, retries=3) as client, pytest.raises(Overloaded, match="queue full"):
        client.predict("m", FIELD)
    assert len(calls) == 4
    assert pauses[0] < 0.1, "a Retry-After of 0, with jitter"
    assert pauses == sorted(pauses)
    assert len(pauses) == 3


def test_overload_is_raised_at_once_when_retry_after_exceeds_the_deadline(
    pauses: list[float],
) -> None:
    answer = httpx.Response(503, headers={"retry-after": "30"})
    with client_for(lambda _: answer) as client, pytest.raises(Overloaded) as caught:
        client.predict("m", FIELD, deadline=5.0)
    assert caught.value.retry_after == 30.0
    assert pauses == []


def test_read_timeout_is_deadline_exceeded_and_not_retried() -> None:
    calls: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        raise httpx.ReadTimeout("slow", request=request)

    with (
        client_for(handler, timeout=7.0) as client,
        pytest.raises(DeadlineExceeded, match="no response within 7 s"),
    ):
        client.predict("m", FIELD)
    assert len(calls) == 1


@pytest.mark.parametrize("deadline", [0.0, -1.0])
def test_a_deadline_already_past_is_not_sent(deadline: float) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise AssertionError(f"sent {request}")

    with client_for(handler) as client, pytest.raises(DeadlineExceeded):
        client.predict("m", FIELD, deadline=deadline)


def test_refused_connection_is_retried_and_a_broken_one_is_not(pauses: list[float]) -> None:
    failures: list[type[httpx.TransportError]] = [httpx.ConnectError, httpx.ConnectError]

    def handler(request: httpx.Request) -> httpx.Response:
        if failures:
            raise failures.pop()("no", request=request)
        return doubling(request)

    with client_for(handler) as client:
        np.testing.assert_array_equal(client.predict("m", FIELD), 2 * FIELD)
        assert len(pauses) == 2
        failures.append(httpx.RemoteProtocolError)
        with pytest.raises(ConnectionFailed, match="lost the connection to http://test"):
            client.predict("m", FIELD)
    assert len(pauses) == 2
    failures.append(httpx.ConnectError)
    with (
        client_for(handler, retries=0) as client,
        pytest.raises(ConnectionFailed, match="cannot reach http://test"),
    ):
        client.predict("m", FIELD)


def test_a_failed_connection_without_a_reason_names_its_kind() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("", request=request)

    with (
        client_for(handler) as client,
        pytest.raises(ConnectionFailed, match="cannot reach http://test/: ConnectTimeout"),
    ):
        client.predict("m", FIELD)


def test_an_asyncio_client_sends_a_hundred_requests_at_a_time() -> None:
    async def main() -> None:
        running, full, release = 0, asyncio.Event(), asyncio.Event()

        async def handler(request: httpx.Request) -> httpx.Response:
            nonlocal running
            # The wait is part of the time limit.
            limits = request.extensions["timeout"]
            assert not release.is_set() or limits["read"] < limits["pool"]
            running += 1
            assert running <= 100
            if running == 100:
                full.set()
            await release.wait()
            running -= 1
            return doubling(request)

        async with AsyncClient("http://test", transport=httpx.MockTransport(handler)) as client:
            calls = [asyncio.create_task(client.predict("m", FIELD + i)) for i in range(250)]
            await full.wait()
            # The others wait within their time limits.
            with pytest.raises(DeadlineExceeded):
                await client.predict("m", FIELD, deadline=0.001)
            release.set()
            for number, result in enumerate(await asyncio.gather(*calls)):
                np.testing.assert_array_equal(result, 2 * (FIELD + number))

    asyncio.run(main())


@pytest.mark.parametrize("body", [b"<html>", b"", npy(np.array([1.0]))[:-3]])
def test_a_response_that_is_not_an_array_is_a_server_error(body: bytes) -> None:
    with (
        client_for(lambda _: httpx.Response(200, content=body)) as client,
        pytest.raises(ServerError, match=r"not a \.npy array"),
    ):
        client.predict("m", FIELD)


def test_models_and_model_return_the_descriptions() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"models": [{"name": "m"}]})
        if request.url.path == "/v1/models/m":
            return httpx.Response(200, json={"name": "m", "inputs": []})
        if request.url.path == "/v1/models/m/versions/2":
            return httpx.Response(200, json={"name": "m", "version": "2"})
        return httpx.Response(404, json={"detail": "no model"})

    with client_for(handler) as client:
        assert client.models() == [{"name": "m"}]
        assert client.model("m") == {"name": "m", "inputs": []}
        assert client.model("m", version=2) == {"name": "m", "version": "2"}
        with pytest.raises(NotFound, match="no model"):
            client.model("other")


def test_wait_ready_returns_once_ready_and_gives_up_after_its_time(pauses: list[float]) -> None:
    answers = iter([httpx.Response(503), httpx.Response(503), httpx.Response(200)])
    limits: list[float] = []

    def handler(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"]["read"])
        return next(answers, httpx.Response(503))

    with client_for(handler) as client:
        client.wait_ready(10.0)
        assert len(pauses) == 2
        assert 9.0 < limits[2] < limits[1] < limits[0] <= 10.0
        assert client.ready() is False
        with pytest.raises(DeadlineExceeded, match=r"http://test was not ready within 0\.5 s"):
            client.wait_ready(0.5)
    assert sum(pauses[2:]) <= 0.5


def test_headers_are_sent_with_every_request() -> None:
    seen: list[httpx.Headers] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return httpx.Response(200, json={"models": []})

    with client_for(handler, headers={"X-Tenant": "t"}) as client:
        client.models()
        client.ready()
    assert [headers["x-tenant"] for headers in seen] == ["t", "t"]


@pytest.mark.parametrize("settings", [{"timeout": 0.0}, {"timeout": math.nan}, {"retries": -1}])
def test_invalid_client_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Client(**settings)  # type: ignore[arg-type]


def test_the_async_client_returns_the_same_as_the_sync_client() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/readyz":
            return httpx.Response(200)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"models": [{"name": "m"}]})
        return httpx.Response(404, json={"detail": "no model"})

    async def main() -> None:
        async with AsyncClient("http://test", transport=httpx.MockTransport(handler)) as client:
            await client.wait_ready(1.0)
            assert await client.ready() is True
            assert await client.models() == [{"name": "m"}]
            with pytest.raises(NotFound, match="no model"):
                await client.model("other")

    asyncio.run(main())


def test_the_folder_works_alone_without_the_rest_of_the_checkout(tmp_path: Path) -> None:
    folder = Path(turbofno_client.__file__).parent
    shutil.copytree(folder, tmp_path / "turbofno_client")
    program = (
        "import sys, turbofno_client as c;"
        "c.Client().close();"
        "assert not {'service', 'models', 'torch', 'jax', 'fastapi'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=30)
