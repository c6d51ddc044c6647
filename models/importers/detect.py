"""What a path holds: which library wrote it, told by content, and the tensors and settings in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from turbofno.models.core.config import Activation
from turbofno.models.importers import neuraloperator, original, physicsnemo, the_well
from turbofno.models.importers.archive import Archive, is_tar, is_zip
from turbofno.models.importers.formats import Format
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported, Options
from turbofno.models.importers.safe_pickle import Stub
from turbofno.models.importers.tensor_files import read_json, read_safetensors
from turbofno.models.importers.torch_file import module_state, read_torch_file

_STATE_SUFFIX, _METADATA_SUFFIX = "_state_dict.pt", "_metadata.pkl"
_TRAINER_STATES = ("best_model", "model")
_WRAPPERS = ("model_state_dict", "state_dict", "model_state", "model", "net")
_PDEBENCH = {"epoch", "model_state_dict", "optimizer_state_dict", "loss"}

# Tied weights share their numbers, of a few layers at most.
_MAX_SHARING = 16

# Keys of networks that are often asked for, so that the refusal can say what they are.
_UNSUPPORTED = (
    (r"(^|\.)gno(_in|_out)?\.", "a graph neural operator (GINO, FNOGNO)"),
    (r"(^|\.)(i?sht|trans_down|itrans_up|SHT\w*)(\.|_)", "spherical harmonics (SFNO)"),
    (r"(^|\.)(patch_embed|pos_embed|blocks\.\d+\.filter)(\.|$)", "an AFNO (FourCastNet)"),
    (r"(^|\.)horizontal_skips", "a UNO"),
    (r"(^|\.)attention_layers\.\d+\.(Key|Query|Value)\.", "a CODANO"),
    (r"(^|\.)local_no_blocks\.", "a LocalNO"),
    (r"(^|\.)layers\.\d+\.cell\.", "an RNO"),
    (r"(^|\.)residual_model\.fno_blocks\.", "a UQNO"),
    (r"(^|\.)unet\d", "a U-FNO"),
    (r"fourier_weight\.\d", "a factorised FNO with a transform per axis (F-FNO)"),
    (r"(^|\.)spectral_list\.", "the FNO of the CNO and Poseidon baselines"),
    (r"(^|\.)sp_convs\.", "a PINO"),
    (r"\.fourier[12]\.weights", "a PDEArena FourierResNet"),
    (r"(^|\.)(branch|trunk)", "a DeepONet"),
)
SUPPORTED = (
    "neuraloperator FNO and TFNO; FNO1d, FNO2d, FNO3d of the original scripts and PDEBench; FNO of "
    "PhysicsNeMo and Modulus in 1 to 3 dimensions; FNO and TFNO of The Well"
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A foreign checkpoint as it was read.

    `settings` are the constructor's arguments, where they are known; `metadata` is PhysicsNeMo's;
    `padding` and `activations` are those of a module of the original scripts that was pickled whole.
    """

    format: Format
    path: Path
    tensors: dict[str, Tensor] = field(default_factory=dict)
    settings: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    padding: int | None = None
    activations: tuple[Activation, ...] = ()
    read_from: tuple[str, ...] = ()


