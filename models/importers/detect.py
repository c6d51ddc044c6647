"""Detection of a checkpoint's format by its content, and reading of its tensors and settings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from turbofno.models.core.validation import described
from turbofno.models.importers import neuraloperator, original, physicsnemo, the_well
from turbofno.models.importers.archive import Archive, is_tar, is_zip
from turbofno.models.importers.formats import Format
from turbofno.models.importers.pickled_original import Pickled, shown_by
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported, Options
from turbofno.models.importers.safe_pickle import Named, Stub
from turbofno.models.importers.tensor_files import read_json, read_safetensors
from turbofno.models.importers.torch_file import module_state, read_torch_file

_STATE_SUFFIX, _METADATA_SUFFIX = "_state_dict.pt", "_metadata.pkl"
_TRAINER_STATES = ("best_model", "model")
_WRAPPERS = ("model_state_dict", "state_dict", "model_state", "model", "net", "module")

# Tied weights share storage between a few layers at most.
_MAX_SHARING = 16

# Keys of well-known networks that are not supported, so that the error can name them.
_UNSUPPORTED = (
    (r"(^|\.)gno(_in|_out)?\.", "a graph neural operator (GINO, FNOGNO)"),
    (r"(^|\.)(i?sht|trans_down|itrans_up|SHT\w*)(\.|_)", "spherical harmonics (SFNO)"),
    (
        r"(^|\.)(patch_embed|pos_embed|blocks\.\d+\.filter)(\.|$)",
        "a network of patches, such as an AFNO (FourCastNet)",
    ),
    (r"(^|\.)horizontal_skips", "a UNO"),
    (r"(^|\.)attention_layers\.\d+\.(Key|Query|Value)\.", "a CODANO"),
    (r"(^|\.)local_no_blocks\.", "a LocalNO"),
    (r"(^|\.)layers\.\d+\.cell\.", "an RNO"),
    (r"(^|\.)residual_model\.fno_blocks\.", "a UQNO"),
    (r"(^|\.)unet\d", "a U-FNO"),
    (r"(^|\.)b0\.weight$", "a Geo-FNO with deformed coordinates"),
    (r"fourier_weight\.\d", "a network of fourierflow, such as a factorised FNO (F-FNO)"),
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
    """The content of a foreign checkpoint.

    `settings` are the constructor's arguments, if they are known; `metadata` is PhysicsNeMo's metadata.json;
    `pickled` is what a pickled module of the original scripts shows; `format_given` is True if the user named the format.
    """

    format: Format
    path: Path
    tensors: dict[str, Tensor] = field(default_factory=dict)
    settings: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    pickled: Pickled | None = None
    read_from: tuple[str, ...] = ()
    format_given: bool = False


def read_checkpoint(path: Path, forced: Format | None = None) -> Checkpoint:
    """Detect the format of `path` and read it.

    Args:
        path: a file, or the folder of a neuraloperator Trainer or a Hugging Face model.
        forced: the format given by the user.

    Raises:
        ImportRefused: an unknown file, or an unsupported network; the message names it.
        FileNotFoundError: `path` does not exist.
    """
    if not path.exists():
        raise FileNotFoundError(f"the file or folder {path} does not exist")
    checkpoint = (_read_folder if path.is_dir() else _read_file)(path, forced)
    return replace(checkpoint, format_given=forced is not None)


def convert(checkpoint: Checkpoint, options: Options) -> Imported:
    """The network of a checkpoint as our architecture and state dict.

    Raises:
        ImportRefused: an unsupported part of the network; the message names it.
    """
    with _refusing_inconsistency(checkpoint.path):
        _refuse_shared_storage(checkpoint.tensors)
        # a file may hold lazy views, conjugated or negated
        plain = {n: t.resolve_conj().resolve_neg() for n, t in checkpoint.tensors.items()}
        return _convert(replace(checkpoint, tensors=plain), options)


@contextmanager
def _refusing_inconsistency(path: Path) -> Iterator[None]:
    """Turn any error that inconsistent shapes and settings cause into ImportRefused."""
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
        why = described(error) if isinstance(error, ValidationError) else error
        raise ImportRefused(f"{path}: its tensors and settings are inconsistent: {why}") from error


def _refuse_shared_storage(tensors: dict[str, Tensor]) -> None:
    """Refuse tensors that share so much storage that copies of them would fill the memory."""
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
    claimed = sum(t.numel() * t.element_size() for t in tensors.values())
    if claimed > _MAX_SHARING * sum(held.values()):
        raise ImportRefused(
            f"the tensors have {claimed:,} bytes, but the file stores {sum(held.values()):,}: copies of them would fill "
            "the memory; save the tensors with clone()"
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
        case "pdebench" | "original":
            return original.import_original(
                tensors,
                options,
                script="pdebench" if checkpoint.format == "pdebench" else None,
                may_be_pdebench=not checkpoint.format_given,
                pickled=checkpoint.pickled,
            )


def _refuse_other_format(path: Path, forced: Format | None, found: Format) -> None:
    """Refuse a --format other than the detected one."""
    if forced not in (None, found):
        raise ImportRefused(f"{path} is in the format {found}, not {forced}; omit --format")


def _read_folder(path: Path, forced: Format | None) -> Checkpoint:
    config, weights = path / "config.json", path / "model.safetensors"
    if config.is_file() and weights.is_file():
        settings = read_json(config)
        if str(settings.get("format", "")).startswith("turbofno/"):
            raise ImportRefused(
                f"{path} is a native checkpoint; copy the folder into the model repository"
            )
        if not the_well.recognises(settings):
            raise ImportRefused(
                f"{config} does not describe an FNO of The Well: it has the keys {', '.join(sorted(settings)[:8])}. "
                f"For a network of another library pass the path of {weights.name} itself. Supported are: {SUPPORTED}"
            )
        _refuse_other_format(path, forced, "the-well")
        return Checkpoint("the-well", path, read_safetensors(weights), settings)
    states = sorted([*path.glob(f"*{_STATE_SUFFIX}"), *path.glob("*.mdlus")])
    for name in _TRAINER_STATES:
        if path / f"{name}{_STATE_SUFFIX}" in states:
            return _read_file(path / f"{name}{_STATE_SUFFIX}", forced)
    if len(states) == 1:
        return _read_file(states[0], forced)
    names = ", ".join(state.name for state in states) or "none"
    raise ImportRefused(
        f"{path}: expected one *{_STATE_SUFFIX} or *.mdlus, or config.json and model.safetensors, found {names}; "
        "pass the path of the checkpoint file"
    )


def _read_file(path: Path, forced: Format | None) -> Checkpoint:
    if not path.is_file():
        raise ImportRefused(f"{path} is not a regular file")
    if _is_mdlus(path):
        _refuse_other_format(path, forced, "physicsnemo")
        tensors, arguments, metadata = physicsnemo.read_mdlus(path)
        return Checkpoint("physicsnemo", path, tensors, arguments, metadata)
    if path.name.endswith(_STATE_SUFFIX):
        return _read_state(path, forced)
    if _is_safetensors(path):
        return _from_tensors(path, read_safetensors(path), None, forced)
    return _read_torch(path, forced)


def _read_state(path: Path, forced: Format | None) -> Checkpoint:
    """A state dict of neuraloperator's `save_checkpoint`, with its metadata file if there is one."""
    metadata_file = path.with_name(path.name.removesuffix(_STATE_SUFFIX) + _METADATA_SUFFIX)
    settings = None
    if metadata_file.is_file():
        settings = read_torch_file(metadata_file)
        if not isinstance(settings, dict):
            raise ImportRefused(f"{metadata_file} holds {_kind(settings)}, expected a dict")
    return _read_torch(path, forced, settings, metadata_file if settings is not None else None)


