"""The server and model under test, by their metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

NUMPY = {"FP32": "<f4", "FP64": "<f8", "INT32": "<i4", "INT64": "<i8"}


@dataclass(frozen=True)
class Target:
    """A server and one of its models, by their metadata."""

    url: str
    control: bool
    model: str
    version: str
    input: str
    datatype: str
    shape: tuple[int, ...]
    outputs: tuple[str, ...]
    extensions: tuple[str, ...]

    @property
    def host(self) -> str:
        """tritonclient's `url`."""
        return self.url.removeprefix("http://")

    @property
    def infer_path(self) -> str:
        return f"/v2/models/{self.model}/infer"

    def array(self, seed: int = 0) -> np.ndarray[Any, Any]:
        values = np.random.default_rng(seed).normal(size=self.shape)
        return values.astype(NUMPY[self.datatype])

    def entry(self, **changes: Any) -> dict[str, Any]:
        """The input of a JSON request, with `data` unless `changes` has another form of it."""
        entry = {"name": self.input, "shape": list(self.shape), "datatype": self.datatype}
        if "data" not in changes and "parameters" not in changes:
            entry["data"] = self.array().reshape(-1).tolist()
        return entry | changes
