"""What is often found in the place of a checkpoint's file: the reader of a copy or download sees only that it is damaged."""

from __future__ import annotations

_LFS = b"version https://git-lfs"
_PAGES = (b"<!doctype", b"<html")
START_BYTES = 64
"""So many of a file's first bytes tell."""


def stand_in(start: bytes) -> str:
    """What a file with these first bytes is instead of a checkpoint, and how to get that; empty if not known."""
    if start.startswith(_LFS):
        return "it is a pointer of Git LFS; get the file itself: git lfs pull"
    if start[:START_BYTES].lstrip().lower().startswith(_PAGES):
        return "it is a web page, as of a login or an error; download the file anew"
    return ""
