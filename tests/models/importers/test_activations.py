"""Activations are recognised by the name, function or module in a file, with their parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch import nn

from tests.attacks.test_pickles import saved
from tests.models.importers.drawn import ACTIVATIONS
from turbofno.models.core.architecture import ACTIVATION_NAMES, Activation
from turbofno.models.importers.activations import activation_of
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.torch_file import read_torch_file
from turbofno_ops._activations import activate


@pytest.mark.parametrize(
    "theirs", [*ACTIVATIONS, nn.SELU(), nn.CELU(), nn.Hardswish(), nn.Hardsigmoid()]
)
def test_the_imported_activation_is_the_same_function(theirs: Any) -> None:
    ours = activation_of(read_torch_file(saved({"a": theirs}), "file")["a"], "non_linearity")
    TypeAdapter(Activation).validate_python(ours)
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    assert torch.allclose(activate(x, ours), theirs(x), atol=1e-12)


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        *((name, name) for name in ACTIVATION_NAMES),
        ("GELU", "gelu"), ("gelu_tanh", "gelu_tanh"), ("LeakyReLU(0.2)", "leaky_relu(0.2)"),
        ("leaky_relu(0.01)", "leaky_relu"), ("elu(1e-3)", "elu(0.001)"), ("leaky_relu(0)", "leaky_relu(0)"),
        ("identity", "none"), ("swish", "silu"),
    ],
)  # fmt: skip
def test_activations_as_text(text: str, ours: str) -> None:
    assert activation_of(text, "activation") == ours
    TypeAdapter(Activation).validate_python(ours)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ("wavelet", "activation=wavelet is not supported; supported are none"),
        ("relu(2)", r"activation=relu\(2\) is not supported"),
        ("leaky_relu(0.2", "is not supported"),
        ("leaky_relu(much)", "is not supported"),
        ("leaky_relu(nan)", "its magnitude must be"),
        ("elu(1e300)", "its magnitude must be"),
        (None, "activation=None is not an activation"),
    ],
)
def test_unsupported_activations_are_named(theirs: Any, says: str) -> None:
    with pytest.raises(ImportRefused, match=says):
        activation_of(theirs, "activation")


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (nn.Softplus(beta=3), "Softplus with beta=3 is not supported; supported is beta=1"),
        (nn.Hardtanh(0, 6), "Hardtanh with min_val=0"),
        (nn.CELU(2.0), "CELU with alpha=2.0 is not supported; supported is alpha=1"),
        (partial(F.softplus, beta=0.5), "softplus with beta=0.5"),
        (partial(F.leaky_relu, torch.zeros(1)), "functools.partial, but not one of a function"),
    ],
)
def test_modules_with_other_parameters_are_refused(theirs: Any, says: str) -> None:
    with pytest.raises(ImportRefused, match=says):
        activation_of(read_torch_file(saved({"a": theirs}), "file")["a"], "activation")
