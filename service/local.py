"""One prediction straight from a checkpoint, without a server, with the checks the server makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from models.checkpoint import load_model
from models.registry import discover
from service.codec.fields import INPUT, arrays_from_fields, fields_from_arrays
from service.codec.grids import from_network, grid_warnings, parse_output_grid, to_network
from service.errors import NotFound, Unavailable
from service.pipeline.batch import out_of_memory
from service.runtime.device import resolve_device

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LocalPrediction:
    """An answer, float32 in the rank of the input, and the model's configuration."""

    fields: NDArray[np.float32]
    config: ModelConfig
    warnings: tuple[str, ...] = ()


def predict_local(
    root: Path,
    name: str,
    array: NDArray[Any],
    *,
    version: str | None,
    device: str,
    output_grid: str | None = None,
) -> LocalPrediction:
    """Run the model `name` of the repository `root` on one field or a batch.

    Args:
        array: float [channels, *grid] or [n, channels, *grid], physical units.
        version: the newest if None.
        device: "auto" (CUDA when there is any), "cpu", "cuda", "cuda:1", ...
        output_grid: points on each axis of the answer, as "128,128"; the input's if None.

    Raises:
        NotFound: the repository has no such model or version.
        CheckpointError: the checkpoint cannot be loaded.
        BadRequest, InvalidField: the model cannot take this array, or has no answer on that grid.
        Unavailable: memory ran out.
    """
    known = discover(root)
    candidates = [one for one in known if one.name == name and version in (None, one.version)]
    if not candidates:
        have = ", ".join(f"{one.name} (version {one.version})" for one in known) or "none"
        wanted = name if version is None else f"{name} version {version}"
        raise NotFound(f"there is no model {wanted} in {root}; there are: {have}")
    target = resolve_device(device)
    model = load_model(candidates[-1].path, device=target)
    config = model.config
    grid = None if output_grid is None else parse_output_grid(output_grid, config)
    fields, form = fields_from_arrays({INPUT: array}, config, max_fields=max(1, array.size))
    warnings = grid_warnings(config, fields.shape[2:], grid)
    if grid is not None:
        fields = to_network(fields, config)
    try:
        with torch.inference_mode():
            answer = model.module(torch.from_numpy(fields).to(target)).cpu().numpy()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise Unavailable(
            f"there is not enough free memory to run model {name!r} on {len(fields)} fields at once; "
            "split them, or use a coarser grid"
        ) from None
    if grid is not None:
        answer = from_network(answer, grid, config)
    (values,) = arrays_from_fields(answer, config, form).values()
    return LocalPrediction(values, config, warnings)
