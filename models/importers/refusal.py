"""The one error of the importers: a file that will not be read, or a model that we do not have, in words."""

from __future__ import annotations


class ImportRefused(ValueError):
    """A foreign checkpoint that cannot be imported. The message says why, and what would help."""
