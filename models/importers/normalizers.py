"""Normalisers saved with a checkpoint, which let the imported model work in physical units.

Supported are UnitGaussianNormalizer, GaussianNormalizer and RangeNormalizer of the original scripts (pickled),
neuraloperator's UnitGaussianNormalizer and data processors (pickled or as a state dict), and plain mean and
std in .npz, .json, .safetensors or a dict saved by torch.save.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.blocks import scaled
from turbofno.models.core.config import FieldNormalization, Normalization
from turbofno.models.importers.pickled_arrays import as_array, is_array
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.safe_pickle import Stub
from turbofno.models.importers.tensor_files import as_tensor, read_json, read_npz, read_safetensors
from turbofno.models.importers.torch_file import read_torch_file

Side = Literal["input", "output"]

_INPUT = {"input", "in_normalizer", "x_normalizer", "a_normalizer", "x", "a", "in"}
_OUTPUT = {"output", "out_normalizer", "y_normalizer", "u_normalizer", "y", "u", "out"}
# read to be refused: a side that has nothing else would not be scaled
_REFUSED = ("min", "max", "var")
_VALUES = ("mean", "std", "eps", "assumed_eps", "mask", "a", "b", *_REFUSED)
# mean, x_mean, output_std
_NAME = re.compile(rf"(?:({'|'.join(sorted(_INPUT | _OUTPUT))})_)?({'|'.join(_VALUES)})")
# target_mean; not neuraloperator's squared_mean, and not those of a batch norm
_OTHER_NAME = re.compile(r"(?!squared_|running_).+_(mean|std)")
# neuraloperator's default eps, which its classes add to std and their state dicts do not contain.
_EPS = {"UnitGaussianNormalizer": 1e-7, "Normalizer": 1e-6}
_STATE_DICT_EPS = 1e-7
# Below it, an eps of 1e-5 changes std by more than a hundredth.
_SMALL_STD = 1e-3
# Share of std that rounding to float32 may take before the report warns.
_ROUNDED = 1e-3
_ONE = torch.ones(1)
_MAX_DEPTH = 8
_MAX_LEAVES = 10_000


@dataclass(frozen=True, slots=True)
class Scaling:
    """Physical = normalised * std + mean; float64, shaped as in the file. `source` names it in messages.

    `assumption` is a sentence about eps, if the file does not contain it. `adds_coordinates`: the data processor appends
    them to what it has normalised.
    """

    mean: Tensor
    std: Tensor
    source: str
    assumption: str = ""
    adds_coordinates: bool = False


@dataclass(frozen=True, slots=True)
class Normalizing:
    """A normalisation for config.json: per channel, or fields, whose `tensors` join the state dict."""

    per_channel: Normalization | None
    fields: FieldNormalization | None
    tensors: dict[str, Tensor]
    lines: tuple[str, ...]
    assumptions: tuple[str, ...]


def read_normalizer(
    path: Path, only: Side | None = None, eps: float | None = None
) -> dict[Side, Scaling]:
    """The normalisers in a file, for input and output.

    Args:
        path: .pt/.pth/.pkl of torch.save, .npz, .json or .safetensors.
        only: read this side only; a normaliser without a name is taken for it.
        eps: added to every std; None: the file's, or else the default of the class that wrote it.

    Raises:
        ImportRefused: no normaliser in the file, impossible values, an unsafe file.
    """
    if path.exists() and not path.is_file():
        raise ImportRefused(f"{path} is not a regular file")
    content = _read(path)
    values, adds_coordinates = _numbers(content, path), _adds_coordinates(content, path)
    found: dict[Side, Scaling] = {}
    owners: dict[Side, str] = {}
    # an eps alone is that of a norm inside a network, which a data processor may wrap
    for owner in dict.fromkeys(owner for owner, name in values if not name.endswith("eps")):
        last = owner.rpartition(".")[2]
        side: Side | None = "input" if last in _INPUT else "output" if last in _OUTPUT else only
        if side is None:
            raise ImportRefused(
                f"{path}: the normaliser {owner or '(without a name)'} does not say whether it is for input "
                "or output; use --input-normalizer or --output-normalizer"
            )
        if only is not None and side != only:
            continue
        one = {name: value for (its, name), value in values.items() if its == owner}
        # beside the normalisers of both sides
        shared = values.get((owner.rpartition(".")[0], "eps"))
        if shared is not None:
            one.setdefault("eps", shared)
        scaling = _scaling(one, f"{path.name}: {owner or side}", eps)
        scaling = replace(scaling, adds_coordinates=adds_coordinates and side == "input")
        if side in found and not _equal(found[side], scaling):
            raise ImportRefused(
                f"{path} holds several normalisers for the {side}, {owners[side] or '(without a name)'} and "
                f"{owner or '(without a name)'}: save the one that the network was trained with alone"
            )
        found.setdefault(side, scaling)
        owners.setdefault(side, owner)
    if not found:
        raise ImportRefused(f"{path} holds no mean and std")
    return found


def _adds_coordinates(content: Any, path: Path) -> bool:
    """True if a pickled data processor of neuraloperator 0.3 appends coordinates to the input."""
    inside = content.values() if isinstance(content, dict) else ()
    processors = [one for one in (content, *inside) if isinstance(one, Stub)]
    if any(one.cls.name == "MGPatchingDataProcessor" for one in processors):
        raise ImportRefused(
            f"{path} holds an MGPatchingDataProcessor, which cuts fields into patches: that is not supported. If the "
            "network takes whole fields, save its normalisers alone"
        )
    found = [one.attributes.get("positional_encoding") for one in processors]
    for encoding in found:
        ranges = encoding.attributes.get("grid_boundaries") if isinstance(encoding, Stub) else None
        if ranges is not None and any(tuple(pair) != (0, 1) for pair in ranges):
            raise ImportRefused(
                f"{path}: the data processor appends coordinates in the ranges {ranges}; only 0 to 1 is supported"
            )
    return any(encoding is not None for encoding in found)


def _equal(one: Scaling, other: Scaling) -> bool:
    return torch.equal(one.mean, other.mean) and torch.equal(one.std, other.std)


def constant(mean: tuple[float, ...], std: tuple[float, ...], source: str) -> Scaling:
    """Mean and std of each channel, from the command line."""
    values = {"mean": torch.tensor(mean).double(), "std": torch.tensor(std).double()}
    return _scaling(values, source, eps=0.0)


def normalizing(
    sides: Mapping[Side, Scaling], arch: FNOArchitecture, grid: tuple[int, ...] | None = None
) -> Normalizing:
    """The normalisation of both sides; a missing side is not scaled.

    Args:
        sides: the normalisers.
        arch: the network.
        grid: of normalisers that are flattened, as the original scripts' RangeNormalizer.

    Raises:
        ImportRefused: a shape that fits neither the channels nor a grid.
    """
    lines = tuple(
        f"{side}: {sides[side].source}" if side in sides else f"{side}: not scaled"
        for side in ("input", "output")
    )
    if arch.positional_grid == "none" and any(one.adds_coordinates for one in sides.values()):
        raise ImportRefused(
            f"{sides['input'].source}: this data processor appends coordinates to the normalised input, so the last "
            f"{arch.n_dim} of the network's {arch.in_channels} input channels are coordinates. The server can add them: "
            "--set positional_embedding=grid"
        )
    counts: dict[Side, int] = {"input": arch.in_channels, "output": arch.out_channels}
    assumptions = [scaling.assumption for scaling in sides.values()]
    assumptions += (
        f"{scaling.source}: its one mean and one std are those of all {counts[side]} channels"
        for side, scaling in sides.items()
        if counts[side] > 1 and scaling.mean.numel() == scaling.std.numel() == 1
    )
    shaped: dict[str, Tensor] = {}
    for side, channels in counts.items():
        given = sides.get(side) or constant((0.0,), (1.0,), side)
        for name, tensor in (("mean", given.mean), ("std", given.std)):
            flat = tensor.ndim == 1 and tensor.numel() not in (1, channels)
            if flat and grid is not None and len(grid) == arch.n_dim:
                tensor = _unflattened(tensor, channels, grid, given.source)
            shaped[f"{side}_{name}"] = _channels_first(tensor, channels, arch.n_dim, given.source)
    assumptions += (
        _about_rounding(scaling.source, shaped[f"{side}_mean"], shaped[f"{side}_std"])
        for side, scaling in sides.items()
    )
    said = tuple(filter(None, assumptions))
    shapes = {tuple(tensor.shape[1:]) for tensor in shaped.values()}
    points = tuple(map(max, zip(*shapes, strict=True)))
    if set(points) == {1}:
        values = {name: tuple(tensor.flatten().tolist()) for name, tensor in shaped.items()}
        return Normalizing(Normalization.model_validate(values), None, {}, lines, said)
    if any(n not in (1, most) for shape in shapes for n, most in zip(shape, points, strict=True)):
        raise ImportRefused(f"the normalisers have different grids: {sorted(shapes)}")
    grid = _completed(points, grid)
    answers = reduce(lambda size, scales: scaled(scales, size), arch.resolution_scaling, grid)
    if answers != grid:
        raise ImportRefused(
            f"the normalisers vary over the grid, but the network answers {list(grid)} on another one, {list(answers)} "
            "(resolution_scaling_factor): that is not supported. Save one mean and std for each channel"
        )
    tensors = {name: t.expand(t.shape[0], *grid).contiguous() for name, t in shaped.items()}
    return Normalizing(None, FieldNormalization(grid=grid), tensors, lines, said)


def _read(path: Path) -> Any:
    kind = path.suffix.lower()
    if kind == ".json":
        return read_json(path)
    if kind == ".npz":
        return read_npz(path)
    if kind == ".safetensors":
        return read_safetensors(path)
    return read_torch_file(path)


def _numbers(content: Any, file: Path) -> dict[tuple[str, str], Tensor]:
    """Every value of `_VALUES` in `content`, by the name of its owner and its own."""
    found = {}
    for count, (path, value) in enumerate(_leaves(content, "", 0)):
        if count == _MAX_LEAVES:
            raise ImportRefused(f"{file}: the normaliser has more than {_MAX_LEAVES:,} entries")
        owner, _, name = path.rpartition(".")
        match = _NAME.fullmatch(name)
        if match is not None:
            inside = ".".join(filter(None, (owner, match[1])))
            if match[2] in _REFUSED and inside.rpartition(".")[2] not in _INPUT | _OUTPUT:
                # of something else, such as the range of time
                continue
            found[inside, match[2]] = as_tensor(value, f"{file}: {path}")
        elif _OTHER_NAME.fullmatch(name):
            value_name = name.rpartition("_")[2]
            raise ImportRefused(
                f"{file}: the name {path} does not say whether it is for input or output; call it "
                f"input_{value_name} or output_{value_name}"
            )
    return found


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts and stubs, by dotted path."""
    if depth > _MAX_DEPTH:
        raise ImportRefused(f"{path}: nested more than {_MAX_DEPTH} deep, not a normaliser")
    if isinstance(value, Stub) and is_array(value):
        yield path, as_array(value)
    elif isinstance(value, Stub):
        inside = dict(value.attributes)
        if value.cls.name in _EPS:
            inside["assumed_eps"] = _EPS[value.cls.name]
        for kind in ("_parameters", "_buffers", "_modules"):
            members = inside.pop(kind, None)
            inside.update(members if isinstance(members, dict) else {})
        yield from _leaves(inside, path, depth)
    elif isinstance(value, dict):
        if isinstance(value, OrderedDict) and "std" in value:
            # the state dict of neuraloperator's UnitGaussianNormalizer
            value = {**value, "assumed_eps": _STATE_DICT_EPS}
        for name, item in value.items():
            if isinstance(name, str) and not name.startswith("_"):
                yield from _leaves(item, f"{path}.{name}" if path else name, depth + 1)
    elif value is not None and not isinstance(value, str | bytes):
        yield path, value


