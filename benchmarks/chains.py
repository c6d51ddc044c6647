"""Share of imported networks that run as one chain: random and default neuraloperator 2.0 networks, and PhysicsNeMo FNOs.

`python -m benchmarks.chains` runs on a CPU, prints the shares and the reasons for the rest, and writes results/chains.jsonl. Each
network is compared with its library on a training grid and two others, small ones, as a chain of torch stages. Then the kernels'
host plans are asked whether an H200 and an A100 run that chain, on three grids as people use them.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from neuralop import models as neuralop
from torch import nn

from benchmarks.gpu.device import relative_l2
from benchmarks.gpu.imported import in_float64, network_of
from benchmarks.host_plans import CARDS, host_plans, refusals
from benchmarks.timing import print_table, save
from turbofno.models.importers.detect import convert, read_checkpoint
from turbofno.models.importers.physicsnemo import import_physicsnemo
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported, Options
from turbofno_ops import ChainRefused, compile_fno

SEED = 0
_LAYER = re.compile(r"^(before|in|after) layer \d+ of \d+: ")
_ACTIVATIONS = (F.gelu, F.gelu, F.gelu, F.relu, F.silu, F.tanh, F.elu, F.mish, F.leaky_relu)
_SKIPS = ("linear", "soft-gating", "identity", None)
_WIDTHS = (
    16, 20, 24, 32, 32, 32, 32, 48, 64, 64, 64, 64, 64, 96, 96, 128, 128, 128, 192, 256,
)  # fmt: skip
"""Hidden channels, as often as they are drawn."""
_CLASSES = ((64, "16 to 64"), (96, "96"), (128, "128"), (192, "192"), (256, "256"))
"""Largest width of a class, and its name."""
_DEFAULT_EXPANSION = 0.5
_NOTABLE = 1e-5
"""Distance from the library beyond which the library's own error is computed."""
_MODES = {1: (64, 64), 2: (32, 16), 3: (12, 6)}
"""Number of axes -> largest n_modes of an axis, to 64 channels and beyond: wide networks have to run on a CPU."""
_GRIDS = {1: (128, 97, 256), 2: (32, 29, 45), 3: (16, 13, 18)}
"""Number of axes -> points on an axis of the training grid and of two others."""
_CARD_GRIDS = {1: (1024, 997, 4096), 2: (128, 85, 256), 3: (64, 45, 32)}
"""The same for the grids that the kernels are asked for."""


class Network(NamedTuple):
    """A network of a library (None if the library is not installed) and the result of its import.

    `width`: its hidden channels. `expansion`: hidden channels of a channel MLP over these, None without channel MLPs.
    """

    kind: str
    theirs: nn.Module | None
    imported: Imported | ImportRefused
    n_dim: int
    width: int
    expansion: float | None


class Verdict(NamedTuple):
    """Reasons why a network is not imported, or is no chain on a CPU or a card, and its largest distance from the library.

    `chains` has the reason of the first grid that is refused, None if none is, by "CPU" and the names of `CARDS`. It is empty if
    the network is not imported. `float32_error`: the library's own against float64, where a distance above 1e-5 is largest.
    """

    imports: str | None
    chains: dict[str, str | None]
    distance: float
    float32_error: float | None = None


class Judged(NamedTuple):
    """The verdict on a network; the other fields as in `Network`."""

    kind: str
    width: int
    expansion: float | None
    verdict: Verdict


