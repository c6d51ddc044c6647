"""Rollouts on a fake engine whose steps add 1: formats, streams, refusals, disconnects."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from tests.draws import generator
from tests.service.http.fake_engine import FakeEngine
from tests.service.http.live import connected, served
from tests.service.tiny import rollable_config, tiny_config
from tests.service.waiting import until
from turbofno.models.core.config import Channel
from turbofno.service.app import create_app
from turbofno.service.engine.interface import ModelStatus
from turbofno.service.errors import BlowUp as ServerBlowUp
from turbofno.service.errors import QueueFull, Unavailable
from turbofno.service.http.frame_stream import stream
from turbofno.service.settings import Settings
from turbofno_client import AsyncClient, BlowUp, ConnectionFailed, ServerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from turbofno.models.core.config import ModelConfig

pytestmark = pytest.mark.timeout(20)

PATH = "/v1/models/tiny-flow:rollout"
FIELDS = generator(__name__).normal(size=(2, 1, 16)).astype("f4")
FRAMES, SSE, NPY = "application/vnd.turbofno.frames", "text/event-stream", "application/x-npy"


def npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@asynccontextmanager
async def serving(
    *models: ModelConfig, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, FakeEngine]]:
    engine = FakeEngine(*models, rollable_config(), tiny_config())
    app = create_app(Settings(**settings), engine=engine)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client, engine


def post(
    query: str = "steps=3",
    *,
    accept: str | None = None,
    body: bytes = npy(FIELDS),
    sent: str = NPY,
    path: str = PATH,
    error: Exception | None = None,
    model: ModelConfig | None = None,
    **settings: Any,
) -> httpx.Response:
    async def run() -> httpx.Response:
        models = () if model is None else (model,)
        async with serving(*models, **settings) as (client, engine):
            engine.error = error
            headers = {"Content-Type": sent} | ({"Accept": accept} if accept else {})
            return await client.post(f"{path}?{query}", content=body, headers=headers)

    return asyncio.run(run())


def records(content: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Decode a stream of records into events and fields."""
    while content:
        text, payload = struct.unpack("<II", content[:8])
        yield json.loads(content[8 : 8 + text]), content[8 + text : 8 + text + payload]
        content = content[8 + text + payload :]


def events(content: str) -> list[dict[str, Any]]:
    assert content.endswith("\n\n")
    found = []
    for block in content.removesuffix("\n\n").split("\n\n"):
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['event']}"
        found.append(event)
    return found


def test_unstreamed_answers_in_every_form() -> None:
    expected = np.stack([FIELDS + step for step in (1, 2, 3)])
    np.testing.assert_array_equal(np.load(io.BytesIO(post().content)), expected)
    answer = post(accept="application/vnd.safetensors").content
    np.testing.assert_array_equal(safetensors.numpy.load(answer)["output"], expected)
    answer = post(accept="application/x-npz").content
    np.testing.assert_array_equal(np.load(io.BytesIO(answer))["output"], expected)
    single = json.dumps({"inputs": {"w": FIELDS[1, 0].tolist()}}).encode()
    document = post(body=single, sent="application/json").json()
    np.testing.assert_array_equal(np.array(document["outputs"]["w"], "f4"), expected[:, 1, 0])
    assert document["units"] == {"w": "1/s"}
    bare = np.load(io.BytesIO(post(body=npy(FIELDS[1, 0])).content))
    np.testing.assert_array_equal(bare, expected[:, 1, 0])
    several = json.dumps({"inputs": {"w": FIELDS[:, 0].tolist()}}).encode()
    document = post(body=several, sent="application/json").json()
    np.testing.assert_array_equal(np.array(document["outputs"]["w"], "f4"), expected[:, :, 0])


