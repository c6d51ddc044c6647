"""Compression of responses with gzip and deflate."""

from __future__ import annotations

import zlib
from typing import Literal

from turbofno.service.codec.negotiate import weighted

Coding = Literal["gzip", "deflate"]

_CODINGS: dict[str, Coding | None] = {"gzip": "gzip", "deflate": "deflate", "identity": None}
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_FAST = 1


def compress(body: bytes, coding: Coding) -> bytes:
    """Compress at the fastest level: fields barely compress at any."""
    return zlib.compress(body, _FAST, _GZIP_WINDOW if coding == "gzip" else zlib.MAX_WBITS)


def answer_coding(accept_encoding: str) -> Coding | None:
    """The coding of a response from the Accept-Encoding header, None for identity.

    HTTP clients list all codings that they know, and compressing a field costs far more time than it saves. So a
    response is compressed only for exactly one coding, or for q-values, of which the highest decides.
    """
    offers = weighted(accept_encoding)
    if len(offers) != 1 and all(quality is None for _, quality in offers):
        return None
    best: tuple[float, Coding | None] = (0.0, None)
    for name, quality in offers:
        weight = 1.0 if quality is None else quality
        if name in _CODINGS and weight > best[0]:
            best = (weight, _CODINGS[name])
    return best[1]
