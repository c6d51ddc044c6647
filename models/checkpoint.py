"""Native checkpoints on disk: a folder with config.json and model.safetensors, every key, shape and hash checked."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from models.config import (
    FieldNormalization,
    FNOArchitecture,
    ModelConfig,
    Normalization,
    read_config,
)
from models.fno import FNO
from models.registry import CONFIG_FILE

WEIGHTS_FILE = "model.safetensors"

_TORCH_DTYPES = {"F32": torch.float32, "F64": torch.float64, "C64": torch.complex64}


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded. The message names the file and what in it is wrong."""


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

    Both are written under temporary names first, so that a full disk leaves the old checkpoint.
    """
    path.mkdir(parents=True, exist_ok=True)
    weights = path / (WEIGHTS_FILE + ".new")
    state = {name: t.detach().cpu().contiguous() for name, t in module.state_dict().items()}
    save_file(state, weights, metadata={"format": config.format})
    # safetensors writes for the owner alone; a service often runs as somebody else
    weights.chmod(0o644)
    config = config.model_copy(update={"sha256": sha256_of(weights)})
    described = _write_new_config(path, config)
    weights.replace(path / WEIGHTS_FILE)
    described.replace(path / CONFIG_FILE)
    return config


def write_config(path: Path, config: ModelConfig) -> None:
    """Write config.json into the folder `path`, leaving out what is at its default of None or empty."""
    _write_new_config(path, config).replace(path / CONFIG_FILE)


def _write_new_config(path: Path, config: ModelConfig) -> Path:
    text = json.dumps(config.model_dump(mode="json", exclude_none=True), indent=2)
    temporary = path / (CONFIG_FILE + ".new")
    temporary.write_text(text + "\n")
    return temporary


def load_model(path: Path, *, device: torch.device | str = "cpu") -> LoadedModel:
    """Load the native checkpoint in the folder `path`.

    Nothing in it is executed: the weights are safetensors, the configuration is JSON. The file's
    hash, every key, every shape and dtype, and that all values are finite, are checked first.

    Raises:
        CheckpointError: anything missing or wrong, by name.
    """
    config = _read_config(path)
    weights = path / WEIGHTS_FILE
    if not weights.is_file():
        raise CheckpointError(f"{path}: there is no {WEIGHTS_FILE}")
    found = sha256_of(weights)
    if found != config.sha256:
        raise CheckpointError(
            f"{weights}: SHA-256 is {found}, but {CONFIG_FILE} says {config.sha256}: the file is "
            "damaged or was replaced; restore it, or save the checkpoint again with save_model"
        )
    normalization = config.normalization or config.field_normalization
    try:
        expected = state_shapes(config.architecture, normalization)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: its architecture is absurd: {error}") from error
    state = _read_weights(weights, expected)
    module = FNO(config.architecture, normalization)
    module.load_state_dict(state)
    if config.field_normalization is not None:
        for name in ("input_std", "output_std"):
            if not (module.get_buffer(name) > 0).all():
                raise CheckpointError(f"{weights}: {name} must be positive everywhere")
    module.requires_grad_(False)
    return LoadedModel(config, module.to(device).eval())


def state_shapes(
    arch: FNOArchitecture, normalization: Normalization | FieldNormalization | None = None
) -> dict[str, torch.Tensor]:
    """The state dict of such a network without its numbers: a file may claim any size, this takes no memory."""
    with torch.device("meta"):
        return dict(FNO(arch, normalization).state_dict())


def _read_config(path: Path) -> ModelConfig:
    file = path / CONFIG_FILE
    try:
        return read_config(file)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no {CONFIG_FILE}") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
    except ValidationError as error:
        where = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']}" for item in error.errors()
        )
        raise CheckpointError(f"{file}: {where}") from None


def _read_weights(file: Path, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, after its header agrees with `expected` in every entry."""
    try:
        with safe_open(file, framework="pt") as archive:
            keys = set(archive.keys())
            problems = [f"missing {name}" for name in expected if name not in keys]
            problems += [f"unknown {name}" for name in sorted(keys - set(expected))]
            for name in sorted(keys & set(expected)):
                entry, want = archive.get_slice(name), expected[name]
                if list(entry.get_shape()) != list(want.shape):
                    problems.append(
                        f"{name} has shape {entry.get_shape()}, expected {list(want.shape)}"
                    )
                elif _TORCH_DTYPES.get(entry.get_dtype()) != want.dtype:
                    problems.append(f"{name} is {entry.get_dtype()}, expected {want.dtype}")
            if problems:
                raise CheckpointError(
                    f"{file}: does not fit the architecture in {CONFIG_FILE}: "
                    + "; ".join(problems)
                )
            state = {name: archive.get_tensor(name) for name in expected}
    except SafetensorError as error:
        raise CheckpointError(f"{file}: not a valid safetensors file: {error}") from error
    for name, tensor in state.items():
        if not torch.isfinite(torch.view_as_real(tensor) if tensor.is_complex() else tensor).all():
            raise CheckpointError(f"{file}: {name} holds NaN or infinite values")
    return state
