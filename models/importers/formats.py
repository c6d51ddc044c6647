"""The formats that can be imported, by the names the command line has for them."""

from __future__ import annotations

from typing import Literal, get_args

Format = Literal["neuraloperator", "original", "pdebench", "physicsnemo", "the-well"]
FORMATS: tuple[Format, ...] = get_args(Format)