def _scaling(values: Mapping[str, Tensor], source: str, eps: float | None) -> Scaling:
    if {"a", "b"} <= set(values):
        # RangeNormalizer: normalised = a * physical + b
        if (values["a"] <= 0).any():
            raise ImportRefused(
                f"{source}: a range normaliser must have a > 0, the smallest is {float(values['a'].min())}"
            )
        return Scaling(-values["b"] / values["a"], 1 / values["a"], f"{source} (range)")
    if not {"mean", "std"} <= set(values):
        names = ", ".join(name for name in values if name != "assumed_eps")
        raise ImportRefused(
            f"{source} holds {names}, expected mean and std (physical = normalised * std + mean)"
        )
    if "mask" in values:
        raise ImportRefused(f"{source} has a mask, which is not supported")
    if values.get("eps", _ONE).numel() != 1:
        raise ImportRefused(f"{source}: eps must be one number")
    assumption = ""
    if eps is None and "eps" in values:
        eps = float(values["eps"])
    elif eps is None:
        eps = float(values.get("assumed_eps", 0))
        if re.search(r"(in|out)_normalizer$", source):
            eps = _STATE_DICT_EPS
        assumption = _about_eps(eps, values["std"], source)
    std = values["std"] + eps
    if (std <= 0).any():
        raise ImportRefused(f"{source}: std must be positive, the smallest is {float(std.min())}")
    if eps and not assumption:
        source = f"{source} (eps {eps:g} added to std)"
    return Scaling(values["mean"], std, source, assumption)


