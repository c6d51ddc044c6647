"""Requests that repeat the head of the one before on their connection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.service.http.live import connected, listening
from tests.service.http.raw import (
    FIELD,
    INFER,
    INFER_RAW,
    PREDICT,
    in_loop,
    raw_request,
    reply,
    values,
)
from tests.service.waiting import until
from turbofno.service.http import edge
from turbofno.service.http.access_log import AccessLog
from turbofno.service.http.parameters import read_query
from turbofno.service.pipeline.admission import Admission, Admitted

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(30)
KEY = "a-key-of-this-test"


@in_loop
async def test_a_repeated_head_is_not_parsed_again_and_each_request_gets_its_own_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[int] = []
    feed = edge.Edge._feed

    def noted(self: edge.Edge, data: bytes) -> bool:
        parsed.append(len(data))
        return feed(self, data)

    monkeypatch.setattr(edge.Edge, "_feed", noted)
    async with listening() as (port, engine, _), connected(port) as (reader, writer):
        seen = set()
        for step in range(4):
            # A body may look like the end of a head.
            field = np.frombuffer(b"\r\n\r\n" * 16, "<f4") if step == 2 else FIELD * step
            writer.write(raw_request(body=field.tobytes()))
            status, headers, body = await reply(reader)
            assert status == 200
            seen.add(headers["x-request-id"])
            np.testing.assert_array_equal(values(body)[0, 0], field.reshape(-1))
        assert (len(seen), len(parsed)) == (4, 1)
        longer = np.concatenate([FIELD, FIELD], 2)
        writer.write(raw_request(INFER + "?shape=1,1,32", longer.tobytes()))
        assert (await reply(reader))[0] == 200
        assert len(parsed) == 2
        assert engine.requests[-1].fields.shape == (1, 1, 32)


@in_loop
async def test_a_repeated_head_may_have_another_length(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    feed = edge.Edge._feed

    def noted(self: edge.Edge, data: bytes) -> bool:
        parsed.append(data)
        return feed(self, data)

    monkeypatch.setattr(edge.Edge, "_feed", noted)
    async with listening() as (port, _, _), connected(port) as (reader, writer):
        for grid in (16, 32, 24, 16):
            field = np.arange(grid, dtype=np.float32).reshape(1, 1, grid)
            body = json.dumps({"inputs": {"input": field.tolist()}}).encode()
            writer.write(raw_request(PREDICT, body, "Content-Type: application/json"))
            status, _, answer = await reply(reader)
            assert status == 200
            assert np.shape(json.loads(answer)["outputs"]["output"])[-1] == grid
        assert len(parsed) == 1
        # Neither a wrong length nor a very long number is taken for a repetition.
        head, _, _ = parsed[0].partition(b"\r\n\r\n")
        number = str(len(parsed[0]) - len(head) - 4).encode()
        for wrong in (b"9" * 5000, b"x"):
            async with connected(port) as (other_reader, other_writer):
                other_writer.write(parsed[0])
                assert (await reply(other_reader))[0] == 200
                other_writer.write(parsed[0].replace(b"Length: " + number, b"Length: " + wrong))
                assert (await reply(other_reader))[0] == 400
        assert len(parsed) == 5


@in_loop
async def test_a_repeated_head_is_admitted_with_its_own_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admitted: list[int] = []
    admit = Admission.admit

    def noted(self: Admission, size: int, **options: Any) -> Admitted:
        admitted.append(size)
        return admit(self, size, **options)

    queries: list[object] = []

    def read(*arguments: Any, **options: Any) -> Any:
        queries.append(arguments)
        return read_query(*arguments, **options)

    monkeypatch.setattr(Admission, "admit", noted)
    monkeypatch.setattr("turbofno.service.http.operations.read_query", read)
    async with listening() as (port, _, context), connected(port) as (reader, writer):
        for reloads, grid in ((1, 16), (1, 32), (2, 32), (2, 8)):
            if reloads > len(queries):
                # as after the model was loaded again: what was decided for it before does not hold any more
                context.served._known.clear()
            body = json.dumps({"inputs": {"input": [[[0.5] * grid]]}}).encode()
            writer.write(raw_request(PREDICT, body, "Content-Type: application/json"))
            status, _, answer = await reply(reader)
            assert status == 200
            assert np.shape(json.loads(answer)["outputs"]["output"])[-1] == grid
            assert admitted[-1] == len(body)
            assert len(queries) == reloads


@in_loop
async def test_a_request_with_a_repeated_head_has_nothing_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[tuple[object, ...]] = []
    close = AccessLog.close

    def note(self: AccessLog, call: Any, status: int, sent: int) -> None:
        noted.append((status, call.model, call.fields, [*call.steps], call.request_id))
        close(self, call, status, sent)

    monkeypatch.setattr(AccessLog, "close", note)
    async with listening() as (port, engine, _), connected(port) as (reader, writer):
        for values_sent in (FIELD, FIELD * np.float32(np.nan), FIELD):
            writer.write(raw_request(body=values_sent.tobytes()))
            await reply(reader)
        engine.configs.clear()
        writer.write(raw_request(body=FIELD.tobytes()))
        await reply(reader)
    all_steps = ["decode", "queue", "compute", "encode"]
    assert [one[:4] for one in noted] == [
        (200, "tiny-1d", 1, all_steps), (422, "tiny-1d", 0, []),
        (200, "tiny-1d", 1, all_steps), (404, "", 0, []),
    ]  # fmt: skip
    assert len({one[4] for one in noted}) == 4


@in_loop
async def test_a_client_that_leaves_got_nothing_of_the_answer_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[tuple[int, bool]] = []
    close = AccessLog.close

    def note(self: AccessLog, call: Any, status: int, sent: int) -> None:
        noted.append((status, sent > 0))
        close(self, call, status, sent)

    monkeypatch.setattr(AccessLog, "close", note)
    async with listening() as (port, engine, _):
        async with connected(port) as (reader, writer):
            writer.write(raw_request())
            await reply(reader)
            engine.held = True
            writer.write(raw_request())
            await until(lambda: len(engine.requests) == 2)
        await until(lambda: len(noted) == 2)
    assert noted == [(200, True), (499, False)]


@in_loop
async def test_pipelined_requests_are_never_taken_for_one_with_a_repeated_head() -> None:
    async with listening() as (port, engine, _), connected(port) as (reader, writer):
        for sent in (2, 2, 1, 3, 1, 2):
            bodies = [FIELD * (index + 1) for index in range(sent)]
            writer.write(b"".join(raw_request(body=body.tobytes()) for body in bodies))
            for body in bodies:
                status, _, answer = await reply(reader)
                assert status == 200
                np.testing.assert_array_equal(values(answer)[0, 0], body[0, 0])
        assert len(engine.requests) == 11


@pytest.mark.parametrize("size", [98, 99, 100, 101, 996, 999, 1000])
@in_loop
async def test_the_first_byte_of_another_request_is_not_taken_for_the_end_of_a_body(
    size: int,
) -> None:
    """Also where the body, with that byte, has a length of more digits."""
    asked = json.dumps({"inputs": {"input": [[[0] * FIELD.size]]}}).encode()
    request = raw_request(PREDICT, asked.ljust(size), "Content-Type: application/json")
    async with listening() as (port, engine, _), connected(port) as (reader, writer):
        writer.write(request)
        assert (await reply(reader))[0] == 200
        writer.write(request + request[:1])
        assert (await reply(reader))[0] == 200
        writer.write(request[1:])
        assert (await reply(reader))[0] == 200
        assert len(engine.requests) == 3


@in_loop
async def test_a_repeated_head_is_refused_once_its_key_or_model_is_gone(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ours {KEY}\n")
    request = raw_request(INFER_RAW, FIELD.tobytes(), f"Authorization: Bearer {KEY}")
    async with (
        listening(api_keys_file=keys) as (port, engine, context),
        connected(port) as (reader, writer),
    ):
        for expected in (200, 200, 401, 200, 404):
            if expected == 401:
                keys.write_text("ours another-key-of-this-test\n")
            elif expected == 404:
                engine.configs.clear()
            else:
                keys.write_text(f"ours {KEY}\n")
            assert context.keys is not None
            context.keys.reload()
            writer.write(request)
            assert (await reply(reader))[0] == expected
