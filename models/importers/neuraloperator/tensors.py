"""The tensors of a checkpoint, taken one by one by name, so that what nobody took can be named and refused."""

from __future__ import annotations

import torch

from models.importers.refusal import ImportRefused


class Tensors:
    """A state dict that remembers what has been read."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self._left = dict(state)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str) -> torch.Tensor:
        """The tensor of that name.

        Raises:
            ImportRefused: there is none.
        """
        if name not in self._left:
            raise ImportRefused(f"the checkpoint has no tensor {name}")
        return self._left.pop(name)

    def take_below(self, prefix: str) -> dict[str, torch.Tensor]:
        """All tensors whose names begin with `prefix`, which is cut off."""
        names = [name for name in self._left if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._left.pop(name) for name in names}

    def has_below(self, prefix: str) -> bool:
        """Whether a name begins with `prefix`."""
        return any(name.startswith(prefix) for name in self._left)

    def count_below(self, prefix: str) -> int:
        """How many different numbers follow `prefix` in the names: the length of that module list."""
        heads = {
            name.removeprefix(prefix).partition(".")[0]
            for name in self._left
            if name.startswith(prefix)
        }
        return sum(head.isdecimal() for head in heads)

    def finish(self) -> None:
        """Refuse what is left over."""
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            raise ImportRefused(
                f"no part of an FNO that we know has the tensors {', '.join(names[:8])}{more}; supported are "
                "lifting, projection, fno_blocks with convs, fno_skips, channel_mlp (mlp), "
                "channel_mlp_skips (mlp_skips) and norm"
            )
