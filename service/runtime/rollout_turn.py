"""A turn: a few steps of several rollouts as one batch, with one copy to the host at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from turbofno.service.engine.runnable import Turn, signals_of_all

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turbofno.models.core.statistics import Statistics
    from turbofno.service.engine.interface import Fields
    from turbofno.service.engine.runnable import State
    from turbofno.service.runtime.judgement import Judgement


class Excess:
    """The energy of an output relative to the largest in the training range; over 1, or NaN, is a blow-up.

    The range is that of the input's last state, which the output is in the next step. Energy is the grid mean of the
    squared deviation from the channel's training mean. A field within the value range of the model's statistics has at
    most the square of the range's larger half. The worst channel counts; constant channels are ignored. Without statistics
    only NaN and infinity are detected.
    """

    def __init__(self, statistics: Statistics | None, device: torch.device) -> None:
        channels = () if statistics is None else statistics.inputs[-len(statistics.outputs) :]
        self._known = bool(channels)
        self._mean = torch.tensor([one.mean for one in channels], device=device)
        reach = [max(one.maximum - one.mean, one.mean - one.minimum) for one in channels]
        self._most = torch.tensor([one**2 or float("inf") for one in reach], device=device)

    def __call__(self, fields: torch.Tensor) -> torch.Tensor:
        """float32 [n, channels, *grid] -> [n]."""
        return self.of(self.energy(fields, fields[0, 0].numel()))

    def energy(self, fields: torch.Tensor, points: int) -> torch.Tensor:
        """What fields, or their slabs, add to the energy of fields of so many points: [n, channels, ..] -> [n, channels]."""
        values = fields.flatten(2)
        if not self._known:
            # 0 for finite values, else NaN
            return (values * 0.0).sum(2)
        return (values - self._mean[:, None]).square().sum(2) / points

    def of(self, energy: torch.Tensor) -> torch.Tensor:
        """[.., n, channels] -> [.., n]."""
        # amax propagates NaN, a comparison would not.
        return (energy / self._most if self._known else energy).amax(-1)


def run_turn(
    forward: Callable[[torch.Tensor], torch.Tensor],
    states: Sequence[State],
    wanted: Sequence[Sequence[int]],
    *,
    steps: int,
    excess: Excess,
    device: torch.device,
    judge: Judgement | None = None,
) -> Turn:
    """Apply `forward` to its own output `steps` times; of several past states the oldest makes room for it.

    Args:
        states: fields of each rollout, on one grid; left unchanged.
        wanted: for each rollout the steps, counted from 1, whose fields to copy to the host.
        judge: computes the trust signals of each step; without it there are none.
    """
    sizes = [len(state) for state in states]
    x = torch.cat([_on_device(state, device) for state in states])
    checks: list[torch.Tensor] = []
    judged: list[dict[str, torch.Tensor]] = []
    keys: list[tuple[int, int]] = []
    kept: list[torch.Tensor] = []
    for step in range(1, steps + 1):
        y = forward(x)
        # Copied, since the next call of the judge overwrites them.
        found = {} if judge is None else judge(x, y).signals(len(x))
        judged.append({name: values.clone() for name, values in found.items()})
        x = next_input(x, y)
        checks.append(excess(y))
        for index, part in enumerate(y.split(sizes)):
            if step in wanted[index]:
                keys.append((index, step))
                kept.append(part)
    # The only copies to the host. Fields of several rollouts are copied again: a view would keep all of them.
    alone = len(sizes) == 1
    signals = signals_of_all(judged)
    per_step = (checks, *signals.values())
    checked, *trust = torch.stack([torch.stack(one) for one in per_step]).cpu().numpy()
    frames: list[dict[int, Fields]] = [{} for _ in states]
    if kept:
        host = torch.cat(kept).cpu().numpy()
        ends = np.cumsum([sizes[index] for index, _ in keys])
        for (index, step), fields in zip(keys, np.split(host, ends[:-1]), strict=True):
            frames[index][step] = fields if alone else fields.copy()
    rows = np.cumsum(sizes)[:-1]
    return Turn(
        states=[part if alone else part.clone() for part in x.split(sizes)],
        frames=frames,
        excess=np.split(checked, rows, axis=1),
        trust=[
            dict(zip(signals, parts, strict=True))
            for parts in zip(*(np.split(values, rows, axis=1) for values in trust), strict=True)
        ]
        if trust
        else [{} for _ in states],
    )


def next_input(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The input of the step after that from x [n, in_channels, ..] to y [n, out_channels, ..]: x without its first channels, y."""
    return y if x.shape[1] == y.shape[1] else torch.cat((x[:, y.shape[1] :], y), 1)


def _on_device(state: State, device: torch.device) -> torch.Tensor:
    if isinstance(state, torch.Tensor):
        return state
    return torch.from_numpy(np.require(state, np.float32, ["C", "A", "W"])).to(device)
