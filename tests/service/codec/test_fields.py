"""Named arrays to a checked batch: layouts, limits and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.draws import generator
from turbofno.models.core.architecture import DomainPadding
from turbofno.models.core.config import Channel, ModelConfig
from turbofno.service.codec.fields import (
    Form,
    arrays_from_fields,
    check_names,
    fields_from_arrays,
    fields_from_tensor,
    first_beyond,
    grid_limits,
)
from turbofno.service.errors import BadRequest, InvalidField, PayloadTooLarge


def test_tensor_float32_aligned_is_not_copied(two_d: ModelConfig) -> None:
    array = generator().normal(size=(2, 2, 8, 6)).astype("f4")
    assert fields_from_tensor(array, two_d, max_fields=4) is array


@pytest.mark.parametrize("dtype", [">f4", "<f8", ">f8", "<f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_tensor_other_layouts_become_native_c_order(
    two_d: ModelConfig, dtype: str, order: str
) -> None:
    values = generator().normal(size=(2, 2, 8, 6)).astype("f2")
    fields = fields_from_tensor(np.asarray(values, dtype=dtype, order=order), two_d, max_fields=4)
    assert fields.dtype == np.float32
    assert fields.flags.c_contiguous
    np.testing.assert_array_equal(fields, values.astype("f4"))


def test_tensor_misaligned_view_is_made_usable(one_d: ModelConfig) -> None:
    values = generator().normal(size=(1, 1, 8)).astype("<f4")
    view = np.frombuffer(b"x" + values.tobytes(), dtype="<f4", offset=1).reshape(1, 1, 8)
    fields = fields_from_tensor(view, one_d, max_fields=1)
    assert fields.flags.aligned
    np.testing.assert_array_equal(fields, values)


def test_tensor_signalling_nan_is_refused_like_any_other(one_d: ModelConfig) -> None:
    signalling = np.full((1, 1, 8), 0x7FF0000000000001, dtype="<u8").view("<f8")
    for arrays in ({"input": signalling}, {"u0": signalling[:, 0]}):
        with pytest.raises(InvalidField, match="must be finite"):
            fields_from_arrays(arrays, one_d, max_fields=1)


def test_arrays_by_channel_follow_the_models_order(two_d: ModelConfig) -> None:
    a, b = generator().normal(size=(2, 3, 8, 6))
    fields, form = fields_from_arrays({"b": b, "a": a}, two_d, max_fields=3)
    assert form == Form(by_channel=True, batched=True)
    np.testing.assert_array_equal(fields, np.stack([a, b], axis=1).astype("f4"))


def test_arrays_single_field_forms_get_a_batch_axis(two_d: ModelConfig) -> None:
    tensor = generator().normal(size=(2, 8, 6)).astype("f4")
    by_tensor = fields_from_arrays({"input": tensor}, two_d, max_fields=1)
    by_channel = fields_from_arrays({"a": tensor[0], "b": tensor[1]}, two_d, max_fields=1)
    assert by_tensor[1] == Form(by_channel=False, batched=False)
    assert by_channel[1] == Form(by_channel=True, batched=False)
    np.testing.assert_array_equal(by_tensor[0], tensor[np.newaxis])
    np.testing.assert_array_equal(by_channel[0], tensor[np.newaxis])


@pytest.mark.parametrize("by_channel", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_outputs_have_the_layout_of_the_request(
    two_d: ModelConfig, by_channel: bool, batched: bool
) -> None:
    fields = generator().normal(size=(1, 3, 8, 6)).astype("f4")
    form = Form(by_channel=by_channel, batched=batched)
    arrays = arrays_from_fields(fields, two_d, form)
    expected = fields if batched else fields[0]
    if not by_channel:
        assert list(arrays) == ["output"]
        np.testing.assert_array_equal(arrays["output"], expected)
        return
    assert list(arrays) == ["p", "q", "r"]
    for i, name in enumerate("pqr"):
        np.testing.assert_array_equal(arrays[name], fields[:, i] if batched else fields[0, i])


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 2, 8), ["rank 3", "[batch, 2, x, y]"]),
        ((1, 2, 8, 8, 8), ["rank 5"]),
        ((1, 3, 8, 8), ["3 channels", "expects 2 (a, b): [batch, 2, x, y]"]),
        ((1, 2, 3, 13), ["axis 0 has 3 points, allowed are 4 to 16", "axis 1 has 13", "4 to 12"]),
        ((1, 2, 8, 0), ["axis 1 has 0"]),
        ((1, 2, 8, 13), ["(it was trained on [8, 8])"]),
        ((0, 2, 8, 8), ["'input' has no fields, expected at least one field"]),
    ],
)
def test_tensor_of_wrong_shape_is_refused_with_the_wrong_axes(
    two_d: ModelConfig, shape: tuple[int, ...], words: list[str]
) -> None:
    with pytest.raises(InvalidField) as caught:
        fields_from_tensor(np.zeros(shape, "f4"), two_d, max_fields=2)
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("shape", "wrong", "mend"),
    [
        ((8,), "(rank 1)", "fields[None, None]"),
        ((1, 8), "(rank 2)", "fields[None]"),
        ((9, 8), "(rank 2)", "fields[:, None]"),
        ((9, 2), "(rank 2)", ""),
        ((9, 8, 1), "with 8 channels on axis 1", "np.moveaxis(fields, 2, 1)"),
        ((1, 9, 8), "with 9 channels on axis 1", "np.moveaxis(fields, 0, 1)"),
        ((9, 8, 2), "with 8 channels on axis 1", ""),
    ],
)
def test_a_refused_tensor_is_shown_with_what_mends_it(
    one_d: ModelConfig, shape: tuple[int, ...], wrong: str, mend: str
) -> None:
    sent = np.zeros(shape, "f4")
    with pytest.raises(InvalidField) as caught:
        fields_from_tensor(sent, one_d, max_fields=9)
    require_mend(caught.value.message, sent, wrong, mend)
    if mend:
        fields_from_tensor(eval(mend, {"fields": sent, "np": np}), one_d, max_fields=9)


@pytest.mark.parametrize(
    ("shape", "channels", "mend"),
    [((9, 8), 9, "fields[:, None]"), ((8, 1), 8, "np.moveaxis(fields, 1, 0)"), ((9, 2), 9, "")],
)
def test_a_refused_single_field_is_shown_without_a_batch_axis(
    one_d: ModelConfig, shape: tuple[int, ...], channels: int, mend: str
) -> None:
    sent = np.zeros(shape, "f4")
    with pytest.raises(InvalidField) as caught:
        fields_from_arrays({"input": sent}, one_d, max_fields=9)
    require_mend(caught.value.message, sent, f"with {channels} channels on axis 0", mend)
    assert "expects 1 (u0): [1, x]" in caught.value.message
    if mend:
        mended = eval(mend, {"fields": sent, "np": np})
        fields_from_arrays({"input": mended}, one_d, max_fields=9)


def require_mend(message: str, sent: np.ndarray[Any, Any], wrong: str, mend: str) -> None:
    assert f"'input' has shape {list(sent.shape)} {wrong}" in message
    assert message.endswith(f", {mend}" if mend else "x]" if "axis" in wrong else "1024]")


def test_channels_that_come_last_are_to_be_moved(two_d: ModelConfig) -> None:
    for shape, move in (((8, 6, 2), "2, 0"), ((2, 8, 6, 2), "3, 1")):
        with pytest.raises(InvalidField) as caught:
            fields_from_arrays({"input": np.zeros(shape, "f4")}, two_d, max_fields=2)
        assert caught.value.message.endswith(
            f"y]; move the axis of channels, np.moveaxis(fields, {move})"
        )


def test_tensor_too_many_fields_names_the_setting(two_d: ModelConfig) -> None:
    with pytest.raises(PayloadTooLarge, match=r"3 fields, .* at most 2: .*_FIELDS_PER_REQUEST"):
        fields_from_tensor(np.zeros((3, 2, 8, 8), "f4"), two_d, max_fields=2)


@pytest.mark.parametrize("dtype", ["i4", "u1", "?", "c8", "O", "S3", "g"])
def test_tensor_other_dtype_is_refused(two_d: ModelConfig, dtype: str) -> None:
    with pytest.raises(InvalidField, match="dtype"):
        fields_from_tensor(np.zeros((1, 2, 8, 8), dtype), two_d, max_fields=2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_tensor_nonfinite_value_is_located(two_d: ModelConfig, value: float) -> None:
    array = np.zeros((2, 2, 8, 6))
    array[1, 0, 3, 5] = array[1, 1, 0, 0] = value
    with pytest.raises(
        InvalidField, match=r"field 1, channel 'a', grid point \[3, 5\] .* masked points"
    ):
        fields_from_tensor(array, two_d, max_fields=2)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": (8, 8)}, "['a']"),
        ({"a": (8, 8), "b": (8, 8), "c": (8, 8)}, "each of ['a', 'b']"),
        ({"input": (2, 8, 8), "a": (8, 8)}, "either ['input']"),
        ({"a": (8, 8), "b": (8, 9)}, "the same shape"),
        ({"a": (8, 8), "b": (1, 8, 8)}, "the same shape"),
        ({"a": (8,), "b": (8,)}, "rank 1"),
        ({"input": (8, 8)}, "or one field [2, x, y]"),
        ({"input": ()}, "rank 0"),
        ({}, "[]"),
    ],
)
def test_arrays_with_wrong_names_or_ranks_are_refused_with_the_expected_ones(
    two_d: ModelConfig, arrays: dict[str, tuple[int, ...]], words: str
) -> None:
    named = {name: np.zeros(shape, "f4") for name, shape in arrays.items()}
    with pytest.raises(InvalidField) as caught:
        fields_from_arrays(named, two_d, max_fields=2)
    assert words in caught.value.message
    assert "may also be" not in caught.value.message


@pytest.mark.parametrize(
    ("array", "error", "words"),
    [
        (np.zeros((2, 8, 8), "i4"), InvalidField, "'a' has dtype int32"),
        (np.zeros((0, 8, 8), "f4"), InvalidField, "'a' has no fields, expected at least one field"),
        (np.zeros((3, 8, 8), "f4"), PayloadTooLarge, "'a' has 3 fields, .* at most 2"),
        (np.zeros((2, 8, 13), "f4"), InvalidField, r"'a' has grid \[8, 13\]"),
        (np.full((2, 8, 8), 1e39), InvalidField, "field 0, channel 'a', .* must be finite"),
    ],
    ids=["dtype", "none", "many", "grid", "infinite"],
)
def test_arrays_by_channel_are_checked_like_a_tensor(
    two_d: ModelConfig, array: np.ndarray[Any, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        fields_from_arrays({"a": array, "b": array}, two_d, max_fields=2)


def test_a_bare_grid_is_one_field_of_a_one_channel_model(one_d: ModelConfig) -> None:
    bare = generator().normal(size=8).astype("f4")
    fields, form = fields_from_arrays({"input": bare}, one_d, max_fields=1)
    np.testing.assert_array_equal(fields, bare[np.newaxis, np.newaxis])
    np.testing.assert_array_equal(arrays_from_fields(fields, one_d, form)["output"], bare)


def test_a_bare_grid_gives_an_output_with_all_channels(two_d: ModelConfig) -> None:
    answer = generator().normal(size=(1, 3, 8, 6)).astype("f4")
    form = Form(by_channel=False, batched=False, channel_axis=False)
    (found,) = arrays_from_fields(answer, two_d, form).values()
    np.testing.assert_array_equal(found, answer[0])


def test_a_scalar_input_is_refused_with_the_expected_shapes(one_d: ModelConfig) -> None:
    with pytest.raises(InvalidField, match=r"\[1, x\], which may also be \[x\]"):
        fields_from_arrays({"input": np.zeros((), "f4")}, one_d, max_fields=1)


@pytest.mark.parametrize(
    ("padding", "lowest"),
    [
        (DomainPadding(points=(2, 2)), (2, 2)),
        (DomainPadding(points=(1, 9)), (3, 2)),
        (DomainPadding(points=(1, 9), mode="reflect"), (3, 10)),
        (DomainPadding(points=(1, 9), mode="circular"), (3, 9)),
        (DomainPadding(fraction=(0.2, 1.0), sides="both"), (3, 2)),
    ],
)
def test_domain_padding_moves_the_lowest_grid(
    padding: DomainPadding, lowest: tuple[int, int], two_d: ModelConfig
) -> None:
    architecture = two_d.architecture.model_copy(update={"domain_padding": padding})
    assert grid_limits(two_d) == ((4, 4), (16, 12))
    padded = two_d.model_copy(update={"architecture": architecture})
    assert grid_limits(padded) == (lowest, (16, 12))


@pytest.mark.parametrize("names", [[f"n{i}" for i in range(65)], ["x" * 129], ["u", "x" * 129]])
def test_too_many_or_too_long_names_are_refused(names: list[str]) -> None:
    with pytest.raises(BadRequest):
        check_names(names)
    check_names([name[:128] for name in names[:64]])


@pytest.mark.parametrize(
    ("bound", "bad", "words"),
    [
        ({"exclusive_minimum": 0.0}, 0.0, "expected above 0 m2"),
        ({"minimum": 0.0}, -1e-6, "expected at least 0 m2"),
        ({"exclusive_maximum": 2.0}, 2.0, "expected below 2 m2"),
        ({"maximum": 2.0}, 2.5, "expected at most 2 m2"),
    ],
)
def test_a_value_beyond_physical_bounds_is_located(
    two_d: ModelConfig, bound: dict[str, float], bad: float, words: str
) -> None:
    first, second = two_d.inputs
    bounded = second.model_copy(update={"units": "m2", **bound})
    config = two_d.model_copy(update={"inputs": (first, bounded)})
    good = generator().uniform(0.5, 1.5, size=(2, 2, 8, 6)).astype("f4")
    # the first channel has no bounds
    good[:, 0] = bad
    fields_from_tensor(good, config, max_fields=4)
    wrong = good.copy()
    wrong[1, 1, 3, 4] = bad
    by_channel = {channel.name: wrong[:, i] for i, channel in enumerate(config.inputs)}
    for arrays in ({"input": wrong}, by_channel):
        with pytest.raises(InvalidField) as caught:
            fields_from_arrays(arrays, config, max_fields=4)
        message = caught.value.message
        assert message.startswith(f"field 1, channel '{bounded.name}', grid point [3, 4] is ")
        assert words in message
    plain = config.model_copy(update={"inputs": (first, bounded.model_copy(update={"units": "1"}))})
    with pytest.raises(InvalidField, match=f"{words.removesuffix(' m2')}, the physical bound"):
        fields_from_tensor(wrong, plain, max_fields=4)


@pytest.mark.parametrize(
    ("bound", "outwards"),
    [
        ({"minimum": 0.0}, -1),
        ({"exclusive_minimum": 0.0}, -1),
        ({"maximum": 8.0}, 1),
        ({"exclusive_maximum": 8.0}, 1),
    ],
    ids=str,
)
def test_a_value_may_be_beyond_its_bound_by_a_share_of_the_largest(
    bound: dict[str, float], outwards: int
) -> None:
    channel = Channel(name="u", **bound)
    (limit,) = bound.values()
    for share, allowed in ((0.5e-6, True), (2e-6, False)):
        fields = np.array([[[4.0, limit + outwards * 8 * share, 7.9]]], np.float32)
        assert (first_beyond(fields, [channel], 1e-6) is None) == allowed
        assert first_beyond(fields, [channel]) is not None