def _read_torch(
    path: Path,
    forced: Format | None,
    settings: dict[str, Any] | None = None,
    metadata_file: Path | None = None,
) -> Checkpoint:
    content = read_torch_file(path)
    read_from = [path.name] if metadata_file is None else [path.name, metadata_file.name]
    found = forced
    whole, (content, inside) = content, _unwrapped(content)
    if inside:
        read_from.append(f"entry {inside}{_unread(whole, inside)}")
    pickled: Pickled | None = None
    if isinstance(content, Stub) and "_modules" in content.attributes:
        read_from.append(f"a pickled {content.cls.qualified}, read without running code")
        module, content = content, module_state(content)
        with _refusing_inconsistency(path):
            settings = neuraloperator.settings_of(module) or settings
            if original.recognises(content):
                pickled = shown_by(module)
                if forced is None and pickled.of_pdebench:
                    found = "pdebench"
    if not isinstance(content, dict):
        raise ImportRefused(f"{path} holds {_kind(content)}, expected a state dict or a module")
    metadata = content.pop("_metadata", None)
    if isinstance(metadata, dict):
        if metadata_file is not None:
            _refuse_other_metadata(settings or {}, metadata_file, metadata, path)
        settings = settings or metadata
    others = [
        str(key)
        for key, value in content.items()
        if not isinstance(key, str) or not isinstance(value, Tensor)
    ]
    if "optimizer_state_dict" in others:
        raise ImportRefused(
            f"{path} is a training state, but none of its entries, {', '.join(others[:5])}, is known as a network's. Pass "
            "the network's own file: PhysicsNeMo writes it beside this one, as NAME.EPOCH.mdlus; else save it with "
            "torch.save(model.state_dict(), path)"
        )
    if others or not content:
        raise ImportRefused(
            f"{path}: not a state dict: "
            + (
                f"the entries {', '.join(others[:5])} are not named tensors"
                if others
                else "it is empty"
            )
            + "; save one with torch.save(model.state_dict(), path)"
        )
    checkpoint = _from_tensors(path, content, settings, found, tuple(read_from))
    return replace(checkpoint, pickled=pickled)


