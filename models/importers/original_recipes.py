"""Recipes of the original scripts and of PDEBench: the choices of each that a state dict does not show.

The keys show the generation of the script (original.py); several scripts of one generation may write the same keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from turbofno.models.core.architecture import Activation
from turbofno.models.importers.activations import activation_of
from turbofno.models.importers.layout import as_complex
from turbofno.models.importers.pickled_original import Norm
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Options

Grid = Literal["endpoints", "periodic", "cell-centres", "none"]
Layout = Literal["in-out", "out-in"]
Script = Literal["fourier_1d", "fourier_2d", "fourier_2d_time", "fourier_3d", "pdebench"]
_SCRIPTS: dict[int, tuple[Script, ...]] = {
    1: ("fourier_1d",),
    2: ("fourier_2d", "fourier_2d_time"),
    3: ("fourier_3d",),
}
"""The original scripts, by the number of axes."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The choices of a script that its state dict does not show.

    `last_activation`: the activation follows the last Fourier layer, too. `mlp_activation` is between the maps of the
    channel MLPs and of the projection; None: `activation`. `padding` is in points, one entry per axis. `coordinates` are
    the ends of each axis; None: 0 and 1. `layout` is the order of the channels in a spectral weight.
    """

    activation: Activation
    padding: tuple[int, ...]
    norm: Norm = "none"
    grid: Grid = "endpoints"
    grid_order: Literal["ij", "xy"] = "ij"
    grid_place: Literal["after", "before"] = "after"
    coordinates: tuple[tuple[float, float], ...] | None = None
    mlp_activation: Activation | None = None
    last_activation: bool = False
    layout: Layout = "in-out"


@dataclass(frozen=True, slots=True)
class Found:
    """The facts that the tensors show. `flat_skips`: the skips are Conv1d over the flattened grid.

    `batch_norm_ran`: training ran the batch norms. Later scripts hold ones that they do not use. `complex_pairs`:
    spectral weights are real and imaginary parts, as with torch up to 1.7.
    """

    generation: Literal["A", "B", "C"]
    n_dim: int
    n_layers: int
    channels: int
    has_batch_norm: bool
    batch_norm_ran: bool
    flat_skips: bool
    complex_pairs: bool


def find(tensors: Mapping[str, Tensor]) -> Found:
    """The facts that a state dict shows. Raises ImportRefused for one of no such script."""
    generation: Literal["A", "B", "C"]
    if "conv1.conv0.weights1" in tensors:
        generation, prefix, lifting = "A", "conv1.", "fc0"
    elif "fc0.weight" in tensors:
        generation, prefix, lifting = "B", "", "fc0"
    else:
        generation, prefix, lifting = "C", "", "p"
    first, lift = f"{prefix}conv0.weights1", f"{prefix}{lifting}.weight"
    if first not in tensors or lift not in tensors:
        raise ImportRefused(
            f"not a checkpoint of the original scripts: {first} or {lift} is missing"
        )
    n_dim = as_complex(tensors[first], first).ndim - 2
    if not 1 <= n_dim <= 3:
        raise ImportRefused(f"{first} has {n_dim} axes of modes; 1 to 3 are supported")
    n_layers = 0
    while f"{prefix}conv{n_layers}.weights1" in tensors:
        n_layers += 1
    skip = tensors.get(f"{prefix}w0.weight")
    norms = [key for key in tensors if re.match(rf"{prefix}bn\d+\.", key)]
    # not weights and biases, which unused norms have, too, and an initialisation may have drawn
    statistics = [key for key in norms if not key.endswith((".weight", ".bias"))]
    return Found(
        generation,
        n_dim,
        n_layers,
        channels=tensors[lift].shape[1],
        has_batch_norm=bool(norms),
        batch_norm_ran=any(
            tensors[key].ne(key.endswith(".running_var")).any() for key in statistics
        )
        if statistics
        else bool(norms),
        flat_skips=n_dim > 1 and skip is not None and skip.ndim == 3,
        complex_pairs=not tensors[first].is_complex(),
    )


def script_of(
    found: Found, options: Options, script: Script | None, *, may_be_pdebench: bool
) -> Script:
    """The script whose recipe applies. Several write the same keys and shapes, and their forks mix what they do."""
    if script is not None:
        return script
    own = _SCRIPTS[found.n_dim]
    if options.text("script") is not None:
        return options.choice("script", own, own[0])
    of_2021 = found.generation == "B" and not found.flat_skips
    # batch norms are in PDEBench's networks in 3D, unused, and only there
    of_pdebench = may_be_pdebench and of_2021 and found.has_batch_norm == (found.n_dim == 3)
    candidates: tuple[Script, ...] = (*own, "pdebench") if of_pdebench else own
    if len(candidates) == 1:
        return candidates[0]
    traits = {name: _traits(recipe_of(found, name)) for name in candidates}
    shared = set.intersection(*map(set, traits.values()))
    ways = [
        f"{'--format pdebench' if name == 'pdebench' else f'--set script={name}'} "
        f"({', '.join(trait for trait in its if trait not in shared)})"
        for name, its in traits.items()
    ]
    raise ImportRefused(
        "several scripts write these keys, and their networks give different results. Say which of them trained this "
        f"network: {', '.join(ways[:-1])} or {ways[-1]}"
    )


def _traits(recipe: Recipe) -> tuple[str, ...]:
    points = max(recipe.padding)
    return (
        f"{points} points of padding" if points else "no padding",
        f"{recipe.norm} norms" if recipe.norm != "none" else "no norms",
        f"coordinates at {'cell centres' if recipe.grid == 'cell-centres' else 'both ends'}",
        f"coordinates in the order {recipe.grid_order}",
        f"spectral weights [{recipe.layout.replace('-', ', ')}, modes]",
    )


def recipe_of(found: Found, script: Script) -> Recipe:
    """The recipe of the published script of this generation."""
    none = (0,) * found.n_dim
    batch: Norm = "batch" if found.batch_norm_ran else "none"
    if script == "pdebench":
        padding = (0, 0, 6) if found.n_dim == 3 else (2,) * found.n_dim
        return Recipe("gelu", padding, norm=batch, grid="cell-centres")
    if found.generation == "A" or found.flat_skips:
        # The first scripts for torch 1.8 kept the layers and coordinates of generation A, and have flat skips.
        recipe = Recipe("relu", none, norm=batch)
        if script == "fourier_2d_time" and found.complex_pairs:
            return replace(recipe, layout="out-in")
        if script == "fourier_1d":
            return replace(recipe, coordinates=((0.0, 2 * math.pi),))
        if script == "fourier_2d":
            return replace(recipe, grid_order="xy")
        # Its coordinates are input channels: they precede the data, and time is 1/n, 2/n, .., 1.
        return replace(recipe, grid="none") if script == "fourier_3d" else recipe
    if found.generation == "B" and found.batch_norm_ran:
        # Only scripts before gelu and padding ran them.
        return Recipe("relu", none, norm="batch")
    if script == "fourier_2d":
        return Recipe("gelu", (9, 9), norm=batch)
    if script == "fourier_3d":
        return Recipe("gelu", (0, 0, 6), norm=batch)
    # instance normalisation has no parameters
    instance = script == "fourier_2d_time" and not found.has_batch_norm
    return Recipe("gelu", none, norm="instance" if instance else batch)


def overridden(recipe: Recipe, found: Found, options: Options) -> Recipe:
    """The recipe with the user's settings. Raises ImportRefused for unusable ones."""
    padding = options.numbers("padding") or recipe.padding
    if len(padding) == 1:
        padding *= found.n_dim
    if len(padding) != found.n_dim:
        raise ImportRefused(f"padding has {len(padding)} entries, expected {found.n_dim}")
    norms: tuple[Norm, ...] = ("none", "batch", "instance")
    grids: tuple[Grid, ...] = ("endpoints", "periodic", "cell-centres", "none")
    orders: tuple[Literal["ij", "xy"], ...] = ("ij", "xy")
    places: tuple[Literal["after", "before"], ...] = ("after", "before")
    layouts: tuple[Layout, ...] = ("in-out", "out-in")
    activation = activation_of(options.text("activation") or recipe.activation, "activation")
    of_mlps = options.text("mlp_activation") or recipe.mlp_activation or activation
    grid = options.choice("grid", grids, recipe.grid)
    given = {"coordinates", "grid_order", "grid_place"} & options.given.keys()
    if grid == "none" and given:
        raise ImportRefused(
            f"{', '.join(sorted(given))} is about coordinates that the server adds, but with grid=none it adds none: "
            "leave it out, or choose the coordinates with --set grid=endpoints"
        )
    if grid != "none" and found.channels <= found.n_dim:
        raise ImportRefused(
            f"the network takes {found.channels} channels, expected a field and {found.n_dim} coordinates: if it takes fields "
            "without coordinates, say --set grid=none"
        )
    return Recipe(
        activation=activation,
        mlp_activation=activation_of(of_mlps, "mlp_activation"),
        last_activation=options.choice("last_activation", ("false", "true"), "false") == "true",
        padding=padding,
        norm=options.choice("norm", norms, recipe.norm),
        grid=grid,
        grid_order=options.choice("grid_order", orders, recipe.grid_order),
        grid_place=options.choice("grid_place", places, recipe.grid_place),
        coordinates=options.pairs("coordinates", found.n_dim) or recipe.coordinates,
        layout=options.choice("weight_layout", layouts, recipe.layout),
    )
