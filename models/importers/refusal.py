"""The one error of the importers: a file that will not be read, or a model that we do not have, in words."""

from __future__ import annotations

_LONGEST = 600


class ImportRefused(ValueError):
    """A foreign checkpoint that cannot be imported. The message says why, and what would help.

    Messages quote names out of the file, so they are cut and made safe to print.
    """

    def __init__(self, message: str) -> None:
        cut = message if len(message) <= _LONGEST else message[:_LONGEST] + " .. (cut)"
        super().__init__(printable(cut))


def printable(text: str) -> str:
    """`text` with control, bidirectional and other invisible characters written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
