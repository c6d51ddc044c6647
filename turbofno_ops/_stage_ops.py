"""Schemas and fakes of the stages as ops; the library of CUDA kernels implements them (csrc/bindings).

Activations and precisions go by their number in csrc/api/turbofno.h, tables are those of _cuda_tables.py,
fields and spectra as in _stages.py.
"""

from __future__ import annotations

import torch
from torch.library import Library

_library = Library("turbofno", "FRAGMENT")
_library.define("analyze_rows(Tensor x, Tensor table, SymInt modes, int precision) -> Tensor")
_library.define(
    "spectral_mix(Tensor spectra, Tensor weight, Tensor? column_analysis, Tensor? column_synthesis, "
    "SymInt h_out, int precision) -> Tensor"
)
_SUMMANDS = "Tensor spectra, Tensor table, Tensor? x, Tensor? skip, Tensor? bias"
_library.define(
    f"fourier_rows({_SUMMANDS}, Tensor? next_table, SymInt next_modes, int activation, SymInt w, "
    "int precision) -> (Tensor, Tensor)"
)
_library.define(
    f"project_rows({_SUMMANDS}, Tensor projection, Tensor? projection_bias, int activation, "
    "SymInt w, int precision) -> Tensor"
)

_BF16 = 2
_Given = torch.Tensor | None


def _analyze_rows(x: torch.Tensor, table: torch.Tensor, modes: int, precision: int) -> torch.Tensor:
    del table, precision
    return x.new_empty((*x.shape[:3], modes), dtype=torch.complex64)


def _spectral_mix(
    spectra: torch.Tensor,
    weight: torch.Tensor,
    column_analysis: _Given,
    column_synthesis: _Given,
    h_out: int,
    precision: int,
) -> torch.Tensor:
    del column_analysis, column_synthesis, precision
    return spectra.new_empty((spectra.shape[0], weight.shape[3], h_out, weight.shape[1]))


def _fourier_rows(
    spectra: torch.Tensor,
    table: torch.Tensor,
    x: _Given,
    skip: _Given,
    bias: _Given,
    next_table: _Given,
    next_modes: int,
    activation: int,
    w: int,
    precision: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    del table, x, skip, bias, next_table, activation
    field = torch.bfloat16 if precision == _BF16 else torch.float32
    rows = spectra.shape[:3]
    return spectra.new_empty((*rows, w), dtype=field), spectra.new_empty((*rows, next_modes))


def _project_rows(
    spectra: torch.Tensor,
    table: torch.Tensor,
    x: _Given,
    skip: _Given,
    bias: _Given,
    projection: torch.Tensor,
    projection_bias: _Given,
    activation: int,
    w: int,
    precision: int,
) -> torch.Tensor:
    del table, x, skip, bias, projection_bias, activation, precision
    batch, _, h, _ = spectra.shape
    return spectra.new_empty((batch, projection.shape[0], h, w), dtype=torch.float32)


for _name, _fake in (
    ("analyze_rows", _analyze_rows),
    ("spectral_mix", _spectral_mix),
    ("fourier_rows", _fourier_rows),
    ("project_rows", _project_rows),
):
    torch.library.register_fake(f"turbofno::{_name}", _fake, lib=_library)