def read_checkpoint(path: Path, forced: Format | None = None) -> Checkpoint:
    """Find out what `path` is and read it.

    Args:
        path: a file, or the folder of a neuraloperator Trainer or a Hugging Face model.
        forced: the format, where the user knows better.

    Raises:
        ImportRefused: nothing that we know, or a network that we do not have, by name.
        FileNotFoundError: there is nothing at `path`.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    if path.is_dir():
        return _read_folder(path, forced)
    return _read_file(path, forced)


def convert(checkpoint: Checkpoint, options: Options) -> Imported:
    """The network of a checkpoint in our terms.

    Raises:
        ImportRefused: something in it that we do not have, by name.
    """
    with _contradictions_refused(checkpoint.path):
        _refuse_unfolding(checkpoint.tensors)
        return _convert(checkpoint, options)


@contextmanager
def _contradictions_refused(path: Path) -> Iterator[None]:
    """Shapes and settings that contradict each other show up in as many ways as there are operations."""
    try:
        yield
    except ImportRefused:
        raise
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise ImportRefused(
            f"{path}: its tensors and settings contradict each other: {error}"
        ) from error


def _refuse_unfolding(tensors: dict[str, Tensor]) -> None:
    """Refuse a file in which so many tensors share their numbers that copies of them would fill the memory."""
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
    claimed = sum(t.numel() * t.element_size() for t in tensors.values())
    if claimed > _MAX_SHARING * sum(held.values()):
        raise ImportRefused(
            f"the tensors have {claimed:,} bytes and share {sum(held.values()):,} of them: a file that "
            "unfolds in memory"
        )


def _convert(checkpoint: Checkpoint, options: Options) -> Imported:
    tensors, settings = checkpoint.tensors, checkpoint.settings
    match checkpoint.format:
        case "physicsnemo":
            return physicsnemo.import_physicsnemo(
                tensors, settings or {}, checkpoint.metadata or {}, options
            )
        case "the-well":
            return the_well.import_the_well(tensors, settings or {}, options)
        case "neuraloperator":
            return neuraloperator.import_neuraloperator(tensors, settings, options)
        case "pdebench":
            return original.import_original(tensors, options, script="pdebench")
        case "original":
            return original.import_original(
                tensors, options, padding=checkpoint.padding, activations=checkpoint.activations
            )


def _agree(path: Path, forced: Format | None, found: Format) -> None:
    """Refuse a format that the container already contradicts."""
    if forced not in (None, found):
        raise ImportRefused(f"{path} is in the format {found}, not {forced}; leave --format out")


def _read_folder(path: Path, forced: Format | None) -> Checkpoint:
    config, weights = path / "config.json", path / "model.safetensors"
    if config.is_file() and weights.is_file():
        settings = read_json(config)
        if str(settings.get("format", "")).startswith("turbofno/"):
            raise ImportRefused(
                f"{path} is a native checkpoint already; put the folder into the model repository"
            )
        if not the_well.recognises(settings):
            raise ImportRefused(
                f"{config} is not that of an FNO of The Well: it has {', '.join(sorted(settings)[:8])}. "
                f"Supported are: {SUPPORTED}"
            )
        _agree(path, forced, "the-well")
        return Checkpoint("the-well", path, read_safetensors(weights), settings)
    states = sorted(path.glob(f"*{_STATE_SUFFIX}"))
    for name in _TRAINER_STATES:
        if path / f"{name}{_STATE_SUFFIX}" in states:
            return _read_file(path / f"{name}{_STATE_SUFFIX}", forced)
    if len(states) == 1:
        return _read_file(states[0], forced)
    names = ", ".join(state.name for state in states) or "none"
    raise ImportRefused(
        f"{path}: expected one *{_STATE_SUFFIX} or config.json with model.safetensors in the folder, found "
        f"{names}; give the file itself"
    )


def _read_file(path: Path, forced: Format | None) -> Checkpoint:
    if not path.is_file():
        raise ImportRefused(f"{path} is a pipe or device, not a file")
    if _is_mdlus(path):
        _agree(path, forced, "physicsnemo")
        tensors, arguments, metadata = physicsnemo.read_mdlus(path)
        return Checkpoint("physicsnemo", path, tensors, arguments, metadata)
    if path.name.endswith(_STATE_SUFFIX):
        return _read_state(path, forced)
    if _is_safetensors(path):
        return _from_tensors(path, read_safetensors(path), None, forced)
    return _read_torch(path, forced)


def _read_state(path: Path, forced: Format | None) -> Checkpoint:
    """A state dict of neuraloperator's `save_checkpoint`, with the metadata beside it if it is there."""
    beside = path.with_name(path.name.removesuffix(_STATE_SUFFIX) + _METADATA_SUFFIX)
    settings = None
    if beside.is_file():
        settings = read_torch_file(beside)
        if not isinstance(settings, dict):
            raise ImportRefused(f"{beside}: holds a {type(settings).__name__}, expected a dict")
    return _read_torch(path, forced, settings, beside if settings is not None else None)


