"""Constructor arguments of a neuraloperator network, from the user, the metadata, or the release's defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from turbofno.models.importers.pickled_arrays import as_array, is_array
from turbofno.models.importers.refusal import SAVE_TENSORS, ImportRefused
from turbofno.models.importers.result import Options

Release = Literal["0.3.0", "1.0", "2.0.0", "main"]
RELEASES: tuple[Release, ...] = ("0.3.0", "1.0", "2.0.0", "main")

# The first parameters of FNO.__init__, which may be passed by position.
_POSITIONAL = ("n_modes", "in_channels", "out_channels", "hidden_channels", "n_layers")
_POSITIONAL_0_3 = ("n_modes", "hidden_channels", "in_channels", "out_channels")
# FNO1d to FNO3d of the earlier releases have an argument for the modes of each axis.
_MODES_BY_AXIS = ("n_modes_height", "n_modes_width", "n_modes_depth")

_RENAMED_0_3 = {
    "use_mlp": "use_channel_mlp",
    "mlp_skip": "channel_mlp_skip",
    "output_scaling_factor": "resolution_scaling_factor",
    "SpectralConv": "conv_module",
}

DEFAULTS: dict[str, Any] = {
    "positional_embedding": "grid",
    "non_linearity": "gelu",
    "norm": None,
    "norm_groups": 1,
    "complex_data": False,
    "channel_mlp_skip": "soft-gating",
    "fno_skip": "linear",
    "resolution_scaling_factor": None,
    "domain_padding": None,
    "domain_padding_mode": "symmetric",
    "fno_block_precision": "full",
    "stabilizer": None,
    "n_modes": None,
    "preactivation": False,
    "conv_module": "SpectralConv",
    "conv_bias_kernel": 1,
    "enforce_hermitian_symmetry": True,
    "in_channels": None,
    "separable": False,
    # set for a pickled network, whose attributes determine everything
    "_whole": False,
}
_DEFAULTS_OF: dict[Release, dict[str, Any]] = {
    "0.3.0": {"positional_embedding": None, "domain_padding_mode": "one-sided"},
    "1.0": {"domain_padding_mode": "one-sided"},
    "2.0.0": {},
    "main": {},
}

# Ignored: the tensors show them, or they do not affect a trained network.
_IGNORED = {
    "out_channels", "hidden_channels", "n_layers", "lifting_channel_ratio", "lifting_channels",
    "projection_channel_ratio", "projection_channels", "use_channel_mlp", "channel_mlp_expansion",
    "mlp_expansion", "channel_mlp_dropout", "mlp_dropout", "factorization", "rank",
    "fixed_rank_modes", "implementation", "decomposition_kwargs", "joint_factorization",
    "fft_norm", "ada_in_features", *_MODES_BY_AXIS, "max_n_modes", "skip", "verbose", "incremental_n_modes", "args", "_name", "_version",
}  # fmt: skip

# Not reported as assumptions: the tensors show them, or other values are refused.
_NOT_REPORTED = {
    "n_modes", "in_channels", "complex_data", "conv_module", "conv_bias_kernel",
    "enforce_hermitian_symmetry", "norm_groups", "fno_block_precision", "separable", "_whole",
}  # fmt: skip


@dataclass(slots=True)
class Settings:
    """The arguments of FNO.__init__ under their names in 2.0.0, and the assumptions about them."""

    release: Release
    metadata: dict[str, Any]
    options: Options
    documented: bool
    release_is_known: bool = True
    assumptions: list[str] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """The user's value, else the file's, else the release's default, which is recorded as an assumption."""
        given = None if name.startswith("_") else self.options.text(name)
        if given is not None:
            value = _value(given)
            if isinstance(DEFAULTS[name], bool) and not isinstance(value, bool):
                raise ImportRefused(f"{name} must be true or false, not {given!r}")
            self.metadata[name] = value
        if name in self.metadata:
            return self.metadata[name]
        value = _DEFAULTS_OF[self.release].get(name, DEFAULTS[name])
        line = f"{name}={value}, the default of {self.release}, as the file does not contain it"
        if not self.documented and name not in _NOT_REPORTED and line not in self.assumptions:
            self.assumptions.append(line)
        return value