def test_an_answer_names_the_backend_of_a_model_that_is_unloaded_meanwhile() -> None:
    async def main() -> None:
        async with serving() as (client, engine):
            engine.held = True
            headers = {"Content-Type": NPY, "Accept": "application/json"}
            asked = client.post(f"{PATH}?steps=2", content=npy(FIELDS), headers=headers)
            answer = asyncio.create_task(asked)
            await engine.started.wait()
            unloading = [ModelStatus("tiny-flow", "1", "UNLOADING", "unloaded")]
            engine.statuses = lambda: unloading  # type: ignore[method-assign]
            engine.release.set()
            document = (await answer).json()
            assert (document["backend"], document["precision"]) == ("cuda", "fp32")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("query", "steps"),
    [
        ("steps=5", [1, 2, 3, 4, 5]),
        ("steps=5&frames=last", [5]),
        ("steps=5&frames=2", [2, 4, 5]),
        ("steps=6&frames=2", [2, 4, 6]),
        ("steps=5&frames=2&start=3", [4, 5]),
        ("steps=6&frames=9&start=3", [6]),
    ],
)
def test_a_stream_of_records(query: str, steps: list[int]) -> None:
    response = post(query, accept=FRAMES, path="/v1/models/tiny-flow/versions/1:rollout")
    assert response.status_code == 200
    assert response.headers["content-type"] == FRAMES
    assert "content-length" not in response.headers
    found = list(records(response.content))
    first, last = found[0][0], found[-1][0]
    assert first["shape"] == [2, 1, 16]
    assert (first["event"], first["time_step"], first["dtype"]) == ("start", 0.5, "<f4")
    assert (first["channels"], first["units"]) == (["w"], ["1/s"])
    frames = [(event["step"], payload) for event, payload in found if event["event"] == "frame"]
    assert [step for step, _ in frames] == steps
    assert first["frames"] == len(steps)
    for step, payload in frames:
        expected = FIELDS + np.float32(step - first["start"])
        np.testing.assert_array_equal(np.frombuffer(payload, "<f4").reshape(2, 1, 16), expected)
    assert last == {"event": "end", "step": steps[-1]}


def test_a_stream_of_server_sent_events() -> None:
    response = post("steps=4&frames=2", accept=f"text/html, {SSE};q=0.9")
    assert response.headers["content-type"].startswith(SSE)
    # which excludes it
    refused = post("steps=4&frames=2", accept=f"{NPY}, {SSE};q=0")
    assert refused.headers["content-type"] == NPY
    found = events(response.text)
    kinds = [(one["event"], one.get("step")) for one in found]
    assert kinds == [
        ("start", None), ("progress", 1), ("frame", 2), ("progress", 3), ("frame", 4), ("end", 4),
    ]  # fmt: skip
    data = np.frombuffer(base64.b64decode(found[2]["data"]), "<f4")
    np.testing.assert_array_equal(data.reshape(2, 1, 16), FIELDS + np.float32(2))


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (f"{SSE}, */*;q=0.1", SSE),
        (f"*/*, {SSE}", SSE),
        (f"{FRAMES};q=0.3, {SSE};q=0.4", SSE),
        (f"{SSE};q=0.1, {NPY}", NPY),
        (f"{SSE};q=0.5, {FRAMES};q=0, {NPY};q=0.2", SSE),
        ("*/*", NPY),
    ],
)
def test_q_values_choose_between_streams_and_arrays(accept: str, chosen: str) -> None:
    response = post("steps=1", accept=accept)
    assert response.headers["content-type"].partition(";")[0] == chosen


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("", 400, "steps"),
        ("steps=0", 400, "steps"),
        ("steps=3&frames=some", 400, "frames"),
        ("steps=3&frames=0", 400, "frames"),
        ("steps=3&start=3", 400, "must be over 'start'"),
        ("steps=3&version=1", 400, "unknown query parameter 'version'"),
        ("steps=12&start=1", 413, "TURBOFNO_MAX_ROLLOUT_STEPS"),
    ],
)
def test_invalid_rollouts_are_refused(query: str, status: int, words: str) -> None:
    response = post(query, max_rollout_steps=10)
    assert response.status_code == status, response.text
    assert words in response.json()["detail"]


