"""JSON with long lists of numbers as arrays, without a Python object for each number; and arrays as JSON.

Documents are read and written in pieces, so that no call holds the interpreter for more than a few milliseconds. Only
invalid JSON, and long lists that are not arrays, are parsed again as a whole by orjson, whose error names the place.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from turbofno.service.codec.fields import MAX_RANK

_SHORT = 1024
"""Size of a document in bytes below which orjson is as fast."""
_FEW = 64
"""Maximum number of values in a list that stays a list, such as a shape."""
_MOST_SEARCHED = 256 * 1024
"""Most bytes of a document that only orjson reads and that is searched for repeated keys, which takes a few milliseconds."""
_PIECE = 512 * 1024
"""Bytes to parse in one call, about a millisecond."""
_LONG_LIST = 4 * 1024
"""Minimum size in bytes of a list that is cut out of a document, to be parsed in pieces."""
_PIECE_VALUES = 64 * 1024
"""Numbers to write in one call, about a millisecond."""
_MAX_REST = 512 * 1024
"""Maximum size in bytes of a document after its long lists are cut out."""
_MAX_LONG_LISTS = 1000
_MAX_KEYS = 100

_NUMBER_OR_SPACE = b"0123456789+-.eE \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Marks the place of a list that was cut out; random, so that no client can send it.
_PLACEHOLDER = secrets.token_hex(16)

_of_thread = threading.local()


class RepeatedKey(Exception):
    """An object has this key more than once."""


def loads(raw: bytes) -> Any:
    """Parse as orjson does, except that evenly nested lists of more than 64 numbers become float64 arrays.

    Raises:
        orjson.JSONDecodeError: not JSON.
        RepeatedKey: an object has a key more than once, of which orjson would take the last. Not of documents that only
            orjson reads and that are large or nested hundreds of levels deep.
    """
    # simdjson accepts a byte order mark, orjson does not
    if len(raw) >= _SHORT and not raw.startswith(_BYTE_ORDER_MARK):
        try:
            return _with_arrays(raw)
        except (ValueError, TypeError, RuntimeError):
            pass  # simdjson: invalid JSON, or nested too deeply; this file: a long list that is not an array
    document = orjson.loads(raw)
    # Each key has a colon. Others are in strings, or belong to keys that are repeated. To find these takes several times as long.
    if len(raw) <= _MOST_SEARCHED and raw.count(b":") != _count_keys(document):
        with suppress(RecursionError):
            json.loads(
                raw, object_pairs_hook=lambda pairs: _refuse_repeated([key for key, _ in pairs])
            )
    return document


def dumps(array: NDArray[np.float32]) -> orjson.Fragment:
    """Encode finite numbers as nested lists, for a document that orjson writes."""
    return orjson.Fragment(b"".join(pieces(array)))


def pieces(array: NDArray[np.float32]) -> Iterator[bytes]:
    """Encode finite numbers as nested lists, in pieces."""
    array = np.ascontiguousarray(array)
    if array.size <= _PIECE_VALUES:
        yield orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
        return
    rows = max(1, _PIECE_VALUES // (array.size // len(array)))
    for start in range(0, len(array), rows):
        yield b"," if start else b"["
        part = array[start : start + rows]
        if len(part) == 1 and part.ndim > 1:
            yield from pieces(part[0])
        else:
            yield orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    yield b"]"


def count_containers(raw: bytes) -> int:
    """The number of lists and objects in a JSON document, plus brackets in its strings."""
    # the codes of [ and { differ only in bit 0x20
    return int(np.count_nonzero(np.frombuffer(raw, np.uint8) & 0xDF == ord("[")))


def _count_keys(document: Any) -> int:
    """The number of keys in a document, without those in a list that does not begin with an object."""
    count, rest = 0, [document]
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            count += len(value)
            rest += value.values()
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            rest += value
    return count


def _refuse_repeated(keys: Sequence[str]) -> None:
    if len(set(keys)) != len(keys):
        raise RepeatedKey(Counter(keys).most_common(1)[0][0])


def _with_arrays(raw: bytes) -> Any:
    arrays: dict[str, NDArray[np.float64]] = {}
    if len(raw) > _PIECE:
        raw = _cut_long_lists(raw, arrays)
    if len(raw) > _MAX_REST:
        raise ValueError("most of the document is not in long lists of numbers")
    reader = _Reader(arrays)
    value = reader.value(_parsed(raw))
    if reader.lists != np.count_nonzero(np.frombuffer(raw, np.uint8) == ord("[")):
        raise ValueError("a list among numbers, or a bracket in a string")
    return value


def _parsed(raw: bytes) -> Any:
    """Parse with the thread's parser, which reuses its memory: no earlier result may still be referenced."""
    try:
        parser: simdjson.Parser = _of_thread.parser
    except AttributeError:
        parser = _of_thread.parser = simdjson.Parser()
    return parser.parse(raw)


