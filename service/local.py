"""Models in this process, without a server: one prediction with all checks, and a model to verify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.registry import discover
from turbofno.models.trust.signals import Signals
from turbofno.models.verify.command import Verifiable
from turbofno.service.answer_warnings import AnswerWarnings, of_interpolated
from turbofno.service.codec.fields import INPUT, arrays_from_fields, fields_from_arrays
from turbofno.service.codec.grids import from_network, parse_output_grid, to_network
from turbofno.service.engine.out_of_memory import out_of_memory
from turbofno.service.engine.runnable import Ran
from turbofno.service.errors import NotFound, Unavailable
from turbofno.service.pipeline.batch import check_outputs
from turbofno.service.runtime.device import resolve_device
from turbofno.service.runtime.forward import Forward

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from turbofno.models.core.config import ModelConfig
    from turbofno.service.settings import Settings


@dataclass(frozen=True, slots=True)
class LocalPrediction:
    """A prediction, float32 in the layout of the input, and the model's configuration."""

    fields: NDArray[np.float32]
    config: ModelConfig
    warnings: tuple[str, ...] = ()


def find_checkpoint(root: Path, name: str, version: str | None = None) -> Path:
    """The folder of a version of the model `name` in the repository `root`, by default of the newest.

    Raises NotFound if there is no such model or version, NotADirectoryError if there is no such repository.
    """
    known = discover(root)
    candidates = [one for one in known if one.name == name and version in (None, one.version)]
    if not candidates:
        have = ", ".join(f"{one.name} (version {one.version})" for one in known) or "none"
        wanted = name if version is None else f"{name} version {version}"
        raise NotFound(f"there is no model {wanted} in {root}, expected one of: {have}")
    return candidates[-1].path


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
        device: "auto" (CUDA if there is a GPU, else the CPU), "cpu", "cuda", "cuda:1", ...
        output_grid: points on each axis of the answer, as "128,128"; the input's if None.

    Returns:
        float32 [out_channels, *grid] or [n, out_channels, *grid], physical units, with warnings.

    Raises:
        NotFound: the repository has no such model or version.
        CheckpointError: the checkpoint cannot be loaded.
        BadRequest, InvalidField: the model cannot take this array, cannot answer on that grid, or gave NaN or infinity.
        Unavailable: out of memory.
    """
    folder = find_checkpoint(root, name, version)
    target = resolve_device(device)
    model = load_model(folder, device=target, repository=root)
    config = model.config
    grid = None if output_grid is None else parse_output_grid(output_grid, config)
    fields, form = fields_from_arrays({INPUT: array}, config, max_fields=max(1, array.size))
    known = AnswerWarnings(config, fields.shape[2:], grid)
    of_input = known.of_input(fields)
    if grid is not None:
        fields = to_network(fields, config)
    try:
        with torch.inference_mode():
            x = torch.from_numpy(fields).to(target)
            y = model.module(x)
            judged = Signals(config, target)(x, y)
            trust = {name: tuple(values.tolist()) for name, values in judged.items()}
            answer = y.cpu().numpy()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise Unavailable(
            f"there is not enough free memory to run model {name!r} on {len(fields)} fields at once: "
            "split them, or use a coarser grid"
        ) from None
    check_outputs(answer, name)
    if grid is not None:
        answer = from_network(answer, grid, config)
    (values,) = arrays_from_fields(answer, config, form).values()
    warned = (
        *of_input,
        *of_interpolated(fields, config),
        *known.of_prediction(trust, answer),
    )
    return LocalPrediction(values, config, tuple(one.text for one in warned))


def load_as_served(folder: Path, settings: Settings, *, max_batch: int) -> Verifiable:
    """The checkpoint in `folder` on the device and in the precision of the settings, as the server runs it.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
        ValueError: there is no such device.
    """
    device = resolve_device(settings.device)
    loaded = load_model(folder, device=device, repository=settings.model_repository)
    config, wanted = loaded.config, settings.precision
    precision = config.precision if wanted == "model" else wanted
    forward = Forward(config.name, loaded.module, device, precision=precision, max_batch=max_batch)
    forward.prepare(torch.Size((config.architecture.in_channels, *config.grid.training)))
    ran = Ran("none")

    def surrogate(x: torch.Tensor) -> torch.Tensor:
        nonlocal ran
        y, ran = forward(x)
        return y

    return Verifiable(config, surrogate, lambda: ran[:2], device)