def test_an_unknown_form_is_refused_with_arrays_and_streams() -> None:
    refused = post(accept="application/x-ndjson")
    assert refused.status_code == 406
    assert all(form in refused.json()["detail"] for form in (NPY, FRAMES, SSE))


def test_only_autoregressive_models_are_rolled_out() -> None:
    response = post(path="/v1/models/tiny-1d:rollout")
    assert response.status_code == 422
    assert response.json()["type"].endswith("not-rollable")
    assert "time_step" in response.json()["detail"]


def stepping(inputs: dict[str, str], outputs: dict[str, str], past_steps: int = 1) -> ModelConfig:
    """tiny-steps: channels by name with their units, one axis, a time step."""
    known = rollable_config()
    sides = [
        tuple(Channel(name=name, units=units) for name, units in side.items())
        for side in (inputs, outputs)
    ]
    channels = {"in_channels": len(inputs), "out_channels": len(outputs)}
    architecture = known.architecture.model_copy(update=channels)
    return known.model_copy(
        update={
            "name": "tiny-steps",
            "inputs": sides[0],
            "outputs": sides[1],
            "architecture": architecture,
            "past_steps": past_steps,
        }
    )


U_V = {"u": "1", "v": "1"}


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (
            {"v": "1", "u": "1"},
            "its outputs ['v', 'u'] are not its inputs ['u', 'v'] in this order",
        ),
        (
            {"v": "1", "w": "1"},
            "its outputs ['v', 'w'] are not its inputs ['u', 'v'] in this order",
        ),
        (
            {"u": "1"},
            "its outputs ['u'] are not its inputs ['u', 'v']; past states have past_steps: 2 in config.json",
        ),
        ({"u": "m/s", "v": "degC"}, "its output 'v' is in degC, its input 'v' in K"),
        ({"u": "m/s", "v": "K"}, ""),
        (U_V, ""),
        ({"u1": "1", "v1": "1"}, ""),
    ],
)
@pytest.mark.parametrize("accept", [FRAMES, NPY])
def test_a_model_whose_outputs_are_not_its_inputs_in_order_is_not_rolled_out(
    outputs: dict[str, str], words: str, accept: str
) -> None:
    """Output channel k is input channel k of the next step, whatever its name."""
    model = stepping({"u": "1", "v": "K"} if "degC" in words else U_V, outputs)
    body = npy(np.zeros((1, 2, 16), "f4"))
    answer = post(path="/v1/models/tiny-steps:rollout", model=model, body=body, accept=accept)
    if not words:
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code == 422, answer.status_code
    assert answer.json()["type"].endswith("not-rollable")
    assert words in answer.json()["detail"]


@pytest.mark.parametrize(
    ("names", "units", "words"),
    [
        (("u0", "v0", "u1", "v1"), ("m", "K", "m", "K"), ""),
        (("u0", "v0", "u", "v"), ("1", "1", "1", "1"), ""),
        (("u0", "v0", "v", "u"), ("1", "1", "1", "1"), "in this order"),
        (("u0", "v0", "u1", "v1"), ("K", "m", "m", "K"), "output 'u' is in m, its input 'u0' in K"),
    ],
)
def test_frames_of_a_model_of_past_states_have_the_channels_of_its_output(
    names: tuple[str, ...], units: tuple[str, ...], words: str
) -> None:
    outputs = {"u": "m", "v": "K"}
    model = stepping(dict(zip(names, units, strict=True)), outputs, past_steps=2)
    fields = np.zeros((3, 4, 16), "f4")
    fields[:, 1] = 7
    path, body = "/v1/models/tiny-steps:rollout", npy(fields)
    answer = post(path=path, model=model, body=body)
    if words:
        assert answer.status_code == 422
        assert words in answer.json()["detail"]
        return
    frames = np.load(io.BytesIO(answer.content))
    assert frames.shape == (3, 3, 2, 16)
    assert frames[2, 0, :, 0].tolist() == [3, 10]
    (start, _), (_, payload), *_ = records(
        post(path=path, model=model, body=body, accept=FRAMES).content
    )
    assert start["shape"] == [3, 2, 16]
    assert len(payload) == fields.nbytes // 2
    small = {"max_inflight_bytes": 9 << 20, "max_body_bytes": 1 << 20, "max_json_bytes": 1 << 20}
    # 2 states of 4 channels and 800 frames of 2 need 4.9 MiB: they would be too large if frames were counted as states
    assert (
        post(
            "steps=800", path=path, model=model, body=npy(np.zeros((64, 4, 16), "f4")), **small
        ).status_code
        == 200
    )


