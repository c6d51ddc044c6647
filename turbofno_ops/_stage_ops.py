"""Schemas of the stages as ops; the library of CUDA kernels implements them (csrc/bindings).

Activations and precisions go by their number in csrc/api/turbofno.h, tables are those of _cuda_tables.py,
fields and spectra as in _stages.py. Results and workspaces are the caller's: PyTorch's stable C interface
passes on that there is no memory, but not as an error of that type.
"""

from __future__ import annotations

from torch.library import Library

_library = Library("turbofno", "FRAGMENT")
_library.define(
    "analyze_rows(Tensor x, Tensor table, SymInt modes, int precision, Tensor(a!) spectra, "
    "Tensor(b!) workspace) -> ()"
)
_library.define(
    "spectral_mix(Tensor spectra, Tensor weight, Tensor? column_analysis, Tensor? column_synthesis, "
    "int precision, Tensor(a!) mixed, Tensor(b!) workspace) -> ()"
)
_SUMMANDS = "Tensor spectra, Tensor table, Tensor? x, Tensor? skip, Tensor? bias"
_library.define(
    f"fourier_rows({_SUMMANDS}, Tensor? next_table, int activation, int precision, Tensor(a!) y, "
    "Tensor(b!)? next_spectra, Tensor(c!) workspace) -> ()"
)
_library.define(
    f"project_rows({_SUMMANDS}, Tensor projection, Tensor? projection_bias, int activation, "
    "int precision, Tensor(a!) out, Tensor(b!) workspace) -> ()"
)
