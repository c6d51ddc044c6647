"""Native checkpoints: folders with config.json and model.safetensors; hash, keys and shapes are checked on loading."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.config import FieldNormalization, ModelConfig, Normalization
from turbofno.models.core.files import FileRefused, read_inside
from turbofno.models.core.fno import FNO
from turbofno.models.core.registry import CONFIG_FILE
from turbofno.models.core.stand_in import stand_in
from turbofno.models.core.validation import described

WEIGHTS_FILE = "model.safetensors"

_CONFIG_BYTES = 16 << 20
_HEADER_BYTES = 100 << 20
"""The safetensors library's limit for a header."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded. The message names the file and the fault."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint in memory: its configuration and the module in eval mode."""

    config: ModelConfig
    module: FNO


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file as lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_model(path: Path, config: ModelConfig, module: FNO) -> ModelConfig:
    """Write config.json and model.safetensors into the folder `path`; returns the config with the new hash.

    Both are written under temporary names first, so that a full disk does not destroy the old checkpoint.
    """
    path.mkdir(parents=True, exist_ok=True)
    weights = path / (WEIGHTS_FILE + ".new")
    state = {name: t.detach().cpu().contiguous() for name, t in module.state_dict().items()}
    save_file(state, weights, metadata={"format": config.format})
    # safetensors creates files readable by the owner only; a service often runs as another user
    weights.chmod(0o644)
    config = config.model_copy(update={"sha256": sha256_of(weights)})
    described = _write_new_config(path, config)
    weights.replace(path / WEIGHTS_FILE)
    described.replace(path / CONFIG_FILE)
    return config


def write_config(path: Path, config: ModelConfig) -> None:
    """Write config.json into the folder `path`, without the entries that are None."""
    _write_new_config(path, config).replace(path / CONFIG_FILE)


def _write_new_config(path: Path, config: ModelConfig) -> Path:
    text = json.dumps(config.model_dump(mode="json", exclude_none=True), indent=2)
    temporary = path / (CONFIG_FILE + ".new")
    temporary.write_text(text + "\n")
    return temporary


def load_model(
    path: Path,
    *,
    device: torch.device | str = "cpu",
    repository: Path | None = None,
    check: Callable[[ModelConfig], None] = lambda _: None,
) -> LoadedModel:
    """Load the native checkpoint in the folder `path`.

    No code from the folder runs: the weights are safetensors, the configuration is JSON. Each file is read into
    memory once, so that a change of the file after its checks has no effect. Checked are the hash, every key, shape
    and dtype, and that all values are finite. Links in the folder may lead to files of the folder and of
    `repository`. `check` receives the configuration before any memory is allocated for the weights.

    Raises:
        CheckpointError: a missing or wrong entry; the message names it.
        Exception: anything that `check` raises.
    """
    folders = (path,) if repository is None else (path, repository)
    config = _read_config(path, folders)
    check(config)
    normalization = config.normalization or config.field_normalization
    try:
        expected = state_shapes(config.architecture, normalization)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path}: no network of this architecture can be built: {error}"
        ) from error
    state = _read_weights(path / WEIGHTS_FILE, folders, config.sha256, expected)
    module = FNO(config.architecture, normalization)
    module.load_state_dict(state)
    if config.field_normalization is not None:
        for name in ("input_std", "output_std"):
            if not (module.get_buffer(name) > 0).all():
                raise CheckpointError(f"{path / WEIGHTS_FILE}: {name} must be positive everywhere")
    module.requires_grad_(False)
    return LoadedModel(config, module.to(device).eval())


def is_finite(tensor: torch.Tensor) -> bool:
    """True if no value is NaN or infinite. `torch.isfinite` would allocate half as much again as the tensor has."""
    if tensor.numel() == 0:
        return True
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(real))


def state_shapes(
    arch: FNOArchitecture, normalization: Normalization | FieldNormalization | None = None
) -> dict[str, torch.Tensor]:
    """The state dict of a network on the meta device: names, shapes and dtypes, whatever their size, without memory."""
    with torch.device("meta"):
        return dict(FNO(arch, normalization).state_dict())


def _read_config(path: Path, folders: tuple[Path, ...]) -> ModelConfig:
    file = path / CONFIG_FILE
    try:
        return ModelConfig.model_validate_json(_read(file, folders, _CONFIG_BYTES))
    except ValidationError as error:
        raise CheckpointError(f"{file}: {described(error, 'file')}") from None


def _read(file: Path, folders: tuple[Path, ...], limit: int) -> bytes:
    try:
        return read_inside(file, *folders, limit=limit)
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent} has no {file.name}") from None
    except OSError as error:
        # without the file's real path, which clients must not learn
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except FileRefused as error:
        raise CheckpointError(str(error)) from None


def _read_weights(
    file: Path, folders: tuple[Path, ...], sha256: str, expected: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, once its hash and every entry match `expected`."""
    needed = sum(tensor.nbytes for tensor in expected.values())
    content = _read(file, folders, needed + _HEADER_BYTES)
    if instead := stand_in(content):
        raise CheckpointError(f"{file}: {instead}")
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise CheckpointError(
            f"{file}: SHA-256 is {found}, but {CONFIG_FILE} says {sha256}: the file is "
            "damaged or was replaced; restore it, or save the checkpoint again with save_model"
        )
    try:
        state = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{file}: not a valid safetensors file: {error}") from error
    # as large as the tensors
    del content
    problems = [f"missing {name}" for name in expected if name not in state]
    problems += [f"unknown {name}" for name in sorted(state.keys() - expected.keys())]
    for name in sorted(state.keys() & expected.keys()):
        have, want = state[name], expected[name]
        if have.shape != want.shape:
            problems.append(f"{name} has shape {list(have.shape)}, expected {list(want.shape)}")
        elif have.dtype != want.dtype:
            problems.append(f"{name} is {have.dtype}, expected {want.dtype}")
    if problems:
        raise CheckpointError(
            f"{file}: does not fit the architecture in {CONFIG_FILE}: " + "; ".join(problems)
        )
    for name, tensor in state.items():
        if not is_finite(tensor):
            raise CheckpointError(f"{file}: {name} holds NaN or infinite values")
    return state