def drawn(rng: random.Random) -> dict[str, Any]:
    """Random arguments of neuraloperator's FNO; every argument that changes the result varies."""
    n_dim, width = rng.choice((1, 2, 2, 2, 3)), rng.choice(_WIDTHS)
    most_modes = _MODES[n_dim][width > 64]
    arguments: dict[str, Any] = {
        "n_modes": tuple(rng.randint(3, most_modes) for _ in range(n_dim)),
        "in_channels": rng.randint(1, 3),
        "out_channels": rng.randint(1, 3),
        "hidden_channels": width,
        "n_layers": rng.randint(2, 5),
        "lifting_channel_ratio": rng.choice((0, 1, 2, 2, 4)),
        "projection_channel_ratio": rng.choice((1, 2, 2, 4)),
        "positional_embedding": rng.choice(("grid", "grid", None)),
        "non_linearity": rng.choice(_ACTIVATIONS),
        "norm": rng.choice((None, None, "instance_norm", "group_norm", "batch_norm")),
        "use_channel_mlp": rng.random() < 0.75,
        "channel_mlp_expansion": rng.choice((0.5, 0.5, 1.0, 2.0)),
        "channel_mlp_skip": rng.choice(_SKIPS),
        "fno_skip": rng.choice(_SKIPS),
        "stabilizer": rng.choice((None, None, "tanh")),
        "preactivation": rng.random() < 0.25,
        "factorization": rng.choice((None, None, "Tucker", "CP", "TT")),
        "rank": rng.choice((0.05, 0.1, 0.42)),
        "separable": rng.random() < 0.15,
    }
    geometry = rng.random()
    if geometry < 0.3:
        arguments["domain_padding"] = rng.choice((0.1, 0.25, [0.2] * n_dim))
    elif geometry < 0.5:
        factors = rng.choice(((1, 2, 1, 0.5, 1), (0.5, 1, 2, 1, 1), (1, 1.5, 1, 1, 1)))
        arguments["resolution_scaling_factor"] = list(factors[: arguments["n_layers"]])
    return arguments


def defaults() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and arguments: defaults in one, two and three dimensions, each with one common change."""
    changes: tuple[dict[str, Any], ...] = (
        {}, {"norm": "instance_norm"}, {"norm": "group_norm"}, {"norm": "batch_norm"}, {"domain_padding": 0.25},
        {"positional_embedding": None}, {"use_channel_mlp": False}, {"preactivation": True}, {"stabilizer": "tanh"},
        {"factorization": "Tucker", "rank": 0.42}, {"non_linearity": F.relu}, {"fno_skip": "soft-gating"},
    )  # fmt: skip
    for n_dim in (1, 2, 3):
        for name in ("FNO", "TFNO"):
            for change in changes:
                modes = 16 if n_dim < 3 else 8
                arguments = {"n_modes": (modes,) * n_dim, "in_channels": 3, "out_channels": 1}
                yield name, {**arguments, "hidden_channels": 64, **change}


def neuraloperators(count: int) -> Iterator[Network]:
    """The defaults, then `count` random networks, saved by the library and read by the importer."""
    rng = random.Random(SEED)
    for name, arguments in defaults():
        yield built(f"{name} with defaults", name, arguments)
    left = count
    while left:
        # the library sometimes rounds the rank of a small factorisation to zero and fails
        with suppress(ZeroDivisionError, RuntimeError):
            arguments = drawn(rng)
            yield built("drawn", "FNO", arguments)
            left -= 1


def built(kind: str, name: str, arguments: dict[str, Any]) -> Network:
    """A network of the library with random weights, and its import."""
    theirs = getattr(neuralop, name)(**dict(arguments)).eval()
    with torch.no_grad():
        for tensor in (*theirs.parameters(), *theirs.buffers()):
            if tensor.is_floating_point():
                # a tensor of zeros or ones would hide an import that ignores it
                tensor.add_(0.2 * torch.rand_like(tensor))
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_checkpoint(Path(folder), "model")
        imported = _imported(Path(folder))
    expansion = arguments.get("channel_mlp_expansion", _DEFAULT_EXPANSION)
    return Network(
        kind,
        theirs,
        imported,
        len(arguments["n_modes"]),
        arguments["hidden_channels"],
        expansion if arguments.get("use_channel_mlp", True) else None,
    )


def _imported(path: Path) -> Imported | ImportRefused:
    try:
        # the file of a TFNO does not tell its release
        return convert(read_checkpoint(path), Options({"version": "2.0.0"}))
    except ImportRefused as refused:
        return refused


def physicsnemos() -> Iterator[Network]:
    """FNOs with arguments of PhysicsNeMo and its default width, and random tensors of its shapes."""
    for n_dim in (1, 2, 3):
        for version in ("1.3.0", "2.2.2"):
            for change in (
                {}, {"padding": 0}, {"decoder_layers": 2}, {"coord_features": False}, {"padding_type": "reflect"},
                {"padding_type": "circular", "padding": 3}, {"activation_fn": "silu"}, {"num_fno_modes": 5},
            ):  # fmt: skip
                imported = physicsnemo(n_dim, version, **change)
                yield Network("PhysicsNeMo FNO with defaults", None, imported, n_dim, 32, None)


def physicsnemo(
    n_dim: int, version: str = "2.2.2", *, in_channels: int = 2, **change: Any
) -> Imported | ImportRefused:
    """Import random tensors of PhysicsNeMo's FNO with its defaults, but for 6 modes an axis in 3D and what is given."""
    arguments = {
        "in_channels": in_channels, "out_channels": 1, "dimension": n_dim, "latent_channels": 32,
        "num_fno_modes": 16 if n_dim < 3 else 6, "padding": 8, "decoder_layers": 1, **change,
    }  # fmt: skip
    tensors = _physicsnemo_tensors(arguments)
    return import_physicsnemo(tensors, arguments, {"physicsnemo_version": version}, Options())


