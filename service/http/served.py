"""Per-version constants of a model, computed once instead of for each request."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from turbofno.models.core.config import ModelConfig
from turbofno.service.answer_warnings import AnswerWarnings
from turbofno.service.codec import npy, oip_binary
from turbofno.service.codec.fields import (
    Form,
    check_bounds,
    check_finite,
    fields_from_arrays,
    fields_from_tensor,
    has_bounds,
)
from turbofno.service.engine.interface import Engine, Fields, Trust
from turbofno.service.http.call import Lines
from turbofno.service.http.trust import NOT_COMPUTED, no_trust_reason
from turbofno.service.settings import Settings

_FLOAT = np.dtype(np.float32)
_MAX_LAYOUTS = 64
"""Limit of cached layouts per model: clients choose them."""
_NPY_BEGINNING = 128
"""Bytes of most `.npy` headers."""


class Served:
    """One version of a model."""

    def __init__(self, config: ModelConfig, settings: Settings) -> None:
        self.config = config
        self.name, self.version = config.name, config.version
        self.headers: Lines = [b"x-model-version: " + self.version.encode("latin-1")]
        """Headers of every answer."""
        self.units = {channel.name: channel.units for channel in config.outputs}
        self.max_fields = settings.max_fields_per_request
        self.no_trust_reason = no_trust_reason(config, enabled=settings.trust)
        self._bounded = has_bounds(config.inputs)
        self._layouts: dict[tuple[bytes | str | None, int], tuple[bytes, tuple[int, ...], Any]] = {}
        """Beginning of an `.npy` body or given shape, and size of the body in bytes -> `.npy` header, [batch, channels, *grid]
        and form of its fields, once such a body was checked."""
        self.warnings = lru_cache(_MAX_LAYOUTS)(partial(AnswerWarnings, config))
        """The warnings of answers, by input grid and, if one is given, output grid."""

    def fields_from_npy(self, body: memoryview) -> tuple[Fields, Form]:
        """Decode and check the fields of an `.npy` body, without a copy where none is needed.

        Raises as `npy.decode_npy` and `fields_from_arrays`.
        """
        beginning = bytes(body[:_NPY_BEGINNING])
        if known := self._known(beginning, body):
            return known
        arrays = npy.decode_npy(body)
        fields, form = fields_from_arrays(arrays, self.config, max_fields=self.max_fields)
        if fields.base is not None:
            # A view, so the body is float32 in C order.
            self._note(beginning, body, fields, form)
        return fields, form

    def fields_from_raw(self, body: memoryview, shape: str | None) -> Fields:
        """Decode and check the fields of a body of float32 values, without a copy; `shape` is such as "1,1,64,64".

        Raises as `oip_binary.decode_raw` and `fields_from_tensor`.
        """
        if known := self._known(shape, body):
            return known[0]
        raw = oip_binary.decode_raw(body, shape=shape, model=self.name)
        fields = fields_from_tensor(raw.tensor, self.config, max_fields=self.max_fields)
        self._note(shape, body, fields, None)
        return fields

    def _known(self, said: bytes | str | None, body: memoryview) -> tuple[Fields, Any] | None:
        """The checked fields of a body whose layout was noted before, and their form."""
        layout = self._layouts.get((said, len(body)))
        if layout is None:
            return None
        header, sizes, form = layout
        if len(header) > _NPY_BEGINNING and bytes(body[: len(header)]) != header:
            return None
        fields = np.ndarray(sizes, _FLOAT, body, len(header))
        check_finite(fields, self.config.inputs)
        if self._bounded:
            check_bounds(fields, self.config.inputs)
        return fields, form

    def _note(
        self, said: bytes | str | None, body: memoryview, fields: Fields, form: Form | None
    ) -> None:
        if len(self._layouts) >= _MAX_LAYOUTS:
            self._layouts.clear()
        header = bytes(body[: len(body) - fields.nbytes])
        self._layouts[said, len(body)] = header, fields.shape, form

    def why_no_trust(self, trust: Trust) -> str:
        """The reason why an answer has no trust signals; empty if it has."""
        return "" if trust else self.no_trust_reason or NOT_COMPUTED


class ServedModels:
    """The models of one application, by name."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._known: dict[tuple[str, str], Served] = {}

    def find(self, model: str, version: str | None) -> Served:
        """Return a ready model, the newest version if None. Raises NotFound, Unavailable."""
        config = self._engine.config(model, version)
        key = (config.name, config.version)
        known = self._known.get(key)
        if known is None or known.config is not config:
            known = self._known[key] = Served(config, self._settings)
        return known
