"""The formats that can be imported, as named on the command line."""

from __future__ import annotations

from typing import Literal, get_args

Format = Literal["neuraloperator", "original", "pdebench", "physicsnemo", "the-well"]
FORMATS: tuple[Format, ...] = get_args(Format)
