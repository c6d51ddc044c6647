"""What the host learns of a batch beside its fields: sums, which show NaN and infinity, and trust signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    Signals = Callable[[torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]
    """Inputs and outputs of a batch -> name -> one value for each field, float32 [n]."""
    Judgement = Callable[[torch.Tensor, torch.Tensor], "Judged"]
    """For inputs and outputs of a batch. Its next call may overwrite the values."""


class Judged(NamedTuple):
    """Numbers of a batch of n fields, on its device."""

    names: tuple[str, ...]
    """Of its signals."""
    values: torch.Tensor
    """float32 [1 + len(names), n or more]: sums of each field's outputs, or of all, then the signals of each field."""

    def signals(self, count: int) -> dict[str, torch.Tensor]:
        """Signal -> float32 [count], of the first fields."""
        return dict(zip(self.names, self.values[1:, :count], strict=True))


def judged_by(signals: Signals, x: torch.Tensor, y: torch.Tensor) -> Judged:
    """Apply signals to inputs and outputs [n, channels, *grid]."""
    found = signals(x, y)
    return Judged(tuple(found), torch.stack([y.flatten(1).sum(1), *found.values()]))


def no_signals(_x: torch.Tensor, _y: torch.Tensor) -> dict[str, torch.Tensor]:
    """None for any batch."""
    return {}


def unjudged(_x: torch.Tensor, y: torch.Tensor) -> Judged:
    """Only the sum."""
    return Judged((), y.sum().view(1, 1))


def on_host(
    names: tuple[str, ...], values: torch.Tensor, count: int
) -> tuple[float, dict[str, list[float]]]:
    """Sum of the outputs of the first `count` fields, and their signals; from values of `Judged`, on the host."""
    sums, *signals = values[:, :count].tolist()
    return sum(sums), dict(zip(names, signals, strict=True))