def _refuse_other_metadata(
    settings: dict[str, Any], metadata_file: Path, metadata: dict[str, Any], path: Path
) -> None:
    """Refuse a metadata file that contradicts the metadata inside the state dict: it is of another network."""
    for name, value in metadata.items():
        # objects compare by their class, which their text shows
        if name in settings and repr(settings[name]) != repr(value):
            raise ImportRefused(
                f"{metadata_file} has {name}={settings[name]!r}, but the network in {path.name} was saved with {value!r}: "
                f"the two files are of different networks. If {path.name} is the right one, remove {metadata_file.name}"
            )


def _unread(training_state: dict[Any, Any], inside: str) -> str:
    """The other entries of a training state, for the report: they may be averaged weights or normalisers."""
    others = [str(name)[:40] for name in training_state if name != inside]
    more = f" and {len(others) - 20} more" if len(others) > 20 else ""
    return f" (not read: {', '.join(others[:20])}{more})" if others else ""


def _unwrapped(content: Any) -> tuple[Any, str]:
    """The state dict or module inside a training state, and its key there ("" without a training state)."""
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
        raise ImportRefused(
            f"{path}: --format {forced} expects {what}, but this is another kind of file"
        )
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
    if any(re.search(r"(^|\.)spec_encoder\.spconv_layers\.", key) for key in keys):
        raise ImportRefused(
            f"{path} is a state dict of PhysicsNeMo's FNO, which does not hold the network's arguments: save the network "
            'with model.save("fno.mdlus")'
        )
    if neuraloperator.recognises(keys):
        return "neuraloperator"
    if original.recognises(keys):
        return "original"
    shown = ", ".join(sorted(keys)[:5])
    renamed = ""
    if any(re.search(r"weights\d*$", key) for key in keys):
        renamed = (
            ". If the network computes what an original script's does under other names, save it under the script's: "
            "fc0, conv{i}.weights{k}, w{i}, fc1, fc2"
        )
    raise ImportRefused(
        f"{path}: the keys {shown}, .. belong to no known network. Supported are: {SUPPORTED}{renamed}"
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
    """True if eight bytes of header length and a JSON object follow, or by the suffix."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:] == b"{" or path.suffix == ".safetensors"


def _kind(content: Any) -> str:
    """The type of what a file holds, with its article."""
    if isinstance(content, Named):
        return f"the name {content.qualified}"
    name = content.cls.qualified if isinstance(content, Stub) else type(content).__name__
    # u as in utils and UNet
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def describe(checkpoint: Checkpoint) -> str:
    """Format and files of a checkpoint, for the report."""
    names = ", ".join(checkpoint.read_from) or checkpoint.path.name
    return f"{checkpoint.format}: {names}"
