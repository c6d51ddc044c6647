"""Infer bodies of the Open Inference Protocol: those of tritonclient, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
import torch
import tritonclient.http as triton
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from turbofno.service.codec import oip_binary
from turbofno.service.codec.oip_binary import InferRequest
from turbofno.service.errors import BadRequest, InvalidField, ServiceError

FINITE = {"allow_nan": False, "allow_infinity": False}
ARRAYS = hnp.arrays(
    "<f4",
    hnp.array_shapes(min_dims=1, max_dims=5, min_side=0, max_side=4),
    elements=st.floats(width=32, **FINITE),
)


def decode(body: bytes, header_length: int | None = None) -> InferRequest:
    return oip_binary.decode(body, header_length=header_length, model="m")


def request_of(blob: bytes = b"", /, **changes: Any) -> tuple[bytes, int]:
    """A valid JSON request with `changes` to its input or, for keys with "r_", to the request."""
    entry: dict[str, Any] = {"name": "input", "shape": [1, 1, 4], "datatype": "FP32"}
    top: dict[str, Any] = {}
    for key, value in changes.items():
        if key.startswith("r_"):
            top[key[2:]] = value
        else:
            entry[key] = value
    if "data" not in changes and "parameters" not in changes:
        entry["data"] = [1, 2, 3, 4]
    text = orjson.dumps({"inputs": [entry]} | top)
    return text + blob, len(text)


@given(array=ARRAYS, binary=st.booleans())
@settings(max_examples=40)
def test_request_written_by_tritonclient_is_read(array: np.ndarray[Any, Any], binary: bool) -> None:
    tensor = triton.InferInput("input", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    body, length = triton.InferenceServerClient.generate_request_body(
        [tensor], request_id="r1", priority=2, timeout=500
    )
    call = decode(body, length)
    assert (call.id, call.priority, call.timeout_us) == ("r1", 2, 500)
    assert call.binary
    np.testing.assert_array_equal(call.tensor, array)
    assert call.tensor.shape == array.shape


@given(array=ARRAYS, binary=st.booleans())
@settings(max_examples=40)
def test_answer_is_read_by_tritonclient(array: np.ndarray[Any, Any], binary: bool) -> None:
    answer = oip_binary.encode(
        array,
        binary=binary,
        model="m",
        version="3",
        request_id="r1",
    )
    assert (answer.json_length is not None) == binary
    result = triton.InferenceServerClient.parse_response_body(
        answer.body, header_length=answer.json_length
    )
    read = result.as_numpy("output")
    assert read.shape == array.shape
    np.testing.assert_array_equal(read, array)
    document = result.get_response()
    assert (document["id"], document["model_name"], document["model_version"]) == ("r1", "m", "3")


def test_answer_has_an_id_only_if_the_request_had() -> None:
    answer = oip_binary.encode(
        np.ones((1, 1, 4), "f4"),
        binary=False,
        model="m",
        version="1",
    )
    assert "id" not in orjson.loads(answer.body)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP64"])
def test_binary_tensor_of_other_floats_is_read(datatype: str) -> None:
    dtype = {"FP16": torch.float16, "BF16": torch.bfloat16, "FP64": torch.float64}[datatype]
    values = torch.tensor([1.0, -0.5, 3.140625, 65280.0]).to(dtype)
    raw = values.view(torch.uint8).numpy().tobytes()
    body, length = request_of(raw, datatype=datatype, parameters={"binary_data_size": len(raw)})
    tensor = decode(body, length).tensor
    assert tensor.dtype.kind == "f"
    np.testing.assert_array_equal(tensor.reshape(-1), values.to(torch.float64).numpy())


def test_binary_tensor_is_a_view_of_the_body() -> None:
    raw = np.arange(4, dtype="<f4").tobytes()
    body, length = request_of(raw, parameters={"binary_data_size": 16})
    view = memoryview(bytearray(body))
    tensor = decode(view, length).tensor  # type: ignore[arg-type]
    view[length + 3] = 0x40
    assert tensor[0, 0, 0] == 2.0


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[[1, 2, 3, 4]]]])
def test_json_data_flat_or_nested_is_read(data: Any) -> None:
    np.testing.assert_array_equal(decode(request_of(data=data)[0]).tensor, [[[1, 2, 3, 4]]])


@pytest.mark.parametrize(
    ("default", "own", "expected"),
    [
        (None, None, False),
        (True, None, True),
        (False, None, False),
        (True, False, False),
        (False, True, True),
        (None, True, True),
    ],
)
def test_output_own_parameter_overrides_the_requests(
    default: bool | None, own: bool | None, expected: bool
) -> None:
    parameters = {} if default is None else {"binary_data_output": default}
    output: dict[str, Any] = {"name": "output"}
    if own is not None:
        output["parameters"] = {"binary_data": own}
    call = decode(request_of(r_parameters=parameters, r_outputs=[output])[0])
    assert call.binary == expected


def test_tensors_without_the_header_that_says_where_they_begin_are_refused_for_that() -> None:
    body, length = request_of(np.ones(4, "<f4").tobytes(), parameters={"binary_data_size": 16})
    with pytest.raises(BadRequest, match="behind it need Inference-Header-Content-Length"):
        decode(body)
    with pytest.raises(BadRequest, match=r"\(NaN and Infinity are not JSON\)"):
        decode(body, length - 1)


SIZE = {"binary_data_size": 16}


@pytest.mark.parametrize(
    ("changes", "data", "words"),
    [
        ({"parameters": SIZE}, bytes(15), "expecting 1 additional bytes for model 'm'"),
        ({"parameters": SIZE}, bytes(17), "unexpected additional input data for model 'm'"),
        ({}, b"x", "unexpected additional input data"),
        ({"parameters": {"binary_data_size": 12}}, bytes(12), "needs 16"),
        ({"parameters": {"binary_data_size": 0}}, b"", "needs 16"),
        ({"parameters": {"binary_data_size": -1}}, b"", "binary_data_size"),
        ({"parameters": {"binary_data_size": "16"}}, bytes(16), "binary_data_size"),
        ({"parameters": {"binary_data_size": True}}, b"x", "binary_data_size"),
        ({"parameters": SIZE, "data": [1]}, bytes(16), "both 'data' and"),
        ({"parameters": SIZE, "shape": [2**62, 2**62]}, bytes(16), "needs"),
        ({"shape": [2**60, 2**60]}, b"", "declares shape"),
        ({"shape": [-1, 1, 4]}, b"", "shape [-1, 1, 4], expected a list of at most 8 sizes, whole"),
        ({"shape": [1.0, 1, 4]}, b"", "shape"),
        ({"shape": [2**64 - 1]}, b"", "shape"),
        ({"shape": [1] * 9}, b"", "at most 8 sizes"),
        ({"shape": None}, b"", "shape"),
        ({"shape": [[1]]}, b"", "shape a JSON array"),
        ({"data": [1, 2, 3]}, b"", "its data has shape [3]"),
        ({"data": [[1, 2], [3, 4]]}, b"", "its data has shape [2, 2]"),
        ({"data": [1, 2, 3, "4"]}, b"", "input[3]"),
        ({"data": None}, b"", "neither an array 'data'"),
        ({"data": "AAAA"}, b"", "neither an array 'data'"),
        ({"datatype": "INT32"}, b"", "data-type is"),
        ({"datatype": "BYTES"}, b"", "expects 'FP32'"),
        ({"datatype": None}, b"", "data-type"),
        ({"datatype": ["FP32"]}, b"", "data-type"),
        ({"datatype": "FP16"}, b"", "receiving FP16 data via JSON is not supported"),
        ({"datatype": "BF16"}, b"", "receiving BF16 data via JSON is not supported"),
        ({"name": "x"}, b"", "unexpected inference input"),
        ({"name": None}, b"", "unexpected inference input"),
        ({"parameters": []}, b"", "'parameters' of input"),
        ({"parameters": {"shared_memory_region": "r"}}, b"", "shared memory"),
        ({"r_inputs": []}, b"", "expected 1 input but got 0"),
        ({"r_inputs": [{"name": "input"}] * 2}, b"", "expected 1 input but got 2"),
        ({"r_inputs": [{"name": "u"}, {"name": "v"}]}, b"", "['input'] with all channels on axis"),
        ({"r_inputs": {}}, b"", "Unable to parse 'inputs'"),
        ({"r_inputs": [3]}, b"", "unexpected inference input"),
        ({"r_outputs": [{"name": "output"}] * 2}, b"", "output 'output' already exists"),
        (
            {"r_outputs": [{"name": "y"}]},
            b"",
            "unexpected inference output 'y' for model 'm', expected 'output', which has all",
        ),
        ({"r_outputs": [{}]}, b"", "string 'name'"),
        ({"r_outputs": ["output"]}, b"", "string 'name'"),
        ({"r_outputs": 3}, b"", "'outputs' is a JSON number"),
        (
            {"r_outputs": [{"name": "output", "parameters": {"classification": 3}}]},
            b"",
            "classification",
        ),
        (
            {"r_outputs": [{"name": "output", "parameters": {"shared_memory_region": "r"}}]},
            b"",
            "shared memory",
        ),
        (
            {"r_outputs": [{"name": "output", "parameters": {"binary_data": 1}}]},
            b"",
            "expected true or false",
        ),
        ({"r_parameters": {"triton_x": 1}}, b"", "triton_"),
        ({"r_parameters": {"triton_\n": 1}}, b"", "triton_"),
        ({"r_parameters": {"x": [1]}}, b"", "parameter 'x'"),
        ({"r_parameters": {"x": None}}, b"", "parameter 'x'"),
        ({"r_parameters": {"priority": -1}}, b"", "priority"),
        ({"r_parameters": {"priority": 1.5}}, b"", "priority"),
        (
            {"r_parameters": {"priority": 11}},
            b"",
            "'priority' is 11, expected an integer from 0 to 10",
        ),
        ({"r_parameters": {"timeout": "1"}}, b"", "timeout"),
        ({"r_parameters": {"timeout": 2**63}}, b"", "timeout"),
        ({"r_parameters": 3}, b"", "'parameters' of the request"),
        ({"r_id": 3}, b"", "'id'"),
    ],
)
def test_request_that_breaks_a_rule_is_refused(
    changes: dict[str, Any], data: bytes, words: str
) -> None:
    body, length = request_of(data, **changes)
    with pytest.raises(ServiceError) as caught:
        decode(body, length)
    assert caught.value.status in (400, 422)
    assert words in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("depth", [50, 100, 1000, 5000])
def test_request_nested_deeply_is_refused(depth: int) -> None:
    nested = b"[" * depth + b"1" + b"]" * depth
    for key in (b"data", b"shape", b"datatype", b"name", b"parameters"):
        body = b'{"inputs":[{"name":"input","shape":[1],"datatype":"FP32","data":[1],"'
        body += key + b'":' + nested + b"}]}"
        with pytest.raises(ServiceError) as caught:
            decode(body)
        assert caught.value.status in (400, 422)


@pytest.mark.parametrize("value", ["-1", "11", "1.5", "", "x", "+5", "9" * 30, "٣", "0x5", "1_0"])
def test_header_length_out_of_range_is_refused(value: str) -> None:
    with pytest.raises(BadRequest, match=r"should be in range \(0, 10\), got: "):
        oip_binary.parse_header_length(value, available=10)


@pytest.mark.parametrize(("value", "expected"), [("0", 0), ("10", 10), ("007", 7)])
def test_header_length_in_range_is_read(value: str, expected: int) -> None:
    assert oip_binary.parse_header_length(value, available=10) == expected


def test_raw_body_needs_a_shape_of_its_size() -> None:
    values = np.arange(4, dtype="<f4")
    call = oip_binary.decode_raw(values.tobytes(), shape="1,1,4", model="m")
    np.testing.assert_array_equal(call.tensor, values.reshape(1, 1, 4))
    assert call.binary
    for shape in (None, "", "1,1,5", "a", "1,,4", "-1,4", "1," * 9 + "4", "9" * 19):
        with pytest.raises(BadRequest):
            oip_binary.decode_raw(values.tobytes(), shape=shape, model="m")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_output_is_refused_in_json_and_sent_in_binary(value: float) -> None:
    output = np.full((1, 1, 2), value, dtype="f4")
    options: dict[str, Any] = {"model": "m", "version": "1"}
    with pytest.raises(InvalidField, match="binary_data = true"):
        oip_binary.encode(output, binary=False, **options)
    answer = oip_binary.encode(output, binary=True, **options)
    assert answer.body[answer.json_length :] == output.tobytes()


def test_a_long_list_of_numbers_in_a_wrong_place_is_called_an_array() -> None:
    numbers = [1] * 1000
    for key, said in {
        "outputs": "'outputs' is a JSON array, expected an array of objects",
        "parameters": "'parameters' of the request is a JSON array, expected an object",
        "id": "'id' is a JSON array, expected a string",
        "inputs": "Unable to parse 'inputs'",
    }.items():
        with pytest.raises(BadRequest, match=said):
            decode(
                orjson.dumps(
                    {
                        "inputs": [
                            {"name": "input", "shape": [1, 1, 1], "datatype": "FP32", "data": [1]}
                        ],
                        key: numbers,
                    }
                )
            )
    with pytest.raises(BadRequest, match="has shape a JSON array, expected a list of at most"):
        decode(orjson.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": numbers}]}))
