"""Import of the FNO of NVIDIA PhysicsNeMo and Modulus in 1 to 3 dimensions (.mdlus files).

A .mdlus file is a tar (up to 1.3) or zip (since 2.0) of model.pt, args.json (class and constructor arguments)
and metadata.json (version). The library imports the class named in args.json; here the name is only compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from turbofno.models.core.architecture import Activation, DomainPadding, FNOArchitecture
from turbofno.models.core.validation import described
from turbofno.models.importers.archive import Archive
from turbofno.models.importers.layout import Tensors, corner_count, join_corners
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported, Options
from turbofno.models.importers.torch_file import read_torch_file

_MAX_JSON_BYTES = 1 << 20
# The library's names; the slope of its leaky ReLU differs from torch's.
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu", "relu": "relu", "silu": "silu", "tanh": "tanh", "identity": "none",
    "leaky_relu": "leaky_relu(0.1)", "elu": "elu", "celu": "elu", "selu": "selu", "sin": "sin",
    "softplus": "softplus", "hardtanh": "hardtanh",
}  # fmt: skip
_PADDING: dict[str, Literal["zeros", "replicate", "reflect", "circular"]] = {
    "constant": "zeros",
    "replicate": "replicate",
    "reflect": "reflect",
    "circular": "circular",
}
_SUPPORTED = (
    "spec_encoder.lift_network, spec_encoder.spconv_layers, spec_encoder.conv_layers and decoder_net "
    "of FNO in 1 to 3 dimensions"
)


class _Arguments(BaseModel):
    """The constructor arguments of the library's FNO, with its defaults."""

    model_config = ConfigDict(extra="forbid", strict=True)

    in_channels: int
    out_channels: int
    decoder_layers: int = 1
    decoder_layer_size: int = 32
    decoder_activation_fn: str = "silu"
    dimension: int = 2
    latent_channels: int = 32
    num_fno_layers: int = 4
    num_fno_modes: int | list[int] = 16
    padding: int | list[int] = 8
    padding_type: str = "constant"
    activation_fn: str = "gelu"
    coord_features: bool = True


