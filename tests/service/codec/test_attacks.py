"""Truncated, inconsistent and hostile bodies always raise a ServiceError with status below 500."""

from __future__ import annotations

import io
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from turbofno.service.codec import json, npy, oip_binary
from turbofno.service.codec import safetensors as codec_safetensors
from turbofno.service.codec.negotiate import CODECS, NPZ
from turbofno.service.errors import BadRequest, InvalidField, PayloadTooLarge, ServiceError

LIMIT = 1 << 16
ARRAY = np.arange(6, dtype="f4").reshape(2, 3)


def npy_of(array: np.ndarray[Any, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def npz_of(**arrays: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def npy_with_header(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin-1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def safetensors_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else orjson.dumps(header)
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def oip_of(tensor: dict[str, Any], data: bytes = b"", **more: Any) -> tuple[bytes, int]:
    text = orjson.dumps({"inputs": [{"name": "input", "datatype": "FP32"} | tensor], **more})
    return text + data, len(text)


BINARY = {"shape": [1, 1, 4], "parameters": {"binary_data_size": 16}}
WHOLE: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "json": (lambda b: json.decode(b), b'{"inputs":{"u":[[1,2.5],[3,4]]}}'),
    "npy": (lambda b: npy.decode_npy(b), npy_of(ARRAY)),
    "npz": (lambda b: npy.decode_npz(b, max_bytes=LIMIT), npz_of(a=ARRAY, b=ARRAY)),
    "safetensors": (
        lambda b: codec_safetensors.decode(b),
        safetensors.numpy.save({"a": ARRAY, "b": ARRAY}),
    ),
    "oip json": (
        lambda b: oip_binary.decode(b, header_length=None, model="m"),
        oip_of({"shape": [1, 1, 4], "data": [1, 2, 3, 4]})[0],
    ),
    "oip binary": (
        lambda b: oip_binary.decode(b, header_length=min(len(b), oip_of(BINARY)[1]), model="m"),
        oip_of(BINARY, bytes(16))[0],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_body_cut_anywhere_is_refused(name: str) -> None:
    decode, body = WHOLE[name]
    decode(body)
    for cut in range(len(body)):
        with pytest.raises(ServiceError) as caught:
            decode(body[:cut])
        assert 400 <= caught.value.status < 500
        assert len(caught.value.message) < 1000


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "npz"])
def test_body_followed_by_a_byte_is_refused(name: str) -> None:
    decode, body = WHOLE[name]
    with pytest.raises(ServiceError):
        decode(body + b"x")


@pytest.mark.parametrize("name", WHOLE)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_body_with_changed_bytes_never_raises_anything_else(name: str, data: Any) -> None:
    decode, body = WHOLE[name]
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(changed))
    except ServiceError as error:
        assert error.status < 500  # noqa: PT017 (the body may also have stayed valid)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.media_type)
@given(body=st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_random_body_is_refused(codec: Any, body: bytes) -> None:
    with pytest.raises(ServiceError) as caught:
        codec.decode(body, max_bytes=LIMIT)
    assert caught.value.status < 500


def test_archive_over_the_limit_is_refused() -> None:
    with pytest.raises(PayloadTooLarge):
        NPZ.decode(npz_of(a=np.zeros(100, "f4")), max_bytes=300)


class _Boom:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("an array was unpickled",))


def test_npy_pickled_object_is_never_loaded() -> None:
    body = npy_with_header(
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", pickle.dumps(_Boom())
    )
    with pytest.raises(InvalidField, match="never unpickled"):
        npy.decode_npy(body)
    with pytest.raises(ServiceError):
        npy.decode_npy(pickle.dumps(_Boom()))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976, 16), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2), 'shape': (1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 9 + "), }",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (1,), }",
        "{'descr': True, 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<S0', 'fortran_order': False, 'shape': (999999999,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': __import__('os'), }",
        "(" * 4000,
        "-" * 4000 + "1",
        "{",
        "}",
        "{}",
        "",
    ],
)
def test_npy_header_of_an_unusual_array_is_refused(header: str) -> None:
    with pytest.raises(ServiceError) as caught:
        npy.decode_npy(npy_with_header(header, b"\0\0\0\0"))
    assert caught.value.status < 500


def test_npy_header_length_beyond_the_body_or_the_limit_is_refused() -> None:
    with pytest.raises(BadRequest, match="4294967295"):
        npy.decode_npy(b"\x93NUMPY\x02\x00" + b"\xff" * 4 + b"{}")
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"
    npy.decode_npy(npy_with_header(header.ljust(4096), bytes(4)))
    with pytest.raises(BadRequest, match=r"header of 4097 bytes, expected at most 4096"):
        npy.decode_npy(npy_with_header(header.ljust(4097), bytes(4)))


