"""Cached `.npy` layouts: same fields, views, limits, and no check skipped."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from tests.service.http.fake_engine import FakeEngine
from tests.service.tiny import tiny_config
from turbofno.service.codec import npy
from turbofno.service.engine.interface import heap_buffer
from turbofno.service.errors import BadRequest, InvalidField, PayloadTooLarge
from turbofno.service.http.served import Served, ServedModels
from turbofno.service.settings import Settings

FIELD = np.random.default_rng(0).standard_normal((2, 1, 16)).astype("<f4")


def body_of(array: Any) -> memoryview:
    stream = io.BytesIO()
    np.save(stream, array)
    body = heap_buffer(len(stream.getvalue()))
    body[:] = stream.getvalue()
    return body


def served(**settings: Any) -> Served:
    return Served(tiny_config(), Settings(**settings))


@pytest.mark.parametrize(
    "array",
    [
        FIELD,
        FIELD[0],
        FIELD[0, 0],
        FIELD.astype("<f8"),
        FIELD.astype(">f4"),
        np.asfortranarray(FIELD),
    ],
    ids=["batch", "field", "grid", "float64", "big-endian", "fortran"],
)
def test_a_cached_layout_decodes_the_same_fields(array: Any) -> None:
    model = served()
    for factor in (1, 2, 3):
        fields, form = model.fields_from_npy(body_of(factor * array))
        expected = (factor * array).reshape(-1, 1, 16).astype(np.float32)
        np.testing.assert_array_equal(fields, expected)
        assert fields.flags.c_contiguous
        assert (form.batched, form.channel_axis) == (array.ndim == 3, array.ndim > 1)


def test_cached_layouts_give_views_and_are_limited() -> None:
    model = served()
    for count in range(1, 200):
        model.fields_from_npy(body_of(np.zeros((count, 1, 16), "<f4")))
        assert len(model._layouts) <= 64
    body = body_of(FIELD)
    for _ in range(2):
        fields, _ = model.fields_from_npy(body)
        assert np.shares_memory(fields, np.frombuffer(body, np.uint8))


def test_bodies_of_one_size_and_several_forms_are_all_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, bodies = served(), [body_of(array) for array in (FIELD[:1], FIELD[0], FIELD[0, 0])]
    assert len({len(body) for body in bodies}) == 1
    forms = [model.fields_from_npy(body)[1] for body in bodies]
    monkeypatch.delattr(npy, "decode_npy")
    assert [model.fields_from_npy(body)[1] for body in bodies] == forms


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda body: body[:-4], BadRequest),
        (lambda body: memoryview(bytes(body) + b"more"), BadRequest),
        (lambda body: memoryview(bytes(body)[:-4] + b"\0\0\xc0\x7f"), InvalidField),
        (lambda body: memoryview(bytes(body).replace(b"(2, 1, 16)", b"(2, 2, 16)")), BadRequest),
    ],
    ids=["short", "long", "nan", "another shape"],
)
def test_a_cached_layout_skips_no_check(change: Any, error: Any) -> None:
    model = served()
    model.fields_from_npy(body_of(FIELD))
    with pytest.raises(error):
        model.fields_from_npy(change(body_of(FIELD)))


def test_a_refused_layout_is_not_cached() -> None:
    model = served(max_fields_per_request=1)
    for _ in range(2):
        with pytest.raises(PayloadTooLarge):
            model.fields_from_npy(body_of(FIELD))


def test_a_reloaded_model_gets_a_new_entry() -> None:
    engine = FakeEngine(tiny_config())
    models = ServedModels(engine, Settings())
    first = models.find("tiny-1d", None)
    assert models.find("tiny-1d", "1") is first
    engine.configs["tiny-1d", "1"] = tiny_config()
    assert models.find("tiny-1d", None) is not first
