"""Import of networks of the original FNO scripts (Li et al.) and their descendants, including PDEBench.

A state dict of these scripts does not determine the network: padding, activation, normalisation and coordinates
have no parameters. The keys show the generation of the script, a recipe adds that script's choices, and the user
can override each. The generations, by their keys:

    A  torch <= 1.7   conv1.conv0.weights1, conv1.w0, conv1.bn0, conv1.fc0
    B  torch >= 1.8   conv0.weights1, w0, fc0, fc1, fc2
    C  2022           p, conv0.weights1, mlp0.mlp1, w0, q.mlp1
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from turbofno.models.core.architecture import (
    BlockStep,
    ChannelMLP,
    DomainPadding,
    FNOArchitecture,
)
from turbofno.models.core.architecture import PositionalGrid as Positions
from turbofno.models.importers.layout import (
    Tensors,
    about_wrapper,
    corner_count,
    fold_scale,
    inside_wrapper,
    join_corners,
)
from turbofno.models.importers.original_recipes import (
    Found,
    Grid,
    Recipe,
    Script,
    find,
    overridden,
    recipe_of,
    script_of,
)
from turbofno.models.importers.pickled_original import NORM_EPS, Norm, Pickled
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported, Options

_SUPPORTED = (
    "fc0, fc1, fc2 or p, q; conv{i}.weights{k}; w{i}; mlp{i}.mlp1, mlp{i}.mlp2; bn{i} "
    "of the original scripts"
)
_POSITIONS: dict[Grid, Positions] = {
    "endpoints": "endpoint_included",
    "periodic": "endpoint_excluded",
    "cell-centres": "cell_centres",
    "none": "none",
}
_LISTED = re.compile(r"(^|\.)(conv|w|bn)s\.(\d+)\.")
_PARAMETER = re.compile(r"(?<![\w.])((?:\w+\.)*)(conv|w|bn)(\d+)(\.[a-z]\w*)(?!\.?\w)")
_IN_AN_MLP = re.compile(r"(.*\.)?(mlp\d+|q)\.")


def recognises(keys: Collection[str]) -> bool:
    """True if these are keys of an original script or a descendant."""
    return bool(_wrappers([_numbered(key) for key in keys]))


def import_original(
    tensors: Mapping[str, Tensor],
    options: Options,
    *,
    script: Script | None = None,
    may_be_pdebench: bool = True,
    pickled: Pickled | None = None,
) -> Imported:
    """Convert a network of the original scripts.

    Args:
        tensors: its state dict; a prefix of all keys, such as `module.`, is removed.
        options: overrides of the recipe.
        script: the script whose recipe applies; None: by the setting `script` or the keys, if one script alone writes them.
        may_be_pdebench: False if the user said that the network is of an original script.
        pickled: what the pickled module of the tensors shows; None: without a module.

    Raises:
        ImportRefused: keys or shapes of no such script, or of several; unknown settings.
    """
    numbered = {_numbered(key): tensor for key, tensor in tensors.items()}
    if len(numbered) == len(tensors) and numbered.keys() != tensors.keys():
        try:
            imported = import_original(
                numbered, options, script=script, may_be_pdebench=may_be_pdebench, pickled=pickled
            )
        except ImportRefused as refusal:
            raise ImportRefused(_with_names_of(tensors, str(refusal))) from None
        lines = (_with_names_of(tensors, line) for line in imported.assumptions)
        return replace(imported, assumptions=tuple(lines))
    prefix = min(_wrappers(tensors), key=len, default="")
    plain = inside_wrapper(tensors, prefix)
    found = find(plain)
    inner = "conv1." if found.generation == "A" else ""
    unwrapped = {key.removeprefix(inner): t for key, t in plain.items()}
    source = Tensors(unwrapped)
    # before the question for a script, which none of them trained if keys differ
    _refuse_other_keys(unwrapped, found)
    norms = {} if pickled is None else pickled.norms
    script = script_of(found, options, script, may_be_pdebench=may_be_pdebench)
    usual = recipe_of(found, script)
    padding = None if pickled is None else pickled.padding
    if padding is not None and any(usual.padding) and options.given.get("padding") is None:
        if not isinstance(padding, int) or padding < 0:
            raise ImportRefused(
                f"the pickled network has the padding {padding!r}, expected one number of points; say how many points "
                "follow each axis: --set padding=9,9"
            )
        usual = replace(usual, padding=tuple(padding if p else 0 for p in usual.padding))
    if pickled is not None:
        # unlike a state dict, a module shows its instance norms, which have no parameters
        others: Norm = "none" if usual.norm == "instance" else usual.norm
        usual = replace(usual, norm="instance" if norms["instance"] else others)
    if found.generation == "C":
        # its class MLP calls F.gelu, whatever the network's activation
        usual = replace(usual, mlp_activation="gelu")
    held = {} if pickled is None else pickled.activations
    of_mlps = {path: name for path, name in held.items() if _IN_AN_MLP.match(path)}
    outside = {path: name for path, name in held.items() if path not in of_mlps}
    usual = replace(
        usual,
        activation=_only(outside, "activation", options) or usual.activation,
        mlp_activation=_only(of_mlps, "mlp_activation", options) or usual.mlp_activation,
    )
    recipe = overridden(usual, found, options)
    eps = {*norms.get(recipe.norm, ())} - {NORM_EPS}
    if eps:
        raise ImportRefused(
            f"the {recipe.norm} norms of the pickled network have eps={eps.pop()}; only {NORM_EPS} is supported"
        )
    name = f"original script {script}, generation {found.generation}" if script != "pdebench" else (
        "PDEBench FNO"
    )  # fmt: skip
    options.finish(name)

    state = _Reader(source, found, recipe).state()
    dropped = source.drop(lambda key: re.match(r"bn\d+\.", key) is not None)
    arch = _architecture(state, found, recipe)
    return Imported(
        format=name,
        architecture=arch,
        state=state,
        assumptions=(
            *_assumptions(found, script, recipe, dropped, held),
            *_about_padding(padding, recipe, options),
            *_about_unread(() if pickled is None else pickled.unread),
            *([about_wrapper(prefix)] if prefix else ()),
        ),
    )


def _only(held: Mapping[str, str], setting: str, options: Options) -> str | None:
    """The activation that this part of a pickled network holds; None if there is none, or a setting decides."""
    names = list(dict.fromkeys(held.values()))
    if options.given.get(setting) is not None or not names:
        return None
    if len(names) > 1:
        raise ImportRefused(
            f"the pickled network holds several activations, {', '.join(names)}, and its file does not "
            f"show where each is used; only one is supported: choose it with --set {setting}=.."
        )
    return names[0]


def _numbered(key: str) -> str:
    """The key of a layer in the ModuleLists convs, ws and bns of descendants, as the scripts number their layers."""
    return _LISTED.sub(r"\1\2\3.", key)


def _with_names_of(keys: Collection[str], text: str) -> str:
    """The text with the names of a file with such ModuleLists, instead of those of the scripts."""
    kinds = {found[2] for found in map(_LISTED.search, keys) if found}

    def name(found: re.Match[str]) -> str:
        before, kind, number, last = found.groups()
        held = any(f".{key}".endswith(f".{found[0]}") for key in keys)
        return found[0] if held or kind not in kinds else f"{before}{kind}s.{number}{last}"

    return _PARAMETER.sub(name, text)


def _wrappers(keys: Collection[str]) -> set[str]:
    """The prefixes of the keys of networks that were saved inside another module."""
    known = set(keys)
    first = (re.fullmatch(r"(.*?)((conv1\.)?)conv0\.weights1", key) for key in keys)
    return {
        found[1]
        for found in first
        if found and not known.isdisjoint(f"{found[1]}{found[2]}{x}.weight" for x in ("fc0", "p"))
    }


def _refuse_other_keys(tensors: Mapping[str, Tensor], found: Found) -> None:
    """Refuse a network that lacks keys that every script writes, or has some that none writes."""
    mlps = ("mlp1", "mlp2") if found.generation == "C" else ()
    linear = ["p", "q.mlp1", "q.mlp2"] if mlps else ["fc0", "fc1", "fc2"]
    needed = set()
    for i in range(found.n_layers):
        needed |= {f"conv{i}.weights{k + 1}" for k in range(corner_count(found.n_dim))}
        linear += [f"w{i}", *(f"mlp{i}.{name}" for name in mlps)]
    needed |= {f"{name}.{part}" for name in linear for part in ("weight", "bias")}
    missing = sorted(needed - tensors.keys())
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ImportRefused(
            f"the file has no {', '.join(missing[:3])}{more}, which networks of the original scripts have beside "
            f"conv0.weights1: it is another network. Supported are {_SUPPORTED}"
        )
    others = {k: t for k, t in tensors.items() if k not in needed and not re.match(r"bn\d+\.", k)}
    Tensors(others).finish("original script", _SUPPORTED)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Converts the tensors of a script to our names and layout."""

    source: Tensors
    found: Found
    recipe: Recipe

    def state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        generation_c = self.found.generation == "C"
        weight, bias = self.source.take_linear("p" if generation_c else "fc0")
        weight = self._data_first(weight)
        if self.recipe.coordinates is not None and self.recipe.grid != "none":
            weight, bias = _rescaled(weight, bias, self.recipe.coordinates)
        self._put(state, "lifting.linears.0", weight, bias)
        for i in range(self.found.n_layers):
            self._layer(state, i)
        names = ("q.mlp1", "q.mlp2") if generation_c else ("fc1", "fc2")
        for i, name in enumerate(names):
            self._put(state, f"projection.linears.{i}", *self.source.take_linear(name))
        return state

    @staticmethod
    def _put(state: dict[str, Tensor], name: str, weight: Tensor, bias: Tensor) -> None:
        state[f"{name}.weight"], state[f"{name}.bias"] = weight, bias

    def _data_first(self, weight: Tensor) -> Tensor:
        """The columns of the lifting in our order: data, then the coordinates of axis 0, 1, .."""
        if self.recipe.grid == "none":
            return weight
        n = self.found.n_dim
        before = self.recipe.grid_place == "before"
        grid, data = (weight[:, :n], weight[:, n:]) if before else (weight[:, -n:], weight[:, :-n])
        if self.recipe.grid_order == "xy" and n > 1:
            grid = torch.cat([grid[:, [1, 0]], grid[:, 2:]], dim=1)
        return torch.cat([data, grid], dim=1)

    def _layer(self, state: dict[str, Tensor], i: int) -> None:
        corners = [
            self.source.take_complex(f"conv{i}.weights{k + 1}")
            for k in range(corner_count(self.found.n_dim))
        ]
        weight = join_corners(corners)
        if self.recipe.layout == "out-in":
            weight = weight.transpose(0, 1)
        skip, bias = self.source.take_linear(f"w{i}")
        in_mlp = range(2 if self.found.generation == "C" else 0)
        mlp = [self.source.take_linear(f"mlp{i}.mlp{j + 1}") for j in in_mlp]
        if self.recipe.norm == "batch":
            scale, shift = self._batch_norm(i)
            skip, bias = fold_scale(skip, bias, scale)
            bias = bias + shift
            if mlp:
                # the norm follows the sum of MLP and skip; the MLP is not linear in the spectral weight
                mlp[1] = fold_scale(*mlp[1], scale)
            else:
                weight = weight.to(torch.complex128) * scale.view(-1, *[1] * (weight.ndim - 2))
        state[f"blocks.{i}.spectral_weight"] = weight
        self._put(state, f"blocks.{i}.skip", skip, bias)
        for j, linear in enumerate(mlp):
            self._put(state, f"blocks.{i}.mlp.linears.{j}", *linear)

    def _batch_norm(self, i: int) -> tuple[Tensor, Tensor]:
        """Scale and shift of layer i's batch normalisation in evaluation mode."""
        gamma, beta, mean, variance = (
            self.source.take(f"bn{i}.{part}").double()
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = gamma / torch.sqrt(variance + NORM_EPS)
        return scale, beta - mean * scale


def _rescaled(
    weight: Tensor, bias: Tensor, coordinates: tuple[tuple[float, float], ...]
) -> tuple[Tensor, Tensor]:
    """Convert a lifting for coordinates in the given ranges to one for coordinates in [0, 1]; float64."""
    n = len(coordinates)
    start = torch.tensor([low for low, _ in coordinates], dtype=torch.float64)
    extent = torch.tensor([high - low for low, high in coordinates], dtype=torch.float64)
    wide = weight.double()
    grid = wide[:, -n:]
    return torch.cat([wide[:, :-n], grid * extent], dim=1), bias.double() + grid @ start


def _architecture(state: dict[str, Tensor], found: Found, recipe: Recipe) -> FNOArchitecture:
    spectral = state["blocks.0.spectral_weight"]
    for i in range(found.n_layers):
        shape = state[f"blocks.{i}.spectral_weight"].shape
        if shape != spectral.shape:
            raise ImportRefused(
                f"layer {i} has a spectral weight {list(shape)}, but layer 0 has {list(spectral.shape)}: layers of "
                "different size are not supported"
            )
    hidden, n = spectral.shape[0], found.n_dim
    grid_channels = 0 if recipe.grid == "none" else n
    block: tuple[BlockStep, ...] = ()
    mlp = None
    of_mlps = None if recipe.mlp_activation == recipe.activation else recipe.mlp_activation
    if found.generation == "C":
        mlp = ChannelMLP(
            hidden_channels=state["blocks.0.mlp.linears.0.weight"].shape[0],
            skip="none",
            activation=of_mlps,
        )
        block = ("spectral", "mlp", "skip", "activation")
        if recipe.norm == "instance":
            block = ("norm", "spectral", "norm", "mlp", "skip", "activation")
    elif recipe.norm == "instance":
        block = ("norm", "spectral", "norm", "skip", "activation")
    last = block or ("spectral", "skip", "activation") if recipe.last_activation else ()
    return FNOArchitecture(
        in_channels=found.channels - grid_channels,
        out_channels=state["projection.linears.1.weight"].shape[0],
        hidden_channels=hidden,
        n_layers=found.n_layers,
        modes=tuple(spectral.shape[2:]),
        activation=recipe.activation,
        projection_channels=(state["projection.linears.0.weight"].shape[0],),
        projection_activation=of_mlps,
        channel_mlp=mlp,
        norm="instance_norm" if recipe.norm == "instance" else "none",
        positional_grid=_POSITIONS[recipe.grid],
        domain_padding=DomainPadding(points=recipe.padding) if any(recipe.padding) else None,
        mode_placement="corners_overwrite",
        block=block,
        last_block=last,
    )


def _assumptions(
    found: Found,
    script: Script,
    recipe: Recipe,
    dropped: list[str],
    held: Mapping[str, str],
) -> tuple[str, ...]:
    norms = {
        "none": "there is no normalisation between the layers",
        "batch": "batch normalisation follows each layer; it is folded into the weights",
        "instance": "instance normalisation precedes and follows each spectral convolution",
    }
    parts = "channel MLPs and projection" if found.generation == "C" else "projection"
    lines = [
        "the network is PDEBench's (--format original: one of the original scripts)"
        if script == "pdebench"
        else f"the network follows the script {script} (script=..)",
        f"its activation is {recipe.activation}, after every Fourier layer"
        f"{'' if recipe.last_activation else ' but the last'} (activation=.., last_activation=..)",
        f"the activation inside its {parts} is {recipe.mlp_activation} (mlp_activation=..)",
        f"zeros are padded after the last point of each axis: {list(recipe.padding)} points (padding=..)",
        f"{norms[recipe.norm]} (norm=..)",
        f"spectral weights are stored [{recipe.layout.replace('-', ', ')}, modes] (weight_layout=..)",
        "where kept modes overlap on small grids, the negative frequencies overwrite the others, as in the scripts",
        "inputs and outputs are [batch, channels, *grid], channels first; the scripts have channels last",
    ]
    if recipe.grid == "none":
        lines.append(
            "no coordinates are added (grid=..); if it was trained with coordinates, they are input channels"
        )
    else:
        ranges = recipe.coordinates or ((0.0, 1.0),) * found.n_dim
        lines.append(
            f"coordinates are added by the server: {recipe.grid} of {list(ranges)}, order "
            f"{recipe.grid_order}, {recipe.grid_place} the data "
            "(grid=.., coordinates=.., grid_order=.., grid_place=..)"
        )
    if script == "pdebench" and recipe.coordinates is None:
        lines.append(
            "its training data was not thinned out: with reduced_resolution=r PDEBench keeps every r-th cell centre, so "
            "that on the n remaining points of an axis coordinates begin at (1/r - 1) / (2 n) and end 1 later "
            "(for r=4, n=256: coordinates=-0.00146484375:0.99853515625)"
        )
    if (script, found.generation) == ("fourier_1d", "B"):
        lines.append(
            "the fourier_1d of May to July 2021 has the same keys, but the activation relu, and coordinates to 2 pi at "
            "first (activation=relu, coordinates=0:6.2831853)"
        )
    if held:
        shown = [f"{path}={name}" for path, name in held.items()]
        more = ", .." if len(shown) > 5 else ""
        lines.append(
            f"the pickled network holds the activations {', '.join(shown[:5])}{more}; the file does not show where "
            "they are used"
        )
    unused = [name for name in dropped if not name.endswith(".num_batches_tracked")]
    if unused:
        why = "training never ran them (norm=batch uses them)"
        if recipe.norm == "batch":
            why = "WARNING: they are of no layer"
        elif found.batch_norm_ran:
            why = "WARNING: training ran them (norm=batch uses them)"
        lines.append(f"{unused[0]} and the other batch norms are ignored: {why}")
    return tuple(lines)


def _about_padding(held: Any, recipe: Recipe, options: Options) -> tuple[str, ...]:
    """What the attribute `padding` of a pickled network leaves open: whether forward uses it, and on which axes."""
    if not held or all(recipe.padding) or options.given.get("padding") is not None:
        return ()
    return (
        f"the pickled network holds padding={reprlib.repr(held)}; the file does not show which axes it pads (padding=..)",
    )


def _about_unread(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return ()
    more = ", .." if len(names) > 5 else ""
    return (
        f"WARNING: the pickled network holds {', '.join(names[:5])}{more} besides its weights, and the import leaves them "
        "out: if the network scales its fields by them, give them with --normalizer or --input-mean and the like",
    )
