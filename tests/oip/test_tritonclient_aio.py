"""Every call of an unmodified tritonclient.http.aio."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.http import InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from tests.oip.calls import (
    CALLS,
    DECLINABLE,
    EXPECTED,
    assert_readable,
    covered_calls,
    public_calls,
)
from tests.oip.target import Target

# The client's health calls leave the body unread: if it arrives in a packet of its own, the connection is still open when
# it is garbage collected.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Collect connections that the client left open: in a later test they would be an error."""
    yield
    gc.collect()


def with_client(target: Target, use: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with triton.InferenceServerClient(target.host) as client:
            return await use(client)

    return asyncio.run(run())


def tensor(target: Target, array: np.ndarray[Any, Any], *, binary: bool = True) -> InferInput:
    made = InferInput(target.input, list(array.shape), target.datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def test_every_call_of_the_client_is_covered() -> None:
    public = public_calls(triton.InferenceServerClient)
    awaited = {
        name
        for name in public
        if inspect.iscoroutinefunction(getattr(triton.InferenceServerClient, name))
    }
    assert awaited <= covered_calls() | {"infer"}
    assert len(awaited) > 15


@pytest.mark.parametrize("name", CALLS)
def test_call_is_answered(target: Target, name: str) -> None:
    answer = with_client(target, lambda client: CALLS[name](client, target))
    assert EXPECTED.get(name, lambda *_: True)(answer, target), answer


@pytest.mark.parametrize("name", DECLINABLE)
def test_call_is_answered_or_refused_readably(target: Target, name: str) -> None:
    try:
        with_client(target, lambda client: DECLINABLE[name](client, target))
    except InferenceServerException as error:
        assert_readable(error)


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("out", ["default", "binary", "JSON"])
@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
@pytest.mark.parametrize("back", [None, "gzip", "deflate"])
def test_infer_every_encoding(
    target: Target, binary_in: bool, out: str, sent: str | None, back: str | None
) -> None:
    outputs = None
    if out != "default":
        outputs = [
            InferRequestedOutput(name, binary_data=out == "binary") for name in target.outputs
        ]

    async def use(client: Any) -> tuple[Any, Any]:
        plain = await client.infer(target.model, [tensor(target, target.array())])
        result = await client.infer(
            target.model,
            [tensor(target, target.array(), binary=binary_in)],
            outputs=outputs,
            model_version=target.version,
            request_id="id-2",
            priority=2,
            timeout=20_000_000,
            request_compression_algorithm=sent,
            response_compression_algorithm=back,
            parameters={"mine": True},
        )
        return plain, result

    plain, result = with_client(target, use)
    assert result.get_response()["id"] == "id-2"
    for name in target.outputs:
        np.testing.assert_allclose(
            result.as_numpy(name), plain.as_numpy(name), rtol=1e-5, atol=1e-6
        )


def test_concurrent_infers_each_get_their_own_answer(target: Target) -> None:
    arrays = [target.array(seed) for seed in range(24)]

    async def use(client: Any) -> tuple[list[Any], list[Any]]:
        singly = [await client.infer(target.model, [tensor(target, a)]) for a in arrays]
        calls = [client.infer(target.model, [tensor(target, a)]) for a in arrays]
        return singly, await asyncio.gather(*calls)

    for one, other in zip(*with_client(target, use), strict=True):
        for name in target.outputs:
            np.testing.assert_allclose(
                other.as_numpy(name), one.as_numpy(name), rtol=1e-4, atol=1e-5
            )


def test_infer_error_is_readable(target: Target) -> None:
    with pytest.raises(InferenceServerException) as caught:
        with_client(target, lambda c: c.infer("no-such-model", [tensor(target, target.array())]))
    assert_readable(caught.value)