def _about_eps(eps: float, std: Tensor, source: str) -> str:
    line = f"{source}: eps={eps:g} is added to std, as the file does not contain it (eps=..)"
    smallest = float(std.min())
    if smallest >= _SMALL_STD:
        return line
    return (
        f"{line}. WARNING: std is as small as {smallest:.2g}, so the result depends on eps: the original scripts use "
        "1e-5, neuraloperator 1e-7"
    )


def _about_rounding(source: str, mean: Tensor, std: Tensor) -> str:
    """A warning if values in float32, which have 24 bits, are coarse against std; else empty."""
    sizes = [values.flatten(1).square().mean(1).sqrt() for values in (mean, std)]
    ratio = float((sizes[0] / sizes[1]).max())
    rounded = ratio * 2.0**-24
    if rounded < _ROUNDED:
        return ""
    return (
        f"{source}: WARNING: the mean is {ratio:.2g} times std. Fields are sent and computed in float32, which rounds such "
        f"values by up to {rounded:.2g} std: send differences from a reference value, with the mean of those"
    )


def _completed(points: tuple[int, ...], grid: tuple[int, ...] | None) -> tuple[int, ...]:
    """The grid of normalisers with these points; along an axis of one point they do not vary."""
    if 1 not in points:
        return points
    fits = grid is not None and len(grid) == len(points)
    if grid is None or not fits or any(n not in (1, m) for n, m in zip(points, grid, strict=True)):
        raise ImportRefused(
            f"the normalisers are on the grid {list(points)} and do not vary along its axes of one point: give the whole "
            "grid with --grid"
        )
    return grid