class _Reader:
    """Converts a document that simdjson parsed to Python values and arrays; counts its lists in `lists`."""

    def __init__(self, arrays: dict[str, NDArray[np.float64]]) -> None:
        self.lists = 0
        self._arrays = arrays

    def value(self, parsed: Any) -> Any:
        """Raises ValueError or TypeError if a long list that begins with a number is not an array."""
        if isinstance(parsed, simdjson.Object):
            if len(parsed) > _MAX_KEYS:
                raise ValueError("too many keys")  # simdjson searches all keys for each
            keys = list(parsed)
            _refuse_repeated(keys)
            if any("\0" in key for key in keys):
                raise ValueError("simdjson cannot look up keys with NUL")
            return {key: self.value(parsed[key]) for key in keys}
        if isinstance(parsed, simdjson.Array):
            return self._list(parsed)
        return self._arrays.get(parsed, parsed)

    def _list(self, parsed: simdjson.Array) -> Any:
        shape: list[int] = []
        first: Any = parsed
        while isinstance(first, simdjson.Array) and len(first) and len(shape) < MAX_RANK:
            shape.append(len(first))
            first = first[0]
        if math.prod(shape) <= _FEW or type(first) not in (float, int):
            self.lists += 1
            read = [self.value(one) for one in parsed]
            if any(isinstance(one, np.ndarray) for one in read):
                raise ValueError("not evenly nested")
            return read
        lists: list[Any] = [parsed]
        for axis, size in enumerate(shape):
            if axis:
                lists = [one for each in lists for one in each]
            if {*map(len, lists)} != {size}:
                raise ValueError("not evenly nested")
            # a list among the numbers of the last axis is not counted here, so the totals differ
            self.lists += len(lists)
        return np.frombuffer(parsed.as_buffer(of_type="d")).reshape(shape)


def _cut_long_lists(raw: bytes, arrays: dict[str, NDArray[np.float64]]) -> bytes:
    """Replace each long list of numbers by a string, its key in `arrays`.

    Replacing inside a string makes the document invalid, and so is detected.
    """
    kept: list[bytes] = []
    done = 0
    for start, stop in _long_lists(raw):
        name = f"{_PLACEHOLDER}{len(arrays)}"
        arrays[name] = _array(raw[start:stop])
        kept += [raw[done:start], b'"%b"' % name.encode()]
        done = stop
    return b"".join([*kept, raw[done:]])


def _long_lists(raw: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each long list without strings and objects."""
    at = dict.fromkeys(b'"{}', -1)
    start = raw.find(b"[")
    for _ in range(_MAX_LONG_LISTS):
        if start < 0:
            return
        for code, place in at.items():
            if place < start:
                found = raw.find(code, start)
                at[code] = len(raw) if found < 0 else found
        end = min(at.values())
        stop = raw.rfind(b"]", start, end) + 1
        if stop - start >= _LONG_LIST:
            yield start, stop
        start = raw.find(b"[", end)


def _array(text: bytes) -> NDArray[np.float64]:
    """Parse nested lists of numbers in pieces. Raises ValueError or TypeError unless they form one array."""
    parts, skeleton, depth, start = [], [], 0, 0
    while start < len(text):
        cut = text.find(b",", start + _PIECE)
        stop = len(text) if cut < 0 else cut
        piece = text[start:stop]
        after = depth + piece.count(b"[") - piece.count(b"]")
        if not (1 <= after <= MAX_RANK if stop < len(text) else after == 0):
            raise ValueError("brackets do not match, or are nested too deeply")
        # with the brackets that are open at its ends, a piece is JSON; if all pieces are, so is the whole
        parsed = _parsed(b"[" * depth + piece + b"]" * after)
        parts.append(np.frombuffer(parsed.as_buffer(of_type="d")))
        del parsed
        skeleton.append(piece.translate(None, _NUMBER_OR_SPACE))
        depth, start = after, stop + 1
    return np.concatenate(parts).reshape(_shape(b",".join(skeleton)))


def _shape(skeleton: bytes) -> tuple[int, ...]:
    """The shape of nested lists from their brackets and commas. Raises ValueError unless they are evenly nested."""
    rank = len(skeleton) - len(skeleton.lstrip(b"["))
    shape: list[int] = []
    inner = b""
    for level in range(rank):
        start = rank - 1 - level
        stop = skeleton.find(b"]" * (level + 1)) + level + 1
        size = (stop - start - 1) // (len(inner) + 1)
        inner = b"[%b]" % (size * (inner + b","))[:-1]
        shape.insert(0, size)
    if rank > MAX_RANK or inner != skeleton:
        raise ValueError("not evenly nested")
    return tuple(shape)