def read_mdlus(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """State dict, constructor arguments and metadata of the FNO in a .mdlus file.

    Raises:
        ImportRefused: not an FNO, or a damaged file.
    """
    with Archive(path) as archive:
        kind = _json(archive, "args.json")
        metadata = _json(archive, "metadata.json")
        weights = read_torch_file(archive.read("model.pt"), f"{path}: model.pt")
    name, module = kind.get("__name__"), str(kind.get("__module__"))
    if name != "FNO" or module.split(".")[0] not in ("physicsnemo", "modulus"):
        raise ImportRefused(
            f"{path} holds {module}.{name}; of PhysicsNeMo's models, only FNO in 1 to 3 dimensions is supported"
        )
    arguments = kind.get("__args__")
    if not isinstance(arguments, dict):
        raise ImportRefused(f"{path}: args.json has no __args__")
    if not isinstance(weights, dict) or not all(isinstance(t, Tensor) for t in weights.values()):
        raise ImportRefused(f"{path}: model.pt is not a dict of tensors")
    return weights, arguments, metadata


def import_physicsnemo(
    tensors: Mapping[str, Tensor],
    arguments: Mapping[str, Any],
    metadata: Mapping[str, Any],
    options: Options,
) -> Imported:
    """Convert the FNO with this state dict, these constructor arguments and this metadata.json.

    Raises:
        ImportRefused: 4D, an unsupported activation or padding, tensors that do not fit.
    """
    try:
        args = _Arguments.model_validate(dict(arguments))
    except ValidationError as error:
        raise ImportRefused(f"args.json: {described(error, '__args__')}") from None
    if not 1 <= args.dimension <= 3:
        raise ImportRefused(f"the FNO has {args.dimension} dimensions; 1 to 3 are supported")
    version = metadata.get("physicsnemo_version") or metadata.get("modulus_version")
    overlap = _overlap(version, options)
    name = (
        f"PhysicsNeMo {version} FNO"
        if "physicsnemo_version" in metadata
        else f"Modulus {version} FNO"
    )
    options.finish(name)
    source = Tensors(tensors)
    source.drop(lambda key: key.rpartition(".")[2] == "device_buffer")
    state = _state(source, args)
    source.finish(name, _SUPPORTED)
    return Imported(name, _architecture(state, args, overlap), state, _assumptions(args, overlap))


def _json(archive: Archive, name: str) -> dict[str, Any]:
    try:
        content = json.loads(archive.read(name, limit=_MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ImportRefused):
            raise
        raise ImportRefused(f"{archive.label}: {name} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ImportRefused(f"{archive.label}: {name} must hold a JSON object")
    return content


def _overlap(version: Any, options: Options) -> Literal["corners_overwrite", "corners_add"]:
    """The rule for kept modes that overlap on small grids: overwritten before 2.0, added since."""
    choices: tuple[Literal["overwrite", "add"], ...] = ("overwrite", "add")
    if version is not None and not re.fullmatch(r"\d[\w.+-]{0,40}", str(version), re.ASCII):
        raise ImportRefused("the version in metadata.json is not a version number")
    major = str(version).split(".")[0]
    if options.given.get("corners") is None and not major.isdecimal():
        raise ImportRefused(
            f"the version in metadata.json is {version!r}, which does not determine how overlapping modes are treated; "
            "use --set corners=overwrite (before 2.0) or --set corners=add (since 2.0)"
        )
    usual = choices[major.isdecimal() and int(major) >= 2]
    return (
        "corners_add" if options.choice("corners", choices, usual) == "add" else "corners_overwrite"
    )


def _state(source: Tensors, args: _Arguments) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}

    def linear(ours: str, theirs: str) -> None:
        state[f"{ours}.weight"], state[f"{ours}.bias"] = source.take_linear(theirs)

    for i in range(2):
        linear(f"lifting.linears.{i}", f"spec_encoder.lift_network.{2 * i}.conv")
    for i in range(args.num_fno_layers):
        corners = [
            source.take_complex(f"spec_encoder.spconv_layers.{i}.weights{k + 1}")
            for k in range(corner_count(args.dimension))
        ]
        state[f"blocks.{i}.spectral_weight"] = join_corners(corners)
        linear(f"blocks.{i}.skip", f"spec_encoder.conv_layers.{i}")
    for i in range(args.decoder_layers):
        linear(f"projection.linears.{i}", f"decoder_net.layers.{i}.linear")
    linear(f"projection.linears.{args.decoder_layers}", "decoder_net.final_layer.linear")
    return state


def _architecture(
    state: dict[str, Tensor],
    args: _Arguments,
    overlap: Literal["corners_overwrite", "corners_add"],
) -> FNOArchitecture:
    if args.num_fno_layers < 1:
        raise ImportRefused("the FNO has no Fourier layers (num_fno_layers)")
    padding = _padding(args)
    mode = _PADDING.get(args.padding_type)
    if mode is None:
        raise ImportRefused(
            f"padding_type {args.padding_type!r} is not supported; supported are {', '.join(_PADDING)}"
        )
    return FNOArchitecture(
        in_channels=args.in_channels,
        out_channels=args.out_channels,
        hidden_channels=args.latent_channels,
        n_layers=args.num_fno_layers,
        modes=tuple(state["blocks.0.spectral_weight"].shape[2:]),
        activation=_activation("activation_fn", args.activation_fn),
        lifting_channels=(args.latent_channels // 2,),
        projection_channels=(args.decoder_layer_size,) * args.decoder_layers,
        projection_activation=_activation("decoder_activation_fn", args.decoder_activation_fn),
        positional_grid="endpoint_included" if args.coord_features else "none",
        domain_padding=DomainPadding(points=padding, mode=mode) if any(padding) else None,
        mode_placement=overlap,
    )


def _activation(argument: str, name: str) -> Activation:
    try:
        return _ACTIVATIONS[name.lower()]
    except KeyError:
        raise ImportRefused(
            f"{argument} {name!r} is not supported; supported are {', '.join(_ACTIVATIONS)}"
        ) from None


def _padding(args: _Arguments) -> tuple[int, ...]:
    """Points after the end of each axis; missing entries are 0."""
    given = args.padding
    if isinstance(given, int):
        return (given,) * args.dimension
    return tuple((given + [0] * args.dimension)[: args.dimension])


def _assumptions(args: _Arguments, overlap: str) -> tuple[str, ...]:
    rule = (
        "are added" if overlap == "corners_add" else "of negative frequencies overwrite the others"
    )
    return (
        f"where kept modes overlap on small grids, the weights {rule}, as in this version (corners=..)",
        "there is no normaliser: .mdlus files do not hold one, and the library's examples scale the data in their "
        "scripts; if the training data was scaled, add one with --normalizer",
        f"the network {'adds coordinates from 0 to 1, both ends included' if args.coord_features else 'adds no coordinates'} "
        "(coord_features)",
    )