def _unflattened(tensor: Tensor, channels: int, grid: tuple[int, ...], source: str) -> Tensor:
    """A flattened [*grid, channels] as [1, channels, *grid]."""
    expected = math.prod(grid) * channels
    if tensor.numel() != expected:
        raise ImportRefused(
            f"{source}: it has {tensor.numel():,} values, but the grid {list(grid)} with {channels} channels has "
            f"{expected:,}; give the grid that the normaliser was made on with --grid"
        )
    return tensor.reshape(*grid, channels).movedim(-1, 0)[None]


def _channels_first(tensor: Tensor, channels: int, n_dim: int, source: str) -> Tensor:
    """The tensor as [channels, *grid] or [channels, 1, ..]."""
    shape = tuple(tensor.shape)
    flat = (1,) * n_dim
    if tensor.numel() == 1:
        return tensor.reshape(1, *flat).expand(channels, *flat)
    leading = tensor.ndim == n_dim + 2 and shape[0] == 1
    if leading:
        tensor, shape = tensor[0], shape[1:]
    if tensor.numel() == channels and max(shape) == channels:
        return tensor.reshape(channels, *flat)
    if channels == 1 and tensor.ndim == n_dim:
        return tensor[None]
    if n_dim == 3 and tensor.ndim == n_dim and shape[-1] == channels:
        # fourier_3d: its input is [x, y, earlier times], repeated along the time axis
        return tensor.movedim(-1, 0)[..., None]
    if tensor.ndim == n_dim + 1:
        first, last = shape[0] == channels, shape[-1] == channels
        if first and last and not leading:
            raise ImportRefused(
                f"{source}: shape {list(shape)} may have its {channels} channels first or last; save it with a "
                "leading axis of 1 and the channels next"
            )
        if first:
            return tensor
        if last:
            return tensor.movedim(-1, 0)
    hint = "; if it is flattened, give its grid with --grid" if tensor.ndim == 1 else ""
    raise ImportRefused(
        f"{source}: shape {list(shape)} fits neither {channels} channels nor a {n_dim}-dimensional grid{hint}"
    )
