"""Parsing of activations, with and without a parameter."""

from __future__ import annotations

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from turbofno.models.core.architecture import ACTIVATION_NAMES, Activation
from turbofno_ops import ACTIVATIONS
from turbofno_ops._activations import activate, activate_in_place, parse_activation

WRONG = ("softsign", "gelu(0.5)", "leaky_relu(", "leaky_relu()", "elu(nan)", "elu(1.2.3)", "")


def test_a_parameter_in_parentheses_has_a_default() -> None:
    assert parse_activation("relu") == ("relu", 0.0, 1)
    assert parse_activation("leaky_relu") == parse_activation("leaky_relu(0.01)")
    assert parse_activation("leaky_relu(0.2)") == ("leaky_relu", 0.2, 6)
    assert parse_activation("elu").parameter == 1.0
    for value in (1e-05, 100.0, -0.3):
        assert parse_activation(f"elu({value})").parameter == value


@pytest.mark.parametrize("written", WRONG)
def test_unknown_activations_are_refused(written: str) -> None:
    with pytest.raises(ValueError, match="activation"):
        parse_activation(written)
    with pytest.raises(ValidationError):
        TypeAdapter(Activation).validate_python(written)


def test_configs_accept_the_same_names_and_parameters() -> None:
    assert ACTIVATION_NAMES == ACTIVATIONS
    for written in (*ACTIVATIONS, "leaky_relu(0.2)", "elu(1e-05)", "elu(-2.0)"):
        TypeAdapter(Activation).validate_python(written)
        parse_activation(written)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, "leaky_relu(0.2)", "elu(0.5)"])
def test_in_place_is_the_same_function(activation: str) -> None:
    x = torch.linspace(-30, 30, 1001)
    assert torch.equal(activate_in_place(x.clone(), activation), activate(x, activation))
