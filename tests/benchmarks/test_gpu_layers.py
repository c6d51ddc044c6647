"""benchmarks.gpu.layers on a CPU: the network of a chain, and its time."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.gpu import layers
from benchmarks.gpu.candidates import Candidate
from benchmarks.ops import Layer
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno_ops import fourier_layer

LAYER = Layer(2, 8, (16, 20), (6, 4))


def inputs() -> layers.Inputs:
    c, modes = LAYER.channels, LAYER.modes
    weight = torch.randn(*modes, c, c, dtype=torch.complex64) / math.sqrt(c)
    fields = [torch.randn(LAYER.batch, c, *LAYER.size)]
    return layers.Inputs(fields, weight.permute(2, 3, 0, 1), torch.randn(c, c), torch.randn(c))


def test_chain_has_the_layers_weights() -> None:
    given = inputs()
    module = layers.network(LAYER, given, 3)
    x = given.fields[0]
    expected = fourier_layer(
        x, given.weight, skip_weight=given.skip, bias=given.bias, activation="gelu"
    )
    first, second, _ = module.blocks
    assert relative_l2(first(x), expected) < 1e-6
    assert relative_l2(second(x), expected) < 1e-6


def test_time_of_a_chain_excludes_its_lifting_and_projection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = {"alone": 3.0, "long": 10.0, "short": 2.0}
    candidates = [
        Candidate("a", "cuda", "fp32", 0.0, lambda: "alone"),
        Candidate("b", "cuda", "fp32", 0.0, lambda: "long", layers_each=8, less=lambda: "short"),
    ]
    monkeypatch.setattr(layers, "draw", lambda _: inputs())
    monkeypatch.setattr(layers, "_own", lambda *_: candidates)
    monkeypatch.setattr(layers, "_others", lambda *_, **__: [])
    monkeypatch.setattr(layers, "milliseconds", lambda runs, **_: [taken[run()] for run in runs])
    rows = layers.measure(LAYER, 1e12, compiled=False, seconds=0)
    assert [row["ms"] for row in rows] == [3.0, 1.0]
