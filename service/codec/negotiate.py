"""The formats of `:predict`, and the choice of one from Content-Type and Accept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Protocol, TypeVar

from turbofno.service.codec import json, npy, safetensors
from turbofno.service.codec.fields import Array, ResponseData
from turbofno.service.errors import NotAcceptable, UnsupportedMediaType

F = TypeVar("F")


class Decode(Protocol):
    """Decode a body to named float arrays of at most `max_bytes` in all; raise ServiceError for anything else."""

    def __call__(self, body: bytes | memoryview, *, max_bytes: int) -> dict[str, Array]: ...


@dataclass(frozen=True, eq=False)
class Codec:
    """Decoder and encoder of one format."""

    media_type: str
    decode: Decode
    encode: Callable[[ResponseData], Sequence[bytes | memoryview]]
    """The pieces of a body."""

    @cached_property
    def header(self) -> bytes:
        """That names the format of a body, as it is sent."""
        return f"content-type: {self.media_type}".encode()


def _no_larger_than_body(decode: Callable[[bytes | memoryview], dict[str, Array]]) -> Decode:
    """A decoder of an uncompressed format, whose size was limited when the body was read."""

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
    """The codec for a request body with this Content-Type; the bytes are not inspected.

    Raises:
        UnsupportedMediaType: no Content-Type, or an unsupported one; the message lists the supported ones.
    """
    if content_type is None:
        raise UnsupportedMediaType(f"the request has no Content-Type, expected one of {OFFERED}")
    name, _, parameters = content_type.partition(";")
    charset = _parameter(parameters, "charset") or "utf-8"
    for codec in CODECS:
        if codec.media_type == name.strip().lower():
            if codec is JSON and charset.lower().strip('"') not in ("utf-8", "utf8", "us-ascii"):
                raise UnsupportedMediaType(
                    f"JSON in charset {charset[:40]!r} is not supported, expected utf-8"
                )
            return codec
    raise UnsupportedMediaType(
        f"Content-Type {content_type[:80]!r} is not supported, expected one of {OFFERED}"
    )


def codec_for_answer(
    accept: str | None, *, request: Codec, besides: Mapping[str, F] = MappingProxyType({})
) -> Codec | F:
    """The codec for the response: the highest q-value, then the format of the request, then the order of CODECS.

    `besides` are other formats of the route, by media type: they come first if Accept names them, and no wildcard does.

    Raises:
        NotAcceptable: Accept allows no supported format; the message lists them.
    """
    if accept is None or not accept.strip():
        return request
    ranges = weighted(accept)
    named = {name for name, _ in ranges}
    offered: dict[str, Codec | F] = {name: besides[name] for name in besides if name in named}
    offered |= {codec.media_type: codec for codec in (request, *CODECS)}
    best = max(offered, key=lambda media_type: quality_of(media_type, ranges))
    if quality_of(best, ranges) <= 0:
        raise NotAcceptable(
            f"Accept {accept[:120]!r} allows no supported format, expected one of {', '.join([OFFERED, *besides])}"
        )
    return offered[best]


def weighted(header: str) -> list[tuple[str, float | None]]:
    """The items of an Accept or Accept-Encoding header in lower case, with their q-values: None if it has none."""
    found: list[tuple[str, float | None]] = []
    for item in filter(str.strip, header.lower().split(",")):
        name, _, parameters = item.partition(";")
        text = _parameter(parameters, "q")
        try:
            # `max` takes "nan" for 0, too
            found.append((name.strip(), None if text is None else max(0.0, float(text))))
        except ValueError:
            found.append((name.strip(), 0.0))
    return found


def quality_of(media_type: str, ranges: list[tuple[str, float | None]]) -> float:
    """The q-value of the most specific media range that matches a media type, 0 if none does."""
    group = media_type.partition("/")[0] + "/*"
    for pattern in (media_type, group, "*/*"):
        qualities = [
            1.0 if quality is None else quality for name, quality in ranges if name == pattern
        ]
        if qualities:
            return max(qualities)
    return 0.0


def _parameter(parameters: str, name: str) -> str | None:
    for item in parameters.split(";"):
        key, _, value = item.partition("=")
        if key.strip().lower() == name:
            return value.strip()
    return None