def _physicsnemo_tensors(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    n_dim, width, modes = (arguments[k] for k in ("dimension", "latent_channels", "num_fno_modes"))
    inputs = arguments["in_channels"] + n_dim * arguments.get("coord_features", True)
    tensors: dict[str, torch.Tensor] = {}

    def linear(name: str, c_in: int, c_out: int, axes: int) -> None:
        tensors[f"{name}.weight"] = torch.randn(c_out, c_in, *[1] * axes) / c_in**0.5
        tensors[f"{name}.bias"] = torch.randn(c_out)

    linear("spec_encoder.lift_network.0.conv", inputs, width // 2, n_dim)
    linear("spec_encoder.lift_network.2.conv", width // 2, width, n_dim)
    for i in range(4):
        for corner in range(1, 2 ** (n_dim - 1) + 1):
            weight = torch.randn(width, width, *[modes] * n_dim, 2) / width
            tensors[f"spec_encoder.spconv_layers.{i}.weights{corner}"] = weight
        linear(f"spec_encoder.conv_layers.{i}", width, width, n_dim)
    for i in range(arguments["decoder_layers"]):
        linear(f"decoder_net.layers.{i}.linear", 32 if i else width, 32, 0)
    linear("decoder_net.final_layer.linear", 32, arguments["out_channels"], 0)
    return tensors


@torch.no_grad()
def judged(network: Network) -> Verdict:
    """Find out if a network imports, and where it runs as a chain. Within `host_plans`."""
    imported = network.imported
    if isinstance(imported, ImportRefused):
        return Verdict(str(imported), {}, 0.0)
    ours = network_of(imported)
    try:
        description = ours.description()
        chain = compile_fno(description, device="cpu")
    except ChainRefused as refused:
        return Verdict(None, dict.fromkeys(("CPU", *CARDS), str(refused)), 0.0)
    grids = [(n,) * network.n_dim for n in _GRIDS[network.n_dim]]
    on_cpu = [chain.refusal(grid) for grid in grids]
    theirs = network.theirs or ours
    distance, float32_error = 0.0, None
    for grid, refusal in zip(grids, on_cpu, strict=True):
        if refusal is None:
            x = torch.randn(2, imported.architecture.in_channels, *grid)
            expected = theirs(x)
            error = relative_l2(chain(x), expected)
            if error > max(distance, _NOTABLE):
                float32_error = relative_l2(expected, in_float64(theirs, x))
            distance = max(distance, error)
    asked = [(n,) * network.n_dim for n in _CARD_GRIDS[network.n_dim]]
    chains = {"CPU": _first(on_cpu)}
    chains |= {name: _first(refusals(description, card, asked)) for name, card in CARDS.items()}
    return Verdict(None, chains, distance, float32_error)


def _first(refused: list[str | None]) -> str | None:
    return next((reason for reason in refused if reason is not None), None)


def shares(verdicts: list[Judged]) -> list[dict[str, Any]]:
    """A row for each kind of network, and for each width of drawn ones: how many import, and run as chains where."""
    by_kind: dict[str, list[Judged]] = {}
    for one in verdicts:
        by_kind.setdefault(one.kind, []).append(one)
    by_width: dict[str, list[Judged]] = {}
    for one in sorted(by_kind.get("drawn", ()), key=lambda one: one.width):
        by_width.setdefault(f"drawn, {_class(one.width)} channels", []).append(one)
    return [_share(kind, of_kind) for kind, of_kind in (by_kind | by_width).items()]


def by_channel_mlp(verdicts: list[Judged]) -> list[dict[str, Any]]:
    """A row for each width and expansion of the channel MLPs of drawn networks that import: how many run as chains where."""
    found: dict[tuple[str, float | None], list[Judged]] = {}
    of_drawn = [one for one in verdicts if one.kind == "drawn" and one.verdict.imports is None]
    for one in sorted(of_drawn, key=lambda one: (one.width, one.expansion or 0)):
        found.setdefault((_class(one.width), one.expansion), []).append(one)
    return [
        {"channels": channels, "expansion": expansion, "import": len(alike), **_chains(alike)}
        for (channels, expansion), alike in found.items()
    ]


def _class(width: int) -> str:
    return next(name for most, name in _CLASSES if width <= most)


def _chains(judged_ones: list[Judged]) -> dict[str, int]:
    imported = [one.verdict for one in judged_ones if one.verdict.imports is None]
    return {
        f"chain on {place}": sum(verdict.chains[place] is None for verdict in imported)
        for place in ("CPU", *CARDS)
    }


def _share(kind: str, of_kind: list[Judged]) -> dict[str, Any]:
    imported = [one.verdict for one in of_kind if one.verdict.imports is None]
    ran = sorted(
        (verdict for verdict in imported if verdict.chains["CPU"] is None),
        key=lambda verdict: verdict.distance,
    )
    return {
        "networks": kind,
        "count": len(of_kind),
        "import": len(imported),
        **_chains(of_kind),
        "median distance": ran[len(ran) // 2].distance if ran else None,
        "largest distance": ran[-1].distance if ran else None,
        "float32 error there": ran[-1].float32_error if ran else None,
    }


def reasons(verdicts: list[Judged]) -> list[dict[str, Any]]:
    """A row for each reason why networks are not imported or no chain somewhere: how many, and how wide they are."""
    found: dict[tuple[str, str], list[int]] = {}
    for _, width, _, verdict in verdicts:
        if verdict.imports is not None:
            found.setdefault(("import", verdict.imports), []).append(width)
        for place, why in verdict.chains.items():
            if why is not None:
                found.setdefault((f"chain on {place}", _LAYER.sub("", why)), []).append(width)
    return [
        {
            "refused": what,
            "times": len(widths),
            "channels": ", ".join(f"{w} ({n})" for w, n in sorted(Counter(widths).items())),
            "why": why,
        }
        for (what, why), widths in sorted(found.items(), key=lambda item: -len(item[1]))
    ]


def main() -> None:
    """Print both tables and save them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=800, help="networks drawn")
    count = parser.parse_args().count
    torch.manual_seed(SEED)
    warnings.simplefilter("ignore", UserWarning)
    with host_plans():
        verdicts = [
            Judged(network.kind, network.width, network.expansion, judged(network))
            for networks in (neuraloperators(count), physicsnemos())
            for network in networks
        ]
    table, of_mlps, why = shares(verdicts), by_channel_mlp(verdicts), reasons(verdicts)
    print_table("networks that run as one chain", table)
    print_table("drawn networks by channels and expansion of their channel MLPs", of_mlps)
    if why:
        print_table("why the others do not", why)
    save("chains", table + of_mlps + why)


if __name__ == "__main__":
    main()
