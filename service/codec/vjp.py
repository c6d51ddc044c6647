"""Named arrays of `:vjp`: fields and cotangent of the request, gradient and output of the response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turbofno.models.core.config import ModelConfig
from turbofno.service.codec.fields import (
    INPUT,
    OUTPUT,
    Array,
    Form,
    answered_grid,
    check_dtype,
    check_finite,
    fields_from_arrays,
    laid_out,
)
from turbofno.service.engine.interface import Fields
from turbofno.service.errors import InvalidField, NotDifferentiable

COTANGENT = "cotangent"
GRADIENT = "gradient"


class VjpForm(NamedTuple):
    """Layouts of a request: of its input, which the gradient repeats, and of its cotangent, which the output repeats."""

    input: Form
    output: Form


def vjp_from_arrays(
    arrays: Mapping[str, Array], config: ModelConfig, *, max_fields: int
) -> tuple[Fields, Fields, VjpForm]:
    """Turn a request's named arrays into input and cotangent.

    The cotangent is named "cotangent", or "cotangent.NAME" for each output channel; the other arrays are as for
    `fields_from_arrays`.

    Returns:
        The input, float32 [batch, in_channels, *grid]; the cotangent, float32 [batch, out_channels, *grid], both
        C-contiguous; and their layouts.

    Raises:
        InvalidField: names, shapes, dtypes or values that the model cannot take.
        NotDifferentiable: the layers of the model change the resolution.
        PayloadTooLarge: too many fields for one request.
    """
    dotted = f"{COTANGENT}."
    # An input channel may have such a name, too.
    inputs = {INPUT} if INPUT in arrays else {channel.name for channel in config.inputs}
    given = {
        name: array
        for name, array in arrays.items()
        if (name == COTANGENT or name.startswith(dotted)) and name not in inputs
    }
    others = {name: array for name, array in arrays.items() if name not in given}
    fields, form = fields_from_arrays(others, config, max_fields=max_fields)
    grid = fields.shape[2:]
    answered = answered_grid(grid, config)
    if answered != grid:
        raise NotDifferentiable(
            f"model {config.name!r} has no gradient: its output has the grid {list(answered)} for an input on "
            f"{list(grid)}; :predict works"
        )
    leading = fields.shape[:1] if form.batched else ()
    by_channel = COTANGENT not in given
    whole = {COTANGENT: (*form.leading(len(fields), len(config.outputs)), *grid)}
    each = {f"{dotted}{channel.name}": (*leading, *grid) for channel in config.outputs}
    expected = each if by_channel else whole
    if set(given) != set(expected):
        found = f"named {sorted(given)}" if given else "missing"
        raise InvalidField(
            f"the cotangent is {found}; model '{config.name}' expects for this input either "
            f"['{COTANGENT}'] with shape {list(whole[COTANGENT])}, or each of {list(each)} with shape "
            f"{[*leading, *grid]}"
        )
    for name, shape in expected.items():
        check_dtype(given[name], name=name)
        if given[name].shape != shape:
            raise InvalidField(
                f"'{name}' has shape {list(given[name].shape)}, expected {list(shape)}, the shape of the output"
            )
    stacked = [np.asarray(given[name]).reshape(len(fields), -1, *grid) for name in expected]
    with np.errstate(over="ignore", invalid="ignore"):
        cotangents = np.concatenate(stacked, axis=1, dtype=np.float32)
    check_finite(cotangents, config.outputs, what="the cotangent of field", mend="")
    return fields, cotangents, VjpForm(form, replace(form, by_channel=by_channel))


def arrays_from_vjp(
    gradients: Fields, outputs: Fields | None, config: ModelConfig, form: VjpForm
) -> dict[str, NDArray[np.float32]]:
    """Named views in the layout of the request: "gradient" and "output", or "gradient.NAME" and "output.NAME"."""
    named = laid_out(gradients, config.inputs, form.input, whole=GRADIENT, prefix=f"{GRADIENT}.")
    if outputs is None:
        return named
    return named | laid_out(outputs, config.outputs, form.output, whole=OUTPUT, prefix=f"{OUTPUT}.")


def units_of_vjp(config: ModelConfig, *, output: bool) -> dict[str, str]:
    """Units of the response, for a cotangent that is the derivative of a dimensionless number."""
    units = {
        f"{GRADIENT}.{one.name}": "1" if one.units == "1" else f"1/({one.units})"
        for one in config.inputs
    }
    return units | {f"{OUTPUT}.{one.name}": one.units for one in config.outputs if output}
