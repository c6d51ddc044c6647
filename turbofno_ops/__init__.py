"""Spectral layers of Fourier neural operators as PyTorch ops, with a fast path for kept modes far below Nyquist."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "turbofno_ops needs PyTorch: install the build for your machine, or run `pip install '.[ops]'` in a checkout"
    ) from error

from turbofno_ops._activations import ACTIVATIONS
from turbofno_ops._choice import Choice
from turbofno_ops._graphs import CaptureFailed, GraphCache
from turbofno_ops._native import NativeStatus, native_status
from turbofno_ops._support import gpu_refusal
from turbofno_ops._table_use import used_tables
from turbofno_ops.description import (
    MLP,
    PRECISIONS,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Branch,
    ChainRefused,
    FNODescription,
    Normalize,
    PointwiseMap,
    Scaling,
    Spectral,
    SpectralTerm,
)
from turbofno_ops.dispatch import BACKENDS, last_choice
from turbofno_ops.fourier_layer import fourier_layer
from turbofno_ops.module_graph import GraphRefused, ModuleGraphs
from turbofno_ops.plan import CompiledFNO, compile_fno
from turbofno_ops.replay import Replay, Unrecordable
from turbofno_ops.spectral_conv import explain, spectral_conv

__version__ = "0.2.0"

__all__ = [
    "ACTIVATIONS",
    "BACKENDS",
    "MLP",
    "PRECISIONS",
    "Activate",
    "AddGate",
    "AddMap",
    "Affine",
    "Branch",
    "CaptureFailed",
    "ChainRefused",
    "Choice",
    "CompiledFNO",
    "FNODescription",
    "GraphCache",
    "GraphRefused",
    "ModuleGraphs",
    "NativeStatus",
    "Normalize",
    "PointwiseMap",
    "Replay",
    "Scaling",
    "Spectral",
    "SpectralTerm",
    "Unrecordable",
    "compile_fno",
    "explain",
    "fourier_layer",
    "gpu_refusal",
    "last_choice",
    "native_status",
    "spectral_conv",
    "used_tables",
]
