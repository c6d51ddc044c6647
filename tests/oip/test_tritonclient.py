"""Every call of an unmodified tritonclient.http."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
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


@pytest.fixture(scope="module")
def client(target: Target) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(target.host, concurrency=4) as client:
        yield client


def tensor(target: Target, array: np.ndarray[Any, Any], *, binary: bool) -> triton.InferInput:
    made = triton.InferInput(target.input, list(array.shape), target.datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


@pytest.fixture(scope="module")
def truth(client: Any, target: Target) -> dict[str, np.ndarray[Any, Any]]:
    """The answer to a plain JSON request."""
    outputs = [triton.InferRequestedOutput(name, binary_data=False) for name in target.outputs]
    inputs = [tensor(target, target.array(), binary=False)]
    result = client.infer(target.model, inputs, outputs=outputs)
    return {name: result.as_numpy(name) for name in target.outputs}


def assert_truth(result: Any, truth: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, values in truth.items():
        np.testing.assert_allclose(result.as_numpy(name), values, rtol=1e-5, atol=1e-6)


def test_every_call_of_the_client_is_covered() -> None:
    assert covered_calls() | {"infer", "async_infer"} == public_calls(triton.InferenceServerClient)


@pytest.mark.parametrize("name", CALLS)
def test_call_is_answered(client: Any, target: Target, name: str) -> None:
    answer = CALLS[name](client, target)
    assert EXPECTED.get(name, lambda *_: True)(answer, target), answer


@pytest.mark.parametrize("name", DECLINABLE)
def test_call_is_answered_or_refused_readably(client: Any, target: Target, name: str) -> None:
    try:
        DECLINABLE[name](client, target)
    except InferenceServerException as error:
        assert_readable(error)


def test_unknown_model_is_not_ready(client: Any, target: Target) -> None:
    assert client.is_model_ready("no-such-model") is False
    assert client.is_model_ready(target.model, "999999") is False


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("out", ["default", "binary", "JSON"])
@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
@pytest.mark.parametrize("back", [None, "gzip", "deflate"])
def test_infer_every_encoding(
    client: Any,
    target: Target,
    truth: Any,
    binary_in: bool,
    out: str,
    sent: str | None,
    back: str | None,
) -> None:
    outputs = None
    if out != "default":
        outputs = [
            triton.InferRequestedOutput(name, binary_data=out == "binary")
            for name in target.outputs
        ]
    result = client.infer(
        target.model,
        [tensor(target, target.array(), binary=binary_in)],
        outputs=outputs,
        request_compression_algorithm=sent,
        response_compression_algorithm=back,
    )
    assert_truth(result, truth)
    in_binary = "binary_data_size" in result.get_output(target.outputs[0]).get("parameters", {})
    assert in_binary == (out != "JSON")


def test_infer_with_every_option(client: Any, target: Target, truth: Any) -> None:
    result = client.infer(
        target.model,
        [tensor(target, target.array(), binary=True)],
        model_version=target.version,
        request_id="id-1",
        priority=1,
        timeout=20_000_000,
        headers={"X-Extra": "1"},
        query_params={"tenant": "a"},
        parameters={"mine": "x", "number": 3},
    )
    assert_truth(result, truth)
    document = result.get_response()
    assert document["id"] == "id-1"
    assert document["model_name"] == target.model
    assert document["model_version"] == target.version


def test_async_infer_answers_many_at_once(client: Any, target: Target) -> None:
    arrays = [target.array(seed) for seed in range(12)]
    expected = [client.infer(target.model, [tensor(target, a, binary=True)]) for a in arrays]
    pending = [
        client.async_infer(target.model, [tensor(target, a, binary=True)], request_id=str(i))
        for i, a in enumerate(arrays)
    ]
    for i, (request, one) in enumerate(zip(pending, expected, strict=True)):
        result = request.get_result(timeout=30)
        assert result.get_response()["id"] == str(i)
        for name in target.outputs:
            # Other fields in the batch may change the order of a sum.
            np.testing.assert_allclose(
                result.as_numpy(name), one.as_numpy(name), rtol=1e-4, atol=1e-5
            )


def test_static_request_and_response_bodies(client: Any, target: Target, truth: Any) -> None:
    inputs = [tensor(target, target.array(), binary=True)]
    body, length = triton.InferenceServerClient.generate_request_body(inputs)
    response = client._post(
        request_uri=target.infer_path.removeprefix("/"),
        request_body=body,
        headers={"Inference-Header-Content-Length": str(length)},
        query_params=None,
    )
    result = triton.InferenceServerClient.parse_response_body(
        response.read(), header_length=int(response.get("Inference-Header-Content-Length"))
    )
    assert_truth(result, truth)


@pytest.mark.parametrize("how", ["model", "version", "input", "output", "shape", "datatype"])
def test_infer_error_is_readable(client: Any, target: Target, how: str) -> None:
    made = tensor(target, target.array(), binary=True)
    outputs = None
    model, version = target.model, ""
    if how == "model":
        model = "no-such-model"
    elif how == "version":
        version = "999999"
    elif how == "input":
        made._name = "no-such-input"
    elif how == "output":
        outputs = [triton.InferRequestedOutput("no-such-output")]
    elif how == "shape":
        made.set_shape([*target.shape, 3])
    else:
        made._datatype = "UINT8"
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [made], outputs=outputs, model_version=version)
    assert_readable(caught.value)


def test_classification_and_shared_memory_are_answered_or_refused_readably(
    client: Any, target: Target
) -> None:
    made = tensor(target, target.array(), binary=True)
    shared_input = triton.InferInput(target.input, list(target.shape), target.datatype)
    shared_input.set_shared_memory("no-such-region", 64)
    shared_output = triton.InferRequestedOutput(target.outputs[0])
    shared_output.set_shared_memory("no-such-region", 64)
    classes = triton.InferRequestedOutput(target.outputs[0], class_count=2)
    for inputs, outputs in (([made], [classes]), ([shared_input], None), ([made], [shared_output])):
        try:
            client.infer(target.model, inputs, outputs=outputs)
        except InferenceServerException as error:
            assert_readable(error)


def test_unload_and_load(client: Any, target: Target, truth: Any) -> None:
    if not (target.control and "model_repository" in target.extensions):
        pytest.skip("model control is not offered, or --control is not given")
    client.unload_model(target.model)
    assert client.is_model_ready(target.model) is False
    with pytest.raises(InferenceServerException) as caught:
        client.infer(target.model, [tensor(target, target.array(), binary=True)])
    assert_readable(caught.value)
    client.load_model(target.model)
    assert client.is_model_ready(target.model) is True
    assert_truth(client.infer(target.model, [tensor(target, target.array(), binary=True)]), truth)
