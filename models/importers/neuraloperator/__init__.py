"""Import of neuraloperator's FNO and TFNO, releases 0.3, 1.0, 2.0.0 and main branch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from turbofno.models.importers.layout import Tensors, about_wrapper, inside_wrapper
from turbofno.models.importers.neuraloperator.network import Network
from turbofno.models.importers.neuraloperator.pickled import settings_of
from turbofno.models.importers.neuraloperator.settings import read_settings
from turbofno.models.importers.result import Imported, Options

__all__ = ["import_neuraloperator", "read_exactly", "recognises", "settings_of"]

_BLOCKS = "fno_blocks."


def recognises(keys: Collection[str]) -> bool:
    """True if these are keys of a neuraloperator network, perhaps inside a wrapper."""
    return any(_BLOCKS in key for key in keys)


def import_neuraloperator(
    tensors: dict[str, torch.Tensor], metadata: dict[str, Any] | None, options: Options
) -> Imported:
    """Convert an FNO or TFNO to our architecture and state dict.

    Args:
        tensors: Its state dict, without the entry `_metadata`.
        metadata: Its constructor arguments, classes and functions as `Named` and `Stub`; None or empty if they are
            unknown.
        options: `version` (0.3.0, 1.0, 2.0.0, main) and any argument of FNO.__init__ that changes the result,
            under its name in 2.0.0; they override the file.

    Returns:
        The network without normalisation, which the library saves elsewhere.

    Raises:
        ImportRefused: an unsupported part of the network; the message names it.
    """
    imported = _read(tensors, metadata, options, torch.complex64)
    return replace(imported, state={name: _single(t) for name, t in imported.state.items()})


def read_exactly(
    tensors: dict[str, torch.Tensor], metadata: dict[str, Any] | None, options: Options
) -> Imported:
    """As `import_neuraloperator`, with spectral weights in double precision."""
    return _read(tensors, metadata, options, torch.complex128)


def _read(
    tensors: dict[str, torch.Tensor],
    metadata: dict[str, Any] | None,
    options: Options,
    numbers: torch.dtype,
) -> Imported:
    prefix = _wrapper(tensors)
    inner = inside_wrapper(tensors, prefix)
    settings = read_settings(inner, metadata, options)
    network = Network(Tensors(inner), settings, numbers)
    kind = settings.metadata.get("_name", "FNO")
    name = f"neuraloperator {settings.release} {kind}"
    options.finish(name)
    arch = network.architecture
    assumptions = settings.assumptions
    if prefix:
        assumptions.append(about_wrapper(prefix))
    if arch.odd_axes_rolled:
        assumptions.append(
            f"on axes of odd size except the last, frequencies are returned one too low, as in {settings.release} "
            "(it calls fftshift instead of ifftshift). Development versions from November 2025 on compute them right: "
            "use version=main for those, since until February 2026 their files look like those of 2.0.0"
        )
    return Imported(
        name,
        arch,
        network.state,
        tuple(assumptions),
        release_is_known=settings.release_is_known,
    )


def _wrapper(names: Collection[str]) -> str:
    """The prefix of all keys of a network that was saved inside another module."""
    heads = {name.partition(_BLOCKS)[0] for name in names if _BLOCKS in name}
    return min(heads, key=len, default="")


def _single(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
