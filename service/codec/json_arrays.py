"""JSON with its long lists of numbers as arrays, without a Python object for each number; and arrays as JSON.

No call holds the interpreter for more than a few milliseconds, however long the document: both ways go piece by piece. Only
what is no valid JSON, or has a long list that is no array, is read as a whole, to say where it is wrong.
"""

from __future__ import annotations

import math
import secrets
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import simdjson

from turbofno.service.codec.fields import MAX_RANK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_SHORT = 1024
"""Bytes of a document that orjson alone reads as fast."""
_FEW = 64
"""Numbers in a list that stays one: sizes, parameters."""
_PIECE = 512 * 1024
"""Bytes that are parsed at once: about a millisecond."""
_LONG_LIST = 4 * 1024
"""Bytes of a list that is taken out of a longer document, to be parsed in pieces."""
_PIECE_VALUES = 64 * 1024
"""Numbers that are written at once: about a millisecond."""
_MOST_REST = 512 * 1024
"""Bytes of a document without the lists that were taken out of it."""
_MOST_RUNS = 1000
_MOST_KEYS = 100

_NUMBER_OR_SPACE = b"0123456789+-.eE \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Stands for a list that was taken out: as long as nobody can guess it, nobody can send it.
_STAND_IN = secrets.token_hex(16)

_of_thread = threading.local()


def loads(raw: bytes) -> Any:
    """Parse as orjson does, but for evenly nested lists of more than 64 numbers: these are float64 arrays.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
    """
    # what simdjson skips and orjson refuses
    if len(raw) >= _SHORT and not raw.startswith(_BYTE_ORDER_MARK):
        try:
            return _with_arrays(raw)
        except (ValueError, TypeError, RuntimeError):
            pass  # of simdjson: no JSON, or too deep; of this file: a long list that is no array
    return orjson.loads(raw)


def dumps(array: NDArray[np.float32]) -> orjson.Fragment:
    """Finite numbers as nested lists, for a document that orjson writes."""
    return orjson.Fragment(b"".join(_written(np.ascontiguousarray(array))))


def count_containers(raw: bytes) -> int:
    """Lists and objects of a JSON document, and brackets in its strings."""
    # the codes of [ and { differ in this bit
    return int(np.count_nonzero(np.frombuffer(raw, np.uint8) & 0xDF == ord("[")))


def _with_arrays(raw: bytes) -> Any:
    taken: dict[str, NDArray[np.float64]] = {}
    if len(raw) > _PIECE:
        raw = _without_long_lists(raw, taken)
    if len(raw) > _MOST_REST:
        raise ValueError("most of it is not in long lists of numbers")
    reader = _Reader(taken)
    value = reader.value(_parsed(raw))
    if reader.lists != np.count_nonzero(np.frombuffer(raw, np.uint8) == ord("[")):
        raise ValueError("a list among numbers, or a bracket in a string")
    return value


def _parsed(raw: bytes) -> Any:
    """By a parser that keeps its memory; nothing that it gave may be held any more."""
    try:
        parser: simdjson.Parser = _of_thread.parser
    except AttributeError:
        parser = _of_thread.parser = simdjson.Parser()
    return parser.parse(raw)


class _Reader:
    """The document that simdjson parsed, as Python values and arrays; counts the lists that it read."""

    def __init__(self, taken: dict[str, NDArray[np.float64]]) -> None:
        self.lists = 0
        self._taken = taken

    def value(self, parsed: Any) -> Any:
        """Raises ValueError or TypeError where a long list that begins with a number is no array."""
        if isinstance(parsed, simdjson.Object):
            if len(parsed) > _MOST_KEYS:
                raise ValueError("more keys than fields have")  # each is looked for among all
            keys = list(parsed)
            # of keys that are given twice simdjson takes the first, orjson the last; keys with NUL it does not find
            if len(set(keys)) != len(keys) or any("\0" in key for key in keys):
                raise ValueError("keys that are read otherwise")
            return {key: self.value(parsed[key]) for key in keys}
        if isinstance(parsed, simdjson.Array):
            return self._list(parsed)
        return self._taken.get(parsed, parsed) if isinstance(parsed, str) else parsed

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
            if {(type(one), len(one)) for one in lists} != {(simdjson.Array, size)}:
                raise ValueError("not evenly nested")
            # a list among the numbers of the last axis is one more in the document
            self.lists += len(lists)
        return np.frombuffer(parsed.as_buffer(of_type="d")).reshape(shape)


def _without_long_lists(raw: bytes, taken: dict[str, NDArray[np.float64]]) -> bytes:
    """Take the long lists of numbers out and leave a string for each, which is its key in `taken`.

    Inside of a string that would be no JSON any more.
    """
    kept: list[bytes] = []
    done = 0
    for start, stop in _runs(raw):
        name = f"{_STAND_IN}{len(taken)}"
        taken[name] = _array(raw[start:stop])
        kept += [raw[done:start], b'"%b"' % name.encode()]
        done = stop
    return b"".join([*kept, raw[done:]])


def _runs(raw: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of each long list in which there is no string and no object."""
    at = dict.fromkeys(b'"{}', -1)
    start = raw.find(b"[")
    for _ in range(_MOST_RUNS):
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
    raise ValueError("more than fields are made of")


def _array(text: bytes) -> NDArray[np.float64]:
    """Nested lists of numbers, parsed in pieces. Raises ValueError or TypeError unless they are one array."""
    parts, skeleton, depth, start = [], [], 0, 0
    while start < len(text):
        cut = text.find(b",", start + _PIECE)
        stop = len(text) if cut < 0 else cut
        piece = text[start:stop]
        after = depth + piece.count(b"[") - piece.count(b"]")
        if not (1 <= after <= MAX_RANK if stop < len(text) else after == 0):
            raise ValueError("brackets do not match, or are too many")
        # a piece is JSON once it has the brackets that are open at its ends, and so is the whole if all are
        parsed = _parsed(b"[" * depth + piece + b"]" * after)
        parts.append(np.frombuffer(parsed.as_buffer(of_type="d")))
        del parsed
        skeleton.append(piece.translate(None, _NUMBER_OR_SPACE))
        depth, start = after, stop + 1
    array = np.concatenate(parts)
    shape = _shape(b",".join(skeleton))
    if array.size != math.prod(shape):
        raise ValueError("not evenly nested")
    return array.reshape(shape)


def _shape(skeleton: bytes) -> tuple[int, ...]:
    """Of nested lists whose brackets and commas alone are left. Raises ValueError unless they are evenly nested."""
    rank = len(skeleton) - len(skeleton.lstrip(b"["))
    shape: list[int] = []
    inner = b""
    for level in range(rank):
        start = rank - 1 - level
        stop = skeleton.find(b"]" * (level + 1), start) + level + 1
        size = (stop - start - 1) // (len(inner) + 1)
        inner = b"[%b]" % (size * (inner + b","))[:-1]
        shape.insert(0, size)
    if rank > MAX_RANK or inner != skeleton:
        raise ValueError("not evenly nested")
    return tuple(shape)


def _written(array: NDArray[np.float32]) -> Iterator[bytes]:
    if array.size <= _PIECE_VALUES:
        yield orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
        return
    rows = max(1, _PIECE_VALUES // (array.size // len(array)))
    for start in range(0, len(array), rows):
        yield b"," if start else b"["
        part = array[start : start + rows]
        if len(part) == 1 and part.ndim > 1:
            yield from _written(part[0])
        else:
            yield orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    yield b"]"