def read_settings(
    keys: Collection[str], metadata: dict[str, Any] | None, options: Options
) -> Settings:
    """The settings of a network with these tensors, and its release.

    Raises:
        ImportRefused: an unknown argument, or a model other than FNO and TFNO.
    """
    raw = dict(metadata or {})
    _check_class(raw)
    settings = Settings("2.0.0", raw, options, documented=bool(raw))
    settings.release = _release(keys, settings)
    raw = by_name(raw, old=settings.release == "0.3.0")
    by_axis = [raw[name] for name in _MODES_BY_AXIS if name in raw]
    if by_axis and "n_modes" not in raw:
        raw["n_modes"] = tuple(by_axis)
    known = {*DEFAULTS, *_IGNORED, *_RENAMED_0_3}
    unknown = sorted(set(raw) - known)
    if unknown:
        raise ImportRefused(
            f"the network was built with {', '.join(map(str, unknown))}, which FNO and TFNO do not have in "
            f"neuraloperator {', '.join(RELEASES)}"
        )
    settings.metadata = {
        # a size may be a number of numpy
        _RENAMED_0_3.get(name, name): as_array(value).tolist() if is_array(value) else value
        for name, value in raw.items()
    }
    return settings


def by_name(metadata: dict[str, Any], *, old: bool) -> dict[str, Any]:
    """The arguments with positional ones moved to their names; `old` is release 0.3.

    Raises:
        ImportRefused: too many positional arguments.
    """
    named = dict(metadata)
    given = named.pop("args", None) or ()
    names: tuple[str, ...] = _POSITIONAL_0_3 if old else _POSITIONAL
    of_dimension = re.fullmatch(r"T?FNO([123])d", str(named.get("_name")))
    if of_dimension:
        names = (*_MODES_BY_AXIS[: int(of_dimension[1])], *_POSITIONAL_0_3[1:])
    if len(given) > len(names):
        raise ImportRefused(
            f"the network was built with {len(given)} positional arguments; at most {len(names)} are supported "
            f"({', '.join(names)}). Build it with keyword arguments and load its state dict, or save the whole "
            "network: torch.save(model, path)"
        )
    return named | dict(zip(names, given, strict=False))


def _check_class(metadata: dict[str, Any]) -> None:
    name = metadata.get("_name")
    allowed = {f"{kind}FNO{dim}" for kind in ("", "T") for dim in ("", "1d", "2d", "3d")}
    if name is not None and name not in allowed:
        raise ImportRefused(
            f"the model is a {name}; of neuraloperator, only FNO and TFNO are supported. If it is a class of your own that "
            f"computes what FNO does, save its tensors only, {SAVE_TENSORS}, and name the arguments that it gives FNO with "
            "--set, such as --set preactivation=true"
        )


def _release(keys: Collection[str], settings: Settings) -> Release:
    """The release of a network; the option `version` decides if the file does not show it."""
    names = settings.metadata
    old_layout = any(key.startswith("fno_blocks.convs.weight.") for key in keys)
    known: Release | None = None
    if old_layout:
        known = "0.3.0"
    elif {"enforce_hermitian_symmetry", "conv_bias_kernel"} & set(names):
        known = "main"
    elif "use_channel_mlp" in names and "conv_module" in names:
        # Versions between 1.0 and 2.0.0 also have domain_padding_mode, and otherwise equal 2.0.0.
        known = "2.0.0"
    elif "domain_padding_mode" in names:
        known = "1.0"
    asked = settings.options.choice("version", RELEASES, known or "2.0.0")
    if (asked == "0.3.0") != old_layout:
        found = "0.3.0" if old_layout else "1.0 and later"
        raise ImportRefused(f"version={asked}, but the tensors have the layout of {found}")
    if known is None and settings.options.given.get("version") is None:
        settings.release_is_known = False
        settings.assumptions.append(
            "the release is 2.0.0, although the file fits several; 1.0 and main differ from it on grids of odd size, with "
            "odd n_modes and in domain padding (version=..)"
        )
    return asked


def _value(text: str) -> Any:
    listed = "," in text and not text.startswith(("[", "{"))
    try:
        return json.loads(f"[{text}]" if listed else text)
    except ValueError:
        # as in Python; a text "False" would count as true
        return {"none": None, "true": True, "false": False}.get(text.lower(), text)
