"""The error of the importers: an unreadable file or an unsupported network."""

from __future__ import annotations

_LONGEST = 600
SAVE_TENSORS = (
    "torch.save({k: t for k, t in model.state_dict().items() if torch.is_tensor(t)}, path)"
)
"""Leaves out the metadata in neuraloperator's state dicts, which may name the user's code."""


class ImportRefused(ValueError):
    """A foreign checkpoint that cannot be imported. The message gives the reason and a remedy.

    Messages quote names from the file, so they are truncated and made safe to print.
    """

    def __init__(self, message: str) -> None:
        cut = message if len(message) <= _LONGEST else message[:_LONGEST] + " .. (cut)"
        super().__init__(printable(cut))


def printable(text: str) -> str:
    """`text` with control, bidirectional and other invisible characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
