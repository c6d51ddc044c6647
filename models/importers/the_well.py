"""Import of The Well's published FNO and TFNO baselines (config.json, model.safetensors).

They are neuraloperator 0.3.0 networks. The code that trained the published ones discarded the result of the Fourier
layers (PolymathicAI/the_well, pull request 64), so their weights are right only if these layers are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.importers.neuraloperator import import_neuraloperator
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported, Options

Blocks = Literal["bypassed", "applied"]
_MAX_DEVIATION = 0.02


def recognises(config: Mapping[str, Any]) -> bool:
    """True if this config.json is of one of The Well's FNO models."""
    return {"dim_in", "dim_out", "n_spatial_dims", "modes1", "hidden_channels"} <= set(config)


def import_the_well(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], options: Options
) -> Imported:
    """Convert one of The Well's FNO models.

    Raises:
        ImportRefused: tensors or settings of no such model.
    """
    try:
        n = int(config["n_spatial_dims"])
        modes = tuple(int(config[f"modes{axis + 1}"]) for axis in range(n))
        arguments = {
            "n_modes": modes,
            "in_channels": int(config["dim_in"]),
            "out_channels": int(config["dim_out"]),
            "hidden_channels": int(config["hidden_channels"]),
        }
        resolution = tuple(int(size) for size in config["spatial_resolution"])
    except (KeyError, TypeError, ValueError) as error:
        raise ImportRefused(f"config.json does not describe an FNO of The Well: {error}") from None
    plain = {key.removeprefix("model."): tensor for key, tensor in tensors.items()}
    blocks = _blocks(plain, options)
    imported = import_neuraloperator(plain, arguments, options)
    lines = [
        f"the Fourier layers are {blocks} (blocks=bypassed or applied): The Well's code discarded their result until "
        "pull request 64, and weights trained with that code still have the spread of their initialisation",
        "the input channels are the data set's fields at 4 earlier times, then its constant fields; scale "
        "them with the data set's mean and std (--normalizer)",
    ]
    architecture, state = imported.architecture, imported.state
    if blocks == "bypassed":
        architecture, state = _without_blocks(architecture, state)
    return Imported(
        format=f"The Well, {imported.format}",
        architecture=architecture,
        state=state,
        assumptions=(*imported.assumptions, *lines),
        training_grid=resolution[:n],
    )


def _blocks(tensors: Mapping[str, Tensor], options: Options) -> Blocks:
    """The option `blocks`; its default follows from the weights if they are dense."""
    weights = [
        t for key, t in tensors.items() if ".convs.weight." in key and key.endswith("tensor")
    ]
    skips = [t for key, t in tensors.items() if ".fno_skips." in key]
    choices: tuple[Blocks, ...] = ("bypassed", "applied")
    if weights:
        return options.choice("blocks", choices, choices[not _untrained(weights, skips)])
    if options.given.get("blocks") is None:
        raise ImportRefused(
            "the network is factorised, so its weights do not show whether The Well's code applied the Fourier layers in "
            "training; use --set blocks=bypassed (as published, before The Well's pull request 64) or "
            "--set blocks=applied"
        )
    return options.choice("blocks", choices, "bypassed")


def _untrained(weights: list[Tensor], skips: list[Tensor]) -> bool:
    """True if these spectral weights and skips may still be as neuraloperator 0.3.0 initialises them."""
    # PyTorch's initial weights are uniform up to this bound; training moves many of them beyond it
    if any(skip.abs().max() > (1 + 1e-6) * skip[0].numel() ** -0.5 for skip in skips):
        return False
    sample = torch.cat([weight.flatten().double() for weight in weights])
    c_in, c_out = weights[0].shape[:2]
    # complex numbers of the variance 2 / (c_in + c_out), half of it in each part
    expected = (c_in + c_out) ** -0.5
    return abs(float(sample.std()) / expected - 1) < _MAX_DEVIATION


def _without_blocks(
    arch: FNOArchitecture, state: dict[str, Tensor]
) -> tuple[FNOArchitecture, dict[str, Tensor]]:
    """Lifting and projection with one identity layer between them."""
    changed = arch.model_copy(
        update={
            "n_layers": 1, "modes": (1,) * arch.n_dim, "skip": "identity", "spectral_bias": False,
            "channel_mlp": None, "norm": "none", "domain_padding": None, "block": ("spectral", "skip"),
            "last_block": (), "mode_placement": "exact", "odd_axes_rolled": False,
        }
    )  # fmt: skip
    width = arch.hidden_channels
    kept = {key: t for key, t in state.items() if not key.startswith("blocks.")}
    zero = torch.zeros(width, width, *changed.modes, dtype=torch.complex64)
    return changed, {**kept, "blocks.0.spectral_weight": zero}
