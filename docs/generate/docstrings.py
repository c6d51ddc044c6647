"""A griffe extension: docstrings as Markdown, and the client's methods with what they return."""

import re
from typing import Any

import griffe

_SHAPE = re.compile(r"\*(?=(grid|modes|other)\b)")
_STEPS = re.compile(r"^Steps\[(.*)\]$")
_ROLLOUT = re.compile(r"^Rollout\[(.*)\]$")


class Docstrings(griffe.Extension):
    """Escape the asterisk of shapes such as [n, *grid]; drop the generator that the client's calls are written as."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Escape `*grid` in a docstring, where Markdown would begin emphasis."""
        if obj.docstring is not None:
            obj.docstring.value = _SHAPE.sub(r"\\*", obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Name what a method of the client returns, not the generator behind it."""
        returns = str(func.returns)
        if found := _STEPS.match(returns):
            func.returns = found[1]
        elif found := _ROLLOUT.match(returns):
            func.returns = f"Generator[Frame[{found[1]}]]"
