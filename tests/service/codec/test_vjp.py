"""Arrays of a vector-Jacobian product in every layout, and their errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.draws import generator
from tests.service.tiny import rollable_config, tiny_config
from turbofno.models.core.config import Channel, ModelConfig
from turbofno.service.codec.fields import Array
from turbofno.service.codec.vjp import arrays_from_vjp, units_of_vjp, vjp_from_arrays
from turbofno.service.errors import InvalidField, NotDifferentiable, PayloadTooLarge

CONFIG = tiny_config("tiny-2d", n_dim=2)
"""Input u0, outputs u and v, on 8 x 8 to 64 x 64 points."""
RNG = generator(__name__)
X = RNG.standard_normal((3, 1, 9, 11))
V = RNG.standard_normal((3, 2, 9, 11))

WHOLE_INPUT, WHOLE_COTANGENT = {"input": X}, {"cotangent": V}
INPUT_BY_CHANNEL = {"u0": X[:, 0]}
COTANGENT_BY_CHANNEL = {"cotangent.v": V[:, 1], "cotangent.u": V[:, 0]}


@pytest.mark.parametrize("inputs", [WHOLE_INPUT, INPUT_BY_CHANNEL])
@pytest.mark.parametrize("cotangents", [WHOLE_COTANGENT, COTANGENT_BY_CHANNEL])
@pytest.mark.parametrize("batched", [True, False])
def test_the_response_has_the_layout_of_the_request(
    inputs: dict[str, Array], cotangents: dict[str, Array], *, batched: bool
) -> None:
    given = inputs | cotangents
    count = 3 if batched else 1
    if not batched:
        given = {name: array[0] for name, array in given.items()}
    fields, cotangent, form = vjp_from_arrays(given, CONFIG, max_fields=3)
    np.testing.assert_array_equal(fields, X[:count].astype("f4"))
    np.testing.assert_array_equal(cotangent, V[:count].astype("f4"))
    assert fields.dtype == cotangent.dtype == np.float32
    assert fields.flags.c_contiguous
    assert cotangent.flags.c_contiguous

    answer = arrays_from_vjp(fields, cotangent, CONFIG, form)
    renamed = {
        name.replace("input", "gradient")
        .replace("u0", "gradient.u0")
        .replace("cotangent", "output"): array
        for name, array in given.items()
    }
    assert set(answer) == set(renamed)
    for name, array in renamed.items():
        np.testing.assert_array_equal(answer[name], array.astype("f4"))
    assert set(arrays_from_vjp(fields, None, CONFIG, form)) == {
        name for name in renamed if name.startswith("gradient")
    }


def test_a_bare_grid_has_a_bare_gradient_and_one_channel_a_bare_cotangent() -> None:
    config = rollable_config()
    x, v = generator().standard_normal((2, 16)).astype("f4")
    given = {"input": x, "cotangent": v}
    fields, cotangent, form = vjp_from_arrays(given, config, max_fields=1)
    np.testing.assert_array_equal((fields, cotangent), (x[None, None], v[None, None]))
    answer = arrays_from_vjp(fields, cotangent, config, form)
    np.testing.assert_array_equal(answer["gradient"], x)
    np.testing.assert_array_equal(answer["output"], v)
    # Both output channels are needed.
    given = {"input": X[0, 0], "cotangent": V[0]}
    assert vjp_from_arrays(given, CONFIG, max_fields=1)[1].shape == (1, 2, 9, 11)


def test_input_and_output_channels_may_share_a_name() -> None:
    config = rollable_config()
    x, v = X[:, 0, 0], V[:, 0, 0]
    fields, cotangent, form = vjp_from_arrays({"w": x, "cotangent.w": v}, config, max_fields=3)
    np.testing.assert_array_equal(fields[:, 0], x.astype("f4"))
    np.testing.assert_array_equal(cotangent[:, 0], v.astype("f4"))
    assert set(arrays_from_vjp(fields, cotangent, config, form)) == {"gradient.w", "output.w"}


def test_an_input_channel_may_be_named_like_the_cotangent() -> None:
    config = rollable_config()
    x, v = X[:, 0, 0], V[:, 0, 0]
    for name in ("cotangent", "cotangent.x"):
        inputs = (Channel(name=name),)
        named = config.model_copy(update={"inputs": inputs})
        for given in ({name: x}, {"input": x[:, None]}):
            fields, cotangent, _ = vjp_from_arrays(given | {"cotangent.w": v}, named, max_fields=3)
            np.testing.assert_array_equal(fields[:, 0], x.astype("f4"))
            np.testing.assert_array_equal(cotangent[:, 0], v.astype("f4"))


def test_a_model_that_changes_the_resolution_has_no_gradient() -> None:
    def scaled(*scales: float) -> ModelConfig:
        layers = tuple((scale, 1.0) for scale in scales)
        update = {"resolution_scaling": layers, "n_layers": len(scales)}
        arch = CONFIG.architecture.model_copy(update=update)
        return CONFIG.model_copy(update={"architecture": arch})

    for cotangent in (V, np.repeat(V, 2, axis=2)):
        given = WHOLE_INPUT | {"cotangent": cotangent}
        with pytest.raises(
            NotDifferentiable, match=r"the grid \[18, 11\] for an input on \[9, 11\]"
        ):
            vjp_from_arrays(given, scaled(2.0, 1.0), max_fields=3)
    # Back at the grid of the input.
    vjp_from_arrays(WHOLE_INPUT | WHOLE_COTANGENT, scaled(2.0, 0.5), max_fields=3)


def test_units_are_those_of_a_derivative() -> None:
    config = CONFIG.model_copy(update={"inputs": (Channel(name="u0", units="m/s"),)})
    assert units_of_vjp(config, output=False) == {"gradient.u0": "1/(m/s)"}
    assert units_of_vjp(CONFIG, output=True) == {
        "gradient.u0": "1", "output.u": "1", "output.v": "m/s",
    }  # fmt: skip


def with_value(array: Array, value: float) -> Array:
    changed = array.copy()
    changed[1, 1, 2, 3] = value
    return changed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (WHOLE_INPUT, r"cotangent is missing.*\['cotangent'\] with shape \[3, 2, 9, 11\].*'cotangent.u', 'cotangent.v'"),
        (INPUT_BY_CHANNEL | {"cotangent.u": V[:, 0]}, r"named \['cotangent.u'\]"),
        (WHOLE_INPUT | COTANGENT_BY_CHANNEL | WHOLE_COTANGENT, r"named \['cotangent', "),
        (WHOLE_INPUT | {"cotangent.w": V[:, 0]}, r"named \['cotangent.w'\]"),
        (WHOLE_COTANGENT, r"inputs are named \[\]"),
        (WHOLE_INPUT | WHOLE_COTANGENT | {"weight": V}, r"'weight'"),
        (WHOLE_INPUT | {"cotangent": V[:2]}, r"'cotangent' has shape \[2, 2, 9, 11\], expected \[3, 2, 9, 11\]"),
        (WHOLE_INPUT | {"cotangent": V[..., :10]}, r"expected \[3, 2, 9, 11\]"),
        (WHOLE_INPUT | {"cotangent": V[:, :1]}, r"expected \[3, 2, 9, 11\]"),
        (WHOLE_INPUT | {"cotangent": V[0]}, r"expected \[3, 2, 9, 11\]"),
        (INPUT_BY_CHANNEL | {"cotangent.u": V[:, 0], "cotangent.v": V}, r"'cotangent.v' has shape"),
        (WHOLE_INPUT | {"cotangent": V.astype("i4")}, r"'cotangent' has dtype int32"),
        (WHOLE_INPUT | {"cotangent": with_value(V, np.nan)}, r"cotangent of field 1, channel 'v', grid point \[2, 3\] is nan"),
        (WHOLE_INPUT | {"cotangent": with_value(V, 1e39)}, r"is inf in float32"),
    ],
)  # fmt: skip
def test_unusable_arrays_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        vjp_from_arrays(given, CONFIG, max_fields=3)


def test_too_many_fields_are_refused() -> None:
    with pytest.raises(PayloadTooLarge):
        vjp_from_arrays(WHOLE_INPUT | WHOLE_COTANGENT, CONFIG, max_fields=2)