@pytest.mark.parametrize("body", [npz_of(a=ARRAY), b'{"inputs": {"u": [1]}}', b"\x93NUMPY\x01"])
def test_a_body_of_another_format_is_said_to_be_no_npy_file(body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"not an \.npy file"):
        npy.decode_npy(body)


def test_an_npy_file_that_curl_sent_as_text_names_the_option_for_binary_data() -> None:
    as_text = npy_of(ARRAY).translate(None, b"\0\r\n")
    with pytest.raises(BadRequest, match=r"expected 1\.0: .*--data-binary"):
        npy.decode_npy(as_text)


def test_an_unknown_npy_version_names_those_that_are_read() -> None:
    with pytest.raises(BadRequest, match="version 9, expected 1, 2 or 3"):
        npy.decode_npy(b"\x93NUMPY\x09\x01" + b"\0" * 8)


def test_npz_bomb_is_refused_before_it_inflates() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(1 << 22))
    assert len(buffer.getvalue()) < LIMIT
    with pytest.raises(PayloadTooLarge, match="inflates to 4194304"):
        npy.decode_npz(buffer.getvalue(), max_bytes=LIMIT)


def test_npz_bomb_with_a_lying_size_is_not_inflated_beyond_it() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(1 << 25))
    lying = buffer.getvalue().replace(struct.pack("<I", 1 << 25), struct.pack("<I", 100))
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest):
            npy.decode_npz(lying, max_bytes=LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_npz_with_many_members_is_refused_unopened() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for i in range(100):
            archive.writestr(f"{i}.npy", b"")
    with pytest.raises(PayloadTooLarge, match="more than 64 members"):
        npy.decode_npz(buffer.getvalue(), max_bytes=LIMIT)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_npz_odd_members_are_refused() -> None:
    for names, method in (
        (["a.npy", "a.npy"], 0),
        (["a", "a.npy"], 0),
        (["a.npy"], 14),
        (["a" * 129], 0),
        ([], 0),
    ):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name in names:
                archive.writestr(name, npy_of(ARRAY))
        with pytest.raises(BadRequest):
            npy.decode_npz(buffer.getvalue(), max_bytes=LIMIT)


def test_npz_encrypted_member_is_refused() -> None:
    body = bytearray(npz_of(a=ARRAY))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        body[body.index(signature) + offset] |= 1
    with pytest.raises(BadRequest, match=r"encrypted|password"):
        npy.decode_npz(bytes(body), max_bytes=LIMIT)


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
EMPTY: dict[str, Callable[[list[int]], Any]] = {
    "oip json": lambda shape: oip_binary.decode(
        oip_of({"shape": shape, "data": []})[0], header_length=None, model="m"
    ),
    "oip binary": lambda shape: oip_binary.decode(
        (body := oip_of({"shape": shape, "parameters": {"binary_data_size": 0}}))[0],
        header_length=body[1],
        model="m",
    ),
    "oip raw": lambda shape: oip_binary.decode_raw(b"", shape=",".join(map(str, shape)), model="m"),
    "safetensors": lambda shape: codec_safetensors.decode(
        safetensors_of({"a": GOOD | {"shape": shape, "data_offsets": [0, 0]}})
    ),
    "npy": lambda shape: npy.decode_npy(
        npy_with_header(f"{{'descr': '<f4', 'fortran_order': True, 'shape': {tuple(shape)}}}")
    ),
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("shape", [[10**17, 10**17, 0], [2**40, 0, 2**40]])
def test_empty_array_of_too_large_sizes_is_refused(name: str, shape: list[int]) -> None:
    with pytest.raises(InvalidField, match="no model accepts"):
        EMPTY[name](shape)


def test_npy_of_a_size_that_is_no_64_bit_number_is_refused() -> None:
    with pytest.raises(InvalidField, match="no model accepts"):
        EMPTY["npy"]([10**19, 0])


@pytest.mark.parametrize(
    "body",
    [
        safetensors_of({"a": GOOD}, bytes(8), length=2**64 - 1),
        safetensors_of({"a": GOOD}, bytes(8), length=3),
        safetensors_of({"a": GOOD}, bytes(7)),
        safetensors_of({"a": GOOD}, bytes(9)),
        safetensors_of({"a": GOOD | {"data_offsets": [8, 0]}}, bytes(8)),
        safetensors_of({"a": GOOD | {"data_offsets": [-8, 0]}}, bytes(8)),
        safetensors_of({"a": GOOD | {"data_offsets": [0, 8, 16]}}, bytes(8)),
        safetensors_of({"a": GOOD | {"data_offsets": []}}, bytes(8)),
        safetensors_of({"a": GOOD | {"data_offsets": [0, 8.0]}}, bytes(8)),
        safetensors_of({"a": GOOD, "b": GOOD}, bytes(16)),
        safetensors_of({"a": GOOD, "b": GOOD | {"data_offsets": [4, 12]}}, bytes(12)),
        safetensors_of({"a": GOOD, "b": GOOD | {"data_offsets": [12, 20]}}, bytes(20)),
        safetensors_of({"a": GOOD | {"shape": [2**60, 2**60]}}, bytes(8)),
        safetensors_of({"a": GOOD | {"shape": [-2]}}, bytes(8)),
        safetensors_of({"a": GOOD | {"shape": [True, 2]}}, bytes(8)),
        safetensors_of({"a": GOOD | {"shape": [1] * 9 + [2]}}, bytes(8)),
        safetensors_of({"a": GOOD | {"shape": "2"}}, bytes(8)),
        safetensors_of({"a": GOOD | {"dtype": "I32"}}, bytes(8)),
        safetensors_of({"a": GOOD | {"dtype": ["F32"]}}, bytes(8)),
        safetensors_of({"a": [1]}, bytes(8)),
        safetensors_of([GOOD], bytes(8)),
        safetensors_of(b'{"a":%b,"a":%b}' % ((orjson.dumps(GOOD),) * 2), bytes(8)),
        safetensors_of(b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}"),
        safetensors_of(
            b'{"a":{"dtype":"F32","shape":' + b"[" * 1000 + b"]" * 1000 + b"}}", bytes(8)
        ),
        safetensors_of(b" " * (1 << 17)),
    ],
)
def test_safetensors_lie_is_refused(body: bytes) -> None:
    with pytest.raises(ServiceError) as caught:
        codec_safetensors.decode(body)
    assert caught.value.status < 500
    with pytest.raises(Exception, match=r"."):
        safetensors.numpy.load(body)["a"].astype("no float")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("[1]", "array, expected an object"),
        ("{", "not valid JSON"),
        ('{"inputs": {"u": [NaN]}}', "not valid JSON"),
        ('{"inputs": {"u": [1e999]}}', "not valid JSON"),
        ('{"inputs": {"u": [1' + "0" * 400 + "]}}", "not valid JSON"),
        ("[" * 5000 + "]" * 5000, "not valid JSON"),
        ('{"inputs": {"u": ' + "[" * 900 + "1" + "]" * 900 + "}}", "more than 8 lists deep"),
        ('{"inputs": {"u": [[1, 2], [3]]}}', "u[1] has 1 entries"),
        ('{"inputs": {"u": [[[1], [2]], [[3], 4]]}}', "u[1, 1] is 4"),
        ('{"inputs": {"u": [1, [2]]}}', "u[1] is [2], expected a number"),
        ('{"inputs": {"u": [[1], []]}}', "u[1] has 0 entries"),
        ('{"inputs": {"u": [[1, 2], [3, "4"]]}}', 'u[1, 1] is "4"'),
        ('{"inputs": {"u": [1, null]}}', "u[1] is null"),
        ('{"inputs": {"u": [1, true]}}', "u[1] is true"),
        ('{"inputs": {"u": [{}]}}', "u[0] is a JSON object"),
        ('{"inputs": {"u": "abc"}}', "nested lists of numbers"),
        (
            '{"inputs": [1]}',
            '"inputs" is a list, expected an object of named arrays such as {"inputs": {"input": [..]}}',
        ),
        ('{"inputs": [' + "1," * 999 + "1]}", '"inputs" is a list, expected an object'),
        (
            '{"inputs": [{"name": "input"}]}',
            "Open Inference Protocol: POST it to /v2/models/{name}/infer",
        ),
        ('{"inputs": {}}', 'key "inputs"'),
        ('{"input": {"u": [1]}}', 'key "inputs"'),
        ('{"inputs": {"u": [1]}, "outputs": 3}', 'unknown key "outputs"'),
        ('{"inputs": {"u": [1]}, "' + "k" * 5000 + '": 3}', "unknown key"),
        ('{"inputs": {"' + "u" * 5000 + '": [1]}}', "5000 characters"),
    ],
)
def test_unusable_json_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(ServiceError) as caught:
        json.decode(text.encode())
    assert caught.value.status in (400, 422)
    assert words in caught.value.message
    assert len(caught.value.message) < 500


def test_npy_bytes_sent_as_json_name_the_right_content_type() -> None:
    body = npy_of(ARRAY)
    for decode in (
        json.decode,
        lambda body: oip_binary.decode(body, header_length=None, model="m"),
    ):
        with pytest.raises(
            BadRequest,
            match=r"is a \.npy file, not JSON: send it .* application/x-npy' to a path .*/v1/models/NAME:predict",
        ):
            decode(body)


def test_json_not_utf8_is_refused() -> None:
    with pytest.raises(BadRequest, match="UTF-8"):
        json.decode(b'{"inputs": {"\xff": [1]}}')


def test_json_of_empty_lists_is_refused_before_it_grows() -> None:
    body = b'{"inputs":{"u":[' + b"[]," * (1 << 17) + b"[]]}}"
    with pytest.raises(PayloadTooLarge, match="lists"):
        json.decode(body)
