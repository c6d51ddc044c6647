"""Checkpoints of neuraloperator: FNO and TFNO of the releases 0.3, 1.0, 2.0.0 and of its main branch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from turbofno.models.importers.layout import Tensors
from turbofno.models.importers.neuraloperator.network import Network
from turbofno.models.importers.neuraloperator.pickled import settings_of
from turbofno.models.importers.neuraloperator.settings import read_settings
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported, Options

__all__ = ["import_neuraloperator", "read_exactly", "recognises", "settings_of"]

_BLOCKS = "fno_blocks."

# What torch.optim.swa_utils.AveragedModel counts beside the network.
_OF_WRAPPERS = {"n_averaged"}


def recognises(keys: Collection[str]) -> bool:
    """Whether a state dict with these keys is one of neuraloperator's, perhaps inside a wrapper."""
    return any(_BLOCKS in key for key in keys)


def import_neuraloperator(
    tensors: dict[str, torch.Tensor], metadata: dict[str, Any] | None, options: Options
) -> Imported:
    """Turn an FNO or TFNO into our architecture and state dict.

    Args:
        tensors: Its state dict, without the entry `_metadata`.
        metadata: The arguments it was built with, classes and functions as `Named` and `Stub`; None
            or empty if they are not known.
        options: `version` (0.3.0, 1.0, 2.0.0, main) and any argument of FNO.__init__ that changes what it
            computes, under its name in 2.0.0; they win over the file.

    Returns:
        Everything but the normalisation, which the library keeps elsewhere.

    Raises:
        ImportRefused: something that we do not have, by name.
    """
    imported = _read(tensors, metadata, options, torch.complex64)
    return replace(imported, state={name: _single(t) for name, t in imported.state.items()})


def read_exactly(
    tensors: dict[str, torch.Tensor], metadata: dict[str, Any] | None, options: Options
) -> Imported:
    """As `import_neuraloperator`, with the spectral weights in double precision."""
    return _read(tensors, metadata, options, torch.complex128)


def _read(
    tensors: dict[str, torch.Tensor],
    metadata: dict[str, Any] | None,
    options: Options,
    numbers: torch.dtype,
) -> Imported:
    prefix = _wrapper(tensors)
    outside = [n for n in tensors if not n.startswith(prefix) and n not in _OF_WRAPPERS]
    if outside:
        raise ImportRefused(
            f"the network's names begin with {prefix!r}, and there is no place for {', '.join(outside[:5])} "
            "beside it: save the network alone, torch.save(network.state_dict(), path)"
        )
    inner = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    settings = read_settings(inner, metadata, options)
    network = Network(Tensors(inner), settings, numbers)
    kind = settings.metadata.get("_name", "FNO")
    name = f"neuraloperator {settings.release} {kind}"
    options.finish(name)
    arch = network.architecture
    assumptions = settings.assumptions
    if prefix:
        assumptions.append(f"the names begin with {prefix!r}, which was cut off")
    if arch.odd_axes_rolled:
        assumptions.append(
            f"on axes of odd size, the last excepted, frequencies come back one lower, as in {settings.release} "
            "(fftshift for ifftshift); version=main does not. Development versions of November 2025 to "
            "February 2026 do not either and write the same files as 2.0.0"
        )
    return Imported(
        name,
        arch,
        network.state,
        tuple(assumptions),
        release_is_told=settings.release_is_told,
    )


def _wrapper(names: Collection[str]) -> str:
    """What stands before every name when the network was saved inside another module."""
    heads = {name.partition(_BLOCKS)[0] for name in names if _BLOCKS in name}
    return min(heads, key=len, default="")


def _single(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex64 if tensor.is_complex() else torch.float32).contiguous()