def _read_torch(
    path: Path,
    forced: Format | None,
    settings: dict[str, Any] | None = None,
    beside: Path | None = None,
) -> Checkpoint:
    content = read_torch_file(path)
    read_from = [path.name] if beside is None else [path.name, beside.name]
    found = forced
    if isinstance(content, dict) and set(content) >= _PDEBENCH and forced is None:
        found = "pdebench"
    content, inside = _unwrapped(content)
    if inside:
        read_from.append(f"entry {inside}")
    padding: int | None = None
    activations: tuple[Activation, ...] = ()
    if isinstance(content, Stub) and "_modules" in content.attributes:
        read_from.append(f"a pickled {content.cls.qualified}, read without running it")
        given = content.attributes.get("padding")
        padding = given if isinstance(given, int) else None
        module, content = content, module_state(content)
        with _contradictions_refused(path):
            settings = neuraloperator.settings_of(module) or settings
            if original.recognises(content):
                activations = original.activations_in(module)
    if not isinstance(content, dict):
        raise ImportRefused(f"{path}: holds a {_kind(content)}, expected a state dict or a module")
    metadata = content.pop("_metadata", None)
    if settings is None and isinstance(metadata, dict):
        settings = metadata
    others = [
        str(key)
        for key, value in content.items()
        if not isinstance(key, str) or not isinstance(value, Tensor)
    ]
    if others or not content:
        raise ImportRefused(
            f"{path}: not a state dict: {', '.join(others[:5]) or 'empty'} "
            f"{'are' if len(others) > 1 else 'is'} no tensor with a name; save torch.save(model.state_dict(), path)"
        )
    if found == "pdebench" and not original.recognises(content):
        found = None
    checkpoint = _from_tensors(path, content, settings, found, tuple(read_from))
    return replace(checkpoint, padding=padding, activations=activations)


def _unwrapped(content: Any) -> tuple[Any, str]:
    """The state dict or module inside what training code saves around it, and under which name it was."""
    for name in _WRAPPERS:
        inner = content.get(name) if isinstance(content, dict) else None
        if isinstance(inner, Stub) or (isinstance(inner, dict) and inner):
            return inner, name
    return content, ""


def _from_tensors(
    path: Path,
    tensors: dict[str, Tensor],
    settings: dict[str, Any] | None,
    forced: Format | None,
    read_from: tuple[str, ...] = (),
) -> Checkpoint:
    if forced in ("physicsnemo", "the-well"):
        what = (
            "an .mdlus archive" if forced == "physicsnemo" else "config.json and model.safetensors"
        )
        raise ImportRefused(f"{path}: --format {forced} takes {what}, and this is something else")
    found = forced or _format_of(path, tensors)
    read_from = read_from or (path.name,)
    return Checkpoint(found, path, tensors, settings, read_from=read_from)


def _format_of(path: Path, keys: Collection[str]) -> Format:
    for pattern, what in _UNSUPPORTED:
        for key in keys:
            if re.search(pattern, key):
                raise ImportRefused(
                    f"{path}: {key} belongs to {what}, which is not supported. Supported are: {SUPPORTED}"
                )
    if neuraloperator.recognises(keys):
        return "neuraloperator"
    if original.recognises(keys):
        return "original"
    shown = ", ".join(sorted(keys)[:5])
    raise ImportRefused(
        f"{path}: the keys {shown}, .. are of no network that we know. Supported are: {SUPPORTED}"
    )


def _is_mdlus(path: Path) -> bool:
    with path.open("rb") as file:
        if is_tar(file):
            return True
        if not is_zip(file):
            return False
    with Archive(path) as archive:
        return "args.json" in archive.names


def _is_safetensors(path: Path) -> bool:
    """Eight bytes of header length, then JSON."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:] == b"{" or path.suffix == ".safetensors"


def _kind(content: Any) -> str:
    return content.cls.qualified if isinstance(content, Stub) else type(content).__name__


def describe(checkpoint: Checkpoint) -> str:
    """What was read, in words."""
    names = ", ".join(checkpoint.read_from) or checkpoint.path.name
    return f"{checkpoint.format}: {names}"