@pytest.mark.parametrize(
    ("scales", "points", "status"),
    [((2.0,), 16, 422), ((2.0, 0.5), 16, 200), ((0.5, 2.0), 15, 422)],
)
def test_a_model_that_changes_the_resolution_is_not_rolled_out(
    scales: tuple[float, ...], points: int, status: int
) -> None:
    known = rollable_config()
    layers = {"resolution_scaling": tuple((scale,) for scale in scales), "n_layers": len(scales)}
    architecture = known.architecture.model_copy(update=layers)
    model = known.model_copy(update={"name": "tiny-scaled", "architecture": architecture})
    body = npy(np.zeros((1, 1, points), "f4"))
    answer = post(path="/v1/models/tiny-scaled:rollout", model=model, body=body, accept=FRAMES)
    assert answer.status_code == status
    if status == 422:
        assert answer.json()["type"].endswith("not-rollable")
        assert f"for an input on [{points}]" in answer.json()["detail"]


def test_frames_beyond_the_physical_bounds_of_the_input_warn() -> None:
    known = stepping({"u": "1"}, {"u": "1"})
    bounded = (known.inputs[0].model_copy(update={"maximum": 1.5}),)
    model = known.model_copy(update={"inputs": bounded})
    body = npy(np.zeros((1, 1, 16), "f4"))
    path, text = (
        "/v1/models/tiny-steps:rollout",
        "step 2: field 0, channel 'u', grid point [0] is 2",
    )
    whole = post(path=path, model=model, body=body)
    assert text in whole.headers["x-warning"]
    found = [
        event
        for event, _ in records(post(path=path, model=model, body=body, accept=FRAMES).content)
    ]
    warned = [event["step"] for event in found if "warnings" in event]
    assert warned == [2]
    assert "x-warning" not in post("steps=1", path=path, model=model, body=body).headers


def test_a_too_large_answer_is_refused_but_can_be_streamed() -> None:
    small = {"max_inflight_bytes": 9 << 20, "max_body_bytes": 1 << 20, "max_json_bytes": 1 << 20}
    body = npy(np.zeros((600, 1, 64), "f4"))
    refused = post("steps=100", body=body, **small)
    assert refused.status_code == 413
    assert "frames=" in refused.json()["detail"]
    assert post("steps=100&frames=last", body=body, **small).status_code == 200
    assert post("steps=100", accept=FRAMES, body=body, **small).status_code == 200


BLOWN = ServerBlowUp("field 0 blew up at step 2", step=2, reason="energy")


def test_a_blow_up_ends_a_stream_and_fails_an_unstreamed_answer() -> None:
    found = list(records(post(accept=FRAMES, error=BLOWN).content))
    assert [event["event"] for event, _ in found] == ["start", "frame", "failed"]
    assert found[-1][0] == {"event": "failed", "step": 2, "reason": "energy", "detail": str(BLOWN)}
    refused = post(error=BLOWN)
    assert refused.status_code == 422
    assert refused.json()["type"].endswith("blow-up")
    assert refused.json()["detail"] == f"{BLOWN}; only a stream gives the frames before that step"


