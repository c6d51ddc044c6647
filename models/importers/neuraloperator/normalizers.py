"""Normalisers of neuraloperator, which its checkpoints leave out: per channel, or fields over the grid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from models.config import FieldNormalization, FNOArchitecture, Normalization
from models.importers.refusal import ImportRefused
from models.importers.safe_pickle import Stub

_EPS = {"UnitGaussianNormalizer": 1e-7, "Normalizer": 1e-6}


@dataclass(frozen=True, slots=True)
class Normalizers:
    """What `FNO` takes as its normalisation; for fields, their tensors as well, to be added to the state."""

    normalization: Normalization | FieldNormalization | None
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


def read_normalizers(value: Any, arch: FNOArchitecture) -> Normalizers:
    """Both ends' normalisation: physical = normalised * (std + eps) + mean.

    Args:
        value: What `read_torch_file` makes of a saved data processor (in_normalizer, out_normalizer), of
            its state dict, or of a dict with the entries `x` and `y` or `in_normalizer` and
            `out_normalizer`. Each end is a UnitGaussianNormalizer, a Normalizer, or a dict with mean,
            std and perhaps eps. An end that is missing is not normalised.
        arch: Of the network, for the numbers of channels.

    Raises:
        ImportRefused: something else, a mask, or shapes that do not fit.
    """
    ends = _ends(value)
    if not ends:
        return Normalizers(None, assumptions=("the normaliser file holds no normaliser",))
    assumptions: list[str] = []
    values: dict[str, torch.Tensor] = {}
    for side, channels in (("input", arch.in_channels), ("output", arch.out_channels)):
        mean, std = torch.zeros(()), torch.ones(())
        if side in ends:
            mean, std = _mean_and_std(ends[side], side, assumptions)
        else:
            assumptions.append(f"the {side} is not normalised")
        values[f"{side}_mean"] = _per_channel(mean, channels, arch.n_dim, f"{side} mean")
        values[f"{side}_std"] = _per_channel(std, channels, arch.n_dim, f"{side} std")
    return _packed(values, assumptions)


def _ends(value: Any) -> dict[str, Any]:
    """Whatever stands for the normalisers of the two ends."""
    if isinstance(value, Stub):
        value = {**value.attributes, **(value.attributes.get("_modules") or {})}
    if not isinstance(value, dict):
        raise ImportRefused("the normaliser file holds neither a data processor nor a dict")
    names = {"input": ("in_normalizer", "x", "input"), "output": ("out_normalizer", "y", "output")}
    ends = {}
    for side, candidates in names.items():
        for name in candidates:
            flat = {
                key.removeprefix(f"{name}."): item
                for key, item in value.items()
                if isinstance(key, str) and key.startswith(f"{name}.")
            }
            found = value.get(name) if value.get(name) is not None else flat
            if found:
                ends[side] = found
    if not ends and any(name in value for name in ("mean", "std", "_buffers")):
        raise ImportRefused(
            "the normaliser file holds one normaliser and does not say of which end; save a dict with the "
            "entries x and y"
        )
    return ends


def _mean_and_std(end: Any, side: str, assumptions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    eps = 1e-7
    if isinstance(end, Stub):
        if end.cls.name not in _EPS:
            raise ImportRefused(
                f"the {side} normaliser is a {end.cls.name}; supported are {', '.join(_EPS)}"
            )
        eps = _EPS[end.cls.name]
        end = {**end.attributes, **(end.attributes.get("_buffers") or {})}
    if not isinstance(end, dict):
        raise ImportRefused(f"the {side} normaliser is a {type(end).__name__}")
    if end.get("mask") is not None:
        raise ImportRefused(f"the {side} normaliser has a mask, which is not supported")
    mean, std = end.get("mean"), end.get("std")
    if not isinstance(mean, torch.Tensor) or not isinstance(std, torch.Tensor):
        raise ImportRefused(f"the {side} normaliser has no mean and std")
    if "eps" in end:
        eps = float(end["eps"])
    else:
        assumptions.append(f"eps={eps} is added to the {side} std: the file does not say")
    return mean.double(), std.double() + eps


def _per_channel(value: torch.Tensor, channels: int, n_dim: int, what: str) -> torch.Tensor:
    """[channels, *grid or ones], from a scalar, [1, channels or 1, ..] or [channels or 1, ..]."""
    shape = list(value.shape)
    if value.ndim == n_dim + 2 and value.shape[0] == 1:
        value = value[0]
    if value.ndim == 0:
        value = value.view(*[1] * (n_dim + 1))
    if value.ndim == 1 and len(value) == channels:
        value = value.view(-1, *[1] * n_dim)
    if value.ndim != n_dim + 1 or value.shape[0] not in (1, channels):
        raise ImportRefused(
            f"the {what} has shape {shape}, expected [1, {channels}, ..] with {n_dim} grid axes, all of "
            "size 1 or all of the grid"
        )
    return value.expand(channels, *value.shape[1:])


def _packed(values: dict[str, torch.Tensor], assumptions: list[str]) -> Normalizers:
    if not all((v > 0).all() for name, v in values.items() if name.endswith("std")):
        raise ImportRefused("a normaliser has a std that is not positive")
    grids = {tuple(v.shape[1:]) for v in values.values()}
    fields = {grid for grid in grids if max(grid) > 1}
    if not fields:
        lists = {name: tuple(v.flatten().tolist()) for name, v in values.items()}
        return Normalizers(Normalization(**lists), assumptions=tuple(assumptions))
    if len(fields) > 1:
        raise ImportRefused(f"the normalisers' fields are on different grids: {sorted(fields)}")
    grid = fields.pop()
    assumptions.append(f"mean and std are fields: the model runs on the grid {list(grid)} only")
    state = {
        name: v.expand(v.shape[0], *grid).to(torch.float32).contiguous()
        for name, v in values.items()
    }
    return Normalizers(FieldNormalization(grid=grid), state, tuple(assumptions))
