"""Translation of the arguments of neuraloperator's FNO to our architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turbofno.models.core.architecture import BlockStep, DomainPadding
from turbofno.models.importers.neuraloperator.settings import Release
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.safe_pickle import Stub


def grid_ranges(value: Any, n_dim: int) -> list[tuple[float, float]] | None:
    """Start and end of each axis of a positional embedding; None without one."""
    if value is None:
        return None
    if value == "grid":
        return [(0.0, 1.0)] * n_dim
    if isinstance(value, Stub) and value.cls.name in ("GridEmbeddingND", "GridEmbedding2D"):
        boundaries = value.attributes.get("grid_boundaries", ())
        if len(boundaries) == n_dim:
            return [(float(start), float(end)) for start, end in boundaries]
    what = value.cls.name if isinstance(value, Stub) else value
    raise ImportRefused(
        f"positional_embedding={what} is not supported; supported are 'grid', GridEmbeddingND, "
        f"GridEmbedding2D with {n_dim} boundaries, and None"
    )


def padding_of(
    amount: Any, mode: Any, n_dim: int, *, scaled: bool, built: bool
) -> DomainPadding | None:
    """`domain_padding` and `domain_padding_mode`.

    `built` is False for an argument of FNO.__init__, which ignores a tuple, and True for what a DomainPadding holds.
    """
    if amount is None or (isinstance(amount, tuple) and not built):
        return None
    fractions = tuple(amount) if _is_list(amount) else (amount,) * n_dim
    if not all(isinstance(f, int | float) for f in fractions) or len(fractions) != n_dim:
        raise ImportRefused(
            f"domain_padding={amount} must be a number, or one for each of {n_dim} axes"
        )
    if sum(fractions) <= 0:
        return None
    if scaled:
        raise ImportRefused(
            "domain_padding with resolution_scaling_factor is not supported (neuraloperator crops the padding as "
            "if only one layer changed the resolution)"
        )
    sides = {"one-sided": "end", "symmetric": "both"}
    if mode not in sides:
        raise ImportRefused(f"domain_padding_mode={mode} is not one of {', '.join(sides)}")
    return DomainPadding.model_validate({"fraction": fractions, "sides": sides[mode]})


def scaling_of(value: Any, n_layers: int, n_dim: int) -> tuple[tuple[float, ...], ...]:
    """`resolution_scaling_factor`: a number, one per layer, or a list per layer; empty without scaling."""
    if value is None:
        return ()
    layers = list(value) if _is_list(value) else [value] * n_layers
    scaling = tuple(
        tuple(float(s) for s in layer) if _is_list(layer) else (float(layer),) * n_dim
        for layer in layers
    )
    if len(scaling) != n_layers or any(len(layer) != n_dim for layer in scaling):
        raise ImportRefused(
            f"resolution_scaling_factor={value} must have a factor for each of {n_layers} layers and "
            f"{n_dim} axes"
        )
    if any(factor <= 0 for layer in scaling for factor in layer):
        raise ImportRefused(f"resolution_scaling_factor={value} must have positive factors")
    return scaling


def block_steps(
    release: Release,
    *,
    preactivation: bool,
    tanh: bool,
    norm: bool,
    skip: bool,
    mlp: bool,
    mlp_skip: bool,
) -> tuple[tuple[BlockStep, ...], tuple[BlockStep, ...]]:
    """The steps of a layer and of the last layer, in order (FNOBlocks.forward_with_.. of that release)."""
    old = release == "0.3.0"
    steps: list[tuple[BlockStep, bool, bool]] = [
        # step, is it in a layer, is it in the last layer
        ("activation", preactivation, True),
        ("norm", preactivation and norm, True),
        ("branch", preactivation, True),
        ("tanh", tanh, True),
        ("spectral", True, True),
        ("norm", norm and not preactivation, True),
        ("skip", skip, True),
        # 0.3: also in the last layer before an MLP; with preactivation only before an MLP
        ("activation", mlp or not (old and preactivation), old and mlp and not preactivation),
        ("norm", preactivation and norm and (mlp or not old), True),
        ("mlp", mlp, True),
        ("mlp_skip", mlp_skip, True),
        ("norm", norm and not preactivation and (mlp or not old), True),
        # without an MLP in between, 2.0 applies the activation twice
        ("activation", not preactivation and (mlp or not old), False),
    ]
    block = tuple(step for step, present, _ in steps if present)
    return block, tuple(step for step, present, last in steps if present and last)


def counts(value: Any, what: str, n_dim: int) -> Sequence[int] | None:
    """`n_modes` or `max_n_modes` as a list."""
    if value is None:
        return None
    numbers = list(value) if _is_list(value) else [value]
    if len(numbers) != n_dim or not all(isinstance(n, int) and n > 0 for n in numbers):
        raise ImportRefused(
            f"{what}={value} must have a positive whole number for each of {n_dim} axes"
        )
    return numbers


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