def test_a_failure_within_a_stream_states_the_last_good_step() -> None:
    error = Unavailable("the service stopped", retry_after=1)
    found = events(post(accept=SSE, error=error).text)
    assert found[-1]["event"] == "failed"
    assert (found[-1]["step"], found[-1]["reason"]) == (1, "unavailable")


def test_a_failure_before_the_first_frame_is_an_ordinary_error() -> None:
    async def main() -> None:
        async with serving() as (client, engine):
            engine.rollout = refuse  # type: ignore[method-assign]
            headers = {"Content-Type": NPY, "Accept": FRAMES}
            answer = await client.post(f"{PATH}?steps=3", content=npy(FIELDS), headers=headers)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")

    async def refuse(_: Any) -> Any:
        raise QueueFull("no capacity", retry_after=7)
        yield

    asyncio.run(main())


def test_the_access_log_has_the_bytes_of_a_stream_that_its_client_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        app = create_app(Settings(port=0), engine=FakeEngine(rollable_config()))
        async with served(app) as port:
            async with connected(port) as (reader, writer):
                length = f"Content-Length: {len(npy(FIELDS))}"
                lines = "Host: localhost", f"Content-Type: {NPY}", f"Accept: {FRAMES}", length
                # More than the sockets hold, so that the server notices.
                head = "\r\n".join([f"POST {PATH}?steps=9999 HTTP/1.1", *lines, "", ""])
                large = np.zeros((64, 1, 64), np.float32)
                body = npy(large)
                writer.write(head.replace(length, f"Content-Length: {len(body)}").encode() + body)
                await reader.readexactly(2 * large.nbytes)
            await until(lambda: any(PATH in one.getMessage() for one in caplog.records))

    with caplog.at_level("INFO", logger="service.access"):
        asyncio.run(main())
    (line,) = (one for one in caplog.records if PATH in one.getMessage())
    assert line.__dict__["data"]["out"] > 64 * 64 * 4


