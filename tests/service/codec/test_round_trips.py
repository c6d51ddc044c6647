"""Every format of `:predict` reads what other libraries write, and they read its responses."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from turbofno.service.codec import json, npy
from turbofno.service.codec import safetensors as codec_safetensors
from turbofno.service.codec.fields import ResponseData
from turbofno.service.codec.negotiate import CODECS
from turbofno.service.errors import InvalidField, NotAcceptable

LIMIT = 1 << 20
FLOATS = st.sampled_from(["<f2", ">f2", "<f4", ">f4", "<f8", ">f8"])
SHAPES = hnp.array_shapes(min_dims=1, max_dims=5, min_side=0, max_side=4)
FINITE = {"allow_nan": False, "allow_infinity": False}


def answer_of(**outputs: np.ndarray[Any, Any]) -> ResponseData:
    return ResponseData("m", "7", outputs, {"p": "Pa"}, backend="gemm", precision="fp32")


@given(array=hnp.arrays(FLOATS, SHAPES))
@settings(max_examples=40)
def test_npy_written_by_numpy_is_read(array: np.ndarray[Any, Any]) -> None:
    for laid_out in (array, np.asfortranarray(array)):
        buffer = io.BytesIO()
        np.save(buffer, laid_out)
        read = npy.decode_npy(buffer.getvalue())["input"]
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)


@given(arrays=st.dictionaries(st.sampled_from("abc"), hnp.arrays(FLOATS, SHAPES), min_size=1))
@settings(max_examples=25)
def test_npz_written_by_numpy_is_read(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    for save in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        save(buffer, **arrays)
        read = npy.decode_npz(buffer.getvalue(), max_bytes=LIMIT)
        assert set(read) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(read[name], array)


@given(
    arrays=st.dictionaries(
        st.sampled_from("abc"),
        hnp.arrays(st.sampled_from(["<f2", "<f4", "<f8"]), SHAPES),
        min_size=1,
    )
)
@settings(max_examples=40)
def test_safetensors_written_by_the_library_is_read(
    arrays: dict[str, np.ndarray[Any, Any]],
) -> None:
    body = safetensors.numpy.save(arrays, metadata={"made": "by test"})
    read = codec_safetensors.decode(body)
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


def test_safetensors_bfloat16_is_widened_exactly() -> None:
    tensor = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    read = codec_safetensors.decode(safetensors.torch.save({"x": tensor}))
    assert read["x"].dtype == np.float32
    np.testing.assert_array_equal(read["x"], tensor.to(torch.float32).numpy())


@given(array=hnp.arrays("<f8", SHAPES, elements=st.floats(**FINITE)))
@settings(max_examples=40)
def test_json_lists_keep_every_float64(array: np.ndarray[Any, Any]) -> None:
    body = orjson.dumps({"inputs": {"u": array.tolist()}})
    read = json.decode(body)["u"]
    np.testing.assert_array_equal(read.reshape(array.shape), array)


@given(array=hnp.arrays("<f4", SHAPES, elements=st.floats(width=32, **FINITE)))
@settings(max_examples=40)
def test_response_in_every_format_is_read_by_its_own_library(array: np.ndarray[Any, Any]) -> None:
    answer = answer_of(p=array[..., ::-1])
    by_type = {codec.media_type: b"".join(codec.encode(answer)) for codec in CODECS}
    document = orjson.loads(by_type["application/json"])
    found = [
        np.array(document["outputs"]["p"], dtype="f4").reshape(array.shape),
        np.load(io.BytesIO(by_type["application/x-npy"])),
        np.load(io.BytesIO(by_type["application/x-npz"]))["p"],
        safetensors.numpy.load(by_type["application/vnd.safetensors"])["p"],
    ]
    for read in found:
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, array[..., ::-1])
    assert (document["model"], document["version"], document["units"]) == ("m", "7", {"p": "Pa"})


def test_safetensors_answer_names_the_model(tmp_path: Any) -> None:
    path = tmp_path / "answer.safetensors"
    path.write_bytes(b"".join(codec_safetensors.encode(answer_of(p=np.ones(3, "f4")))))
    with safetensors.safe_open(path, framework="numpy") as opened:
        metadata = opened.metadata()
    assert metadata == {
        "model": "m",
        "version": "7",
        "backend": "gemm",
        "precision": "fp32",
        "units.p": "Pa",
    }


def test_npy_answer_of_several_arrays_points_to_npz() -> None:
    with pytest.raises(NotAcceptable, match="application/x-npz"):
        npy.encode_npy(answer_of(p=np.ones(3, "f4"), q=np.ones(3, "f4")))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_json_answer_with_nonfinite_value_is_refused(value: float) -> None:
    with pytest.raises(InvalidField, match=r"p\[1, 0\].*application/x-npy"):
        json.encode(answer_of(p=np.array([[0.0], [value]], dtype="f4")))
