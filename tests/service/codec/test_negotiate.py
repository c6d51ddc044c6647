"""The codec from Content-Type and Accept, and the coding from Accept-Encoding."""

from __future__ import annotations

import gzip
import zlib

import pytest

from turbofno.service.codec.compression import answer_coding, compress
from turbofno.service.codec.negotiate import (
    JSON,
    NPY,
    NPZ,
    SAFETENSORS,
    Codec,
    codec_for_answer,
    codec_for_body,
)
from turbofno.service.errors import NotAcceptable, UnsupportedMediaType


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("application/json", JSON),
        ("Application/JSON; charset=UTF-8", JSON),
        ('application/json;charset="utf-8"', JSON),
        ("application/x-npy", NPY),
        ("application/x-npy; charset=latin-1", NPY),
        (" application/x-npz ", NPZ),
        ("application/vnd.safetensors", SAFETENSORS),
    ],
)
def test_content_type_picks_the_codec(header: str, expected: Codec) -> None:
    assert codec_for_body(header) is expected


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "application/octet-stream",
        "application/x-www-form-urlencoded",
        "text/json",
        "json",
        "*/*",
        "application/json; charset=latin-1",
    ],
)
def test_unsupported_content_type_lists_the_supported_ones(header: str | None) -> None:
    with pytest.raises(UnsupportedMediaType) as caught:
        codec_for_body(header)
    if header is None or "charset" not in header:
        for codec in (JSON, NPY, NPZ, SAFETENSORS):
            assert codec.media_type in caught.value.message


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, NPY),
        ("", NPY),
        ("*/*", NPY),
        ("application/*", NPY),
        ("text/html, */*;q=0.1", NPY),
        ("application/json", JSON),
        ("application/json;q=0.5, application/x-npz;q=0.8", NPZ),
        ("application/json, application/x-npy", NPY),
        ("application/x-npy;q=0, */*", JSON),
        ("application/x-npy;q=0, application/json;q=0, */*;q=0.2", NPZ),
        ("*/*;q=0.9, application/vnd.safetensors", SAFETENSORS),
        ("application/x-npy;q=oops, application/json;q=0.1", JSON),
        ("application/x-npy;q=nan, application/json;q=0.1", JSON),
        ("application/x-npy;q=oops, */*", JSON),
    ],
)
def test_accept_picks_the_answers_codec(accept: str | None, expected: Codec) -> None:
    assert codec_for_answer(accept, request=NPY) is expected


@pytest.mark.parametrize(
    "accept", ["text/html", "application/json;q=0", "application/json;q=nan", "*/*;q=0", "image/*"]
)
def test_unsupported_accept_lists_the_supported_ones(accept: str) -> None:
    with pytest.raises(NotAcceptable) as caught:
        codec_for_answer(accept, request=JSON)
    assert "application/vnd.safetensors" in caught.value.message


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", None),
        ("gzip, deflate, br", None),
        ("gzip, deflate, br, zstd", None),
        ("gzip", "gzip"),
        ("Deflate", "deflate"),
        ("identity", None),
        ("br", None),
        ("*", None),
        ("gzip;q=0", None),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("gzip;q=0.5, identity;q=0.8", None),
        ("br;q=1, gzip;q=0.2", "gzip"),
        ("gzip;q=x, deflate;q=0.1", "deflate"),
    ],
)
def test_response_is_compressed_only_for_one_coding_or_q_values(
    header: str, expected: str | None
) -> None:
    assert answer_coding(header) == expected


def test_compressed_answer_is_read_by_the_standard_library() -> None:
    body = b"field" * 1000
    assert gzip.decompress(compress(body, "gzip")) == body
    assert zlib.decompress(compress(body, "deflate")) == body