@pytest.mark.parametrize("accept", [FRAMES, NPY])
def test_a_disconnect_ends_the_rollout_at_once_and_releases_its_bytes(
    accept: str,
) -> None:
    async def main() -> None:
        engine = FakeEngine(rollable_config())
        engine.held = True
        app = create_app(Settings(), engine=engine)
        sent: list[dict[str, Any]] = []
        streaming = asyncio.Event()
        messages = [{"type": "http.request", "body": npy(FIELDS), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await (streaming if accept == FRAMES else engine.started).wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if len(sent) == 3:
                streaming.set()

        headers = {
            "host": "localhost",
            "content-type": NPY,
            "accept": accept,
            "content-length": str(len(npy(FIELDS))),
        }
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": PATH, "raw_path": PATH.encode(), "query_string": b"steps=9",
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "root_path": "",
        }  # fmt: skip
        await asyncio.wait_for(app(scope, receive, send), 5)  # type: ignore[arg-type]
        assert engine.cancelled == 1
        registry = app.state.context.metrics.registry
        assert registry.get_sample_value("turbofno_inflight_bytes") == 0
        left = {"model": "tiny-flow", "version": "1", "protocol": "rollout", "code": "499"}
        assert registry.get_sample_value("turbofno_requests_total", left) == 1
        if accept == FRAMES:
            assert not any(m.get("more_body") is False for m in sent), "not ended as if complete"
        else:
            assert sent[0]["status"] == 499

    asyncio.run(main())


@pytest.mark.parametrize("over_asgi", [False, True])
def test_a_stream_whose_reply_cannot_begin_is_closed_at_once(
    over_asgi: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = []

    def kept(*arguments: Any) -> Any:
        streams.append(stream(*arguments))
        return streams[-1]

    failures = [RuntimeError("the head of the first reply cannot be made")]

    def fail_once(*_: Any) -> list[Any]:
        if failures:
            raise failures.pop()
        return []

    async def main() -> None:
        engine = FakeEngine(rollable_config())
        app = create_app(Settings(port=0), engine=engine)
        monkeypatch.setattr("turbofno.service.http.rollout.stream", kept)
        monkeypatch.setattr(app.state.context.access_log, "headers", fail_once)
        async with served(app, over_asgi=over_asgi) as port, connected(port) as (reader, writer):
            length = f"Content-Length: {len(npy(FIELDS))}"
            lines = "Host: localhost", f"Content-Type: {NPY}", f"Accept: {FRAMES}", length
            head = "\r\n".join([f"POST {PATH}?steps=9 HTTP/1.1", *lines, "", ""])
            writer.write(head.encode() + npy(FIELDS))
            await reader.read(1)
            assert engine.cancelled == 1
            assert streams[0].ag_frame is None

    asyncio.run(main())


def async_client(handler: Any) -> AsyncClient:
    return AsyncClient("http://test", transport=httpx.MockTransport(handler), retries=0)


def collect(content: bytes, fields: Any = FIELDS) -> tuple[list[Any], Exception | None]:
    """The client's result for a stream of these bytes."""

    async def main() -> tuple[list[Any], Exception | None]:
        frames = []
        async with async_client(
            lambda _: httpx.Response(200, content=cut(), headers={"Content-Type": FRAMES})
        ) as client:
            try:
                async for frame in client.rollout("tiny-flow", fields, 3):
                    frames.append(frame)
            except Exception as error:
                return frames, error
        return frames, None

    async def cut() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 7):
            yield content[start : start + 7]

    return asyncio.run(main())


def test_the_client_assembles_frames_and_reports_how_a_stream_ended() -> None:
    frames, error = collect(post(accept=FRAMES).content)
    assert error is None
    assert [one.step for one in frames] == [1, 2, 3]
    np.testing.assert_array_equal(frames[2].fields, FIELDS + np.float32(3))
    frames, _ = collect(post(accept=FRAMES, body=npy(FIELDS[0])).content, FIELDS[0])
    assert frames[0].fields.shape == (1, 16)
    frames, error = collect(post(accept=FRAMES, error=BLOWN).content)
    assert isinstance(error, BlowUp)
    assert (len(frames), error.step, error.reason) == (1, 2, "energy")
    _, error = collect(post(accept=FRAMES, error=Unavailable("stopped")).content)
    assert isinstance(error, ServerError)
    frames, error = collect(post(accept=FRAMES).content[:-20])
    assert isinstance(error, ConnectionFailed)
    assert len(frames) == 3


@pytest.mark.parametrize(
    ("frames", "words"), [("3", "after step 3: resume there"), ("last", "before its first frame")]
)
def test_the_client_names_the_last_frame_of_a_stream_that_broke_off(
    frames: str, words: str
) -> None:
    """Not the step of the progress after it, which has no fields to resume from."""
    content = post(f"steps=5&frames={frames}", accept=FRAMES).content
    last = content.index(b'{"event":"frame","step":5') - struct.calcsize("<II")
    assert [event["step"] for event, _ in records(content[:last]) if "step" in event][-1] == 4
    _, error = collect(content[:last])
    assert isinstance(error, ConnectionFailed)
    assert words in str(error)


def test_rollouts_are_counted_but_are_no_request_latency() -> None:
    async def run() -> str:
        async with serving() as (client, _):
            for path, query in ((PATH, "?steps=3"), (PATH.replace(":rollout", ":predict"), "")):
                answer = await client.post(
                    path + query, content=npy(FIELDS), headers={"Content-Type": NPY}
                )
                assert answer.status_code == 200
            return (await client.get("/metrics")).text

    text = asyncio.run(run())
    assert re.search(r'turbofno_requests_total\{[^}]*protocol="rollout"[^}]*\} 1\.0', text)
    assert re.findall(r"turbofno_request_duration_seconds_count\{.*\} (.*)", text) == ["1.0"]
