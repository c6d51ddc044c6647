"""Which format a body has and which one the answer gets: Content-Type and Accept to codecs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from turbofno.service.codec import json, npy, safetensors
from turbofno.service.errors import NotAcceptable, UnsupportedMediaType

if TYPE_CHECKING:
    from collections.abc import Callable

    from turbofno.service.codec.fields import Answer, Array


class Decode(Protocol):
    """Body bytes to named arrays of floats, at most `max_bytes` of them; raises ServiceError for anything else."""

    def __call__(self, body: bytes | memoryview, *, max_bytes: int) -> dict[str, Array]: ...


@dataclass(frozen=True, eq=False)
class Codec:
    """One format of the friendly route, both ways."""

    media_type: str
    decode: Decode
    encode: Callable[[Answer], bytes]

    @cached_property
    def content_type(self) -> bytes:
        """The media type as the value of a header."""
        return self.media_type.encode()


def _no_larger_than_body(decode: Callable[[bytes | memoryview], dict[str, Array]]) -> Decode:
    """For a format that does not inflate: its body was bounded as it was read."""

    def bounded(body: bytes | memoryview, **_: int) -> dict[str, Array]:
        return decode(body)

    return bounded


JSON = Codec("application/json", _no_larger_than_body(json.decode), json.encode)
NPY = Codec("application/x-npy", _no_larger_than_body(npy.decode_npy), npy.encode_npy)
NPZ = Codec("application/x-npz", npy.decode_npz, npy.encode_npz)
SAFETENSORS = Codec(
    "application/vnd.safetensors", _no_larger_than_body(safetensors.decode), safetensors.encode
)

CODECS = (JSON, NPY, NPZ, SAFETENSORS)
OFFERED = ", ".join(codec.media_type for codec in CODECS)


def codec_for_body(content_type: str | None) -> Codec:
    """The codec that reads a body; nothing is guessed from the bytes.

    Raises:
        UnsupportedMediaType: no or another Content-Type; the message lists what is read.
    """
    if content_type is None:
        raise UnsupportedMediaType(f"the request has no Content-Type, expected one of {OFFERED}")
    name, _, parameters = content_type.partition(";")
    charset = _parameter(parameters, "charset") or "utf-8"
    for codec in CODECS:
        if codec.media_type == name.strip().lower():
            if codec is JSON and charset.lower().strip('"') not in ("utf-8", "utf8", "us-ascii"):
                raise UnsupportedMediaType(f"JSON is read as utf-8 only, not {charset[:40]!r}")
            return codec
    raise UnsupportedMediaType(
        f"Content-Type {content_type[:80]!r} is not read, expected one of {OFFERED}"
    )


def codec_for_answer(accept: str | None, *, request: Codec) -> Codec:
    """The codec for the answer: highest q-value first, then the request's own form, then our order.

    Raises:
        NotAcceptable: Accept rules out all that is offered; the message lists it.
    """
    if accept is None or not accept.strip():
        return request
    ranges = [_media_range(item) for item in accept.split(",") if item.strip()]
    order = (request, *(codec for codec in CODECS if codec is not request))
    best = max(order, key=lambda codec: _quality(codec, ranges))
    if _quality(best, ranges) <= 0:
        raise NotAcceptable(f"Accept {accept[:120]!r} allows none of {OFFERED}")
    return best


def _media_range(item: str) -> tuple[str, float]:
    name, _, parameters = item.partition(";")
    text = _parameter(parameters, "q")
    try:
        quality = 1.0 if text is None else float(text)
    except ValueError:
        quality = 0.0
    return name.strip().lower(), quality


def _quality(codec: Codec, ranges: list[tuple[str, float]]) -> float:
    """The q-value of the most specific range that covers a codec, 0 if none does."""
    group = codec.media_type.partition("/")[0] + "/*"
    for pattern in (codec.media_type, group, "*/*"):
        qualities = [quality for name, quality in ranges if name == pattern]
        if qualities:
            return max(qualities)
    return 0.0


def _parameter(parameters: str, name: str) -> str | None:
    for item in parameters.split(";"):
        key, _, value = item.partition("=")
        if key.strip().lower() == name:
            return value.strip()
    return None
