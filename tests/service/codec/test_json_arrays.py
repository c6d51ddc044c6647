"""`json_arrays` reads and refuses the same as orjson with nested lists, bit for bit."""

from __future__ import annotations

import json as standard
import random
import threading
import time
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.clock import within
from tests.draws import generator
from tests.thorough import tried
from turbofno.service.codec import json, json_arrays, oip_binary
from turbofno.service.errors import BadRequest, ServiceError

ARRAYS = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5),
    elements=st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**64 - 1),
)
INDENTS = st.sampled_from([None, 0, 3])


@pytest.fixture(params=[(10**9, 10**9), (7, 3)], ids=["whole", "in pieces"])
def _arrays_of_any_length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    piece, long_list = request.param
    for name, value in {"SHORT": 0, "FEW": 0, "PIECE": piece, "LONG_LIST": long_list}.items():
        monkeypatch.setattr(json_arrays, f"_{name}", value)
    if piece < 100:
        monkeypatch.setattr(json_arrays, "_MAX_REST", 10**9)


def outcome(body: bytes) -> Any:
    """The arrays of a body, or its error."""
    try:
        return {name: (array.shape, array.tobytes()) for name, array in json.decode(body).items()}
    except ServiceError as error:
        return type(error), error.message


def test_documents_that_are_slow_in_pieces_are_read_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many_keys = b"{%s}" % b",".join(b'"%d":%d' % (n, n) for n in range(200_000))
    # simdjson would search all of these for each of them
    fewer_keys = b"{%s}" % b",".join(b'"%d":%d' % (n, n) for n in range(35_000))
    strings = orjson.dumps(["a" * 1000] * 2000)
    texts = orjson.dumps({"a": ["[1," + "2," * 5000] * 100})
    for body in (many_keys, fewer_keys, strings, texts):
        started = time.process_time()
        assert json_arrays.loads(body) == orjson.loads(body)
        within(time.process_time() - started, 0.5)


def with_orjson(body: bytes) -> Any:
    """The outcome with orjson and nested lists."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrays, "_SHORT", 10**9)
        return outcome(body)


@pytest.mark.usefixtures("_arrays_of_any_length")
@given(
    st.dictionaries(st.text('abc[]{}",:\\é\0', max_size=3), ARRAYS, min_size=1, max_size=3), INDENTS
)
@settings(max_examples=tried(60, 500))
def test_every_number_and_every_shape_is_kept(
    arrays: dict[str, np.ndarray[Any, Any]], indent: int | None
) -> None:
    body = standard.dumps(
        {"inputs": {name: array.tolist() for name, array in arrays.items()}}, indent=indent
    ).encode()
    with pytest.MonkeyPatch.context() as patch:
        if not set("[\0").intersection("".join(arrays)):
            patch.setattr(orjson, "loads", None)  # not read again as a whole
        assert outcome(body) == {
            name: (array.shape, array.tobytes()) for name, array in arrays.items()
        }


@pytest.mark.usefixtures("_arrays_of_any_length")
@given(st.data(), ARRAYS, INDENTS)
@settings(max_examples=tried(300, 3000))
def test_damaged_documents_have_the_same_errors(
    data: Any, array: np.ndarray[Any, Any], indent: int | None
) -> None:
    body = bytearray(standard.dumps({"inputs": {"u": array.tolist()}}, indent=indent).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        put = data.draw(
            st.sampled_from(
                [*'[]{},:"-+.eE0 1N', "[]", ",[", "],", "[[", "]]", "null", "1e400", "\\"]
            )
        )
        body[at : at + data.draw(st.integers(0, 2))] = put.encode()
    assert outcome(bytes(body)) == with_orjson(bytes(body))


@pytest.mark.usefixtures("_arrays_of_any_length")
@pytest.mark.parametrize(
    "value",
    [
        "[[1,2],[3]]", "[[1,2],[3],[4,5,6]]", "[[1],2]", "[1,[2]]", "[1,[2],3]", "[[[1,2],[3,4]],[[5,6]]]", "[[[1],[2]],[[3],[4],[5]]]",
        "[1,2,3],1234567,[4]", "[[]1,[]2]", "[[1]2,[3]4]", "[1,,2]", "[1,2,]", "[,1]", "[1 2]", "[]", "[[],[]]", "[[],[1]]", "[[1,2],[]]",
        '[1,"a"]', "[1,null]", "[true]", '[[1,2],"ab"]', '[[[1],[2]],"ab"]', '[[1],{"a":1}]', "[1e400]", "[NaN]", "[-]", "[01]", "[.5]",
        "[18446744073709551616,1]", "[-0,-0.0,5e-324,1e-400]", "[" * 2000, "[" * 9 + "1" + "]" * 9,
        "[" * 8 + "1" + "]" * 8, "[1]]", "[[1]", "[1]}{", '"[1,2]"', '"\\"[1,2,3]"', "7",
    ],
)  # fmt: skip
def test_lists_that_are_not_arrays_have_the_same_errors(value: str) -> None:
    for body in (
        f'{{"inputs": {{"u": {value}}}}}', f'{{"inputs": {{"u": {value}, "v": [1, 2]}}}}',
        f'{{"inputs": {{"u": [1, 2], "u": {value}}}}}', f'{{"inputs": {{"u": [1]}}, "x": {value}}}',
        f'\ufeff{{"inputs": {{"u": {value}}}}}', value,
    ):  # fmt: skip
        assert outcome(body.encode()) == with_orjson(body.encode())


LONG = f"[{'0.5,' * 400}1]"


@pytest.mark.parametrize("data", ["[1]", LONG, f"[{LONG},1]"], ids=["short", "long", "ragged"])
@pytest.mark.parametrize(
    ("document", "key"),
    [
        ('{"inputs":{"u":DATA},"inputs":{"u":[1]}}', "inputs"),
        ('{"inputs":{"u":DATA,"v":[1],"u":[2]}}', "u"),
        ('{"inputs":{"u":DATA,"\\u0075":[2]}}', "u"),
        ('{"inputs":{"u":DATA},"more":[[1,{"a:":1,"a:":2}]]}', "a:"),
        ('{"id":"[a:b]","inputs":[{"name":"input","data":DATA,"data":[1]}]}', "data"),
        (f'{{"inputs":{{"u":DATA}},"big":{10**30},"id":1,"id":2}}', "id"),
        (f'{{{",".join(f"{chr(34)}{n % 150}{chr(34)}:1" for n in range(151))},"u":DATA}}', "0"),
    ],
)
def test_a_repeated_key_is_refused_by_its_name(document: str, key: str, data: str) -> None:
    body = document.replace("DATA", data).encode()
    with pytest.raises(BadRequest, match=f'has the key "{key}" more than once'):
        json.decode(body)
    with pytest.raises(BadRequest, match=f'inference request has the key "{key}" more than once'):
        oip_binary.decode(body, header_length=None, model="m")


def test_a_refused_repeated_key_leaves_the_parser_usable() -> None:
    with pytest.raises(BadRequest) as refused:
        json.decode(f'{{"inputs":{LONG},"inputs":1}}'.encode())
    # It raises an error while an earlier result is referenced.
    json_arrays._parsed(b"[1]")
    assert "inputs" in refused.value.message


def test_objects_may_have_the_same_keys_and_colons_in_strings() -> None:
    document = {"a:": [{"b": "c:d", "e": {"b": '":'}}, {"b": 1}], "b": [[1, {"b": 2}]]}
    for more in ({}, {"data": [0.5] * 400}, {"id": "[", "data": [0.5] * 400}):
        assert json.parse_object(orjson.dumps(document | more)).keys() == (document | more).keys()


def test_the_search_for_repeated_keys_is_bounded() -> None:
    """Deep or large documents that only orjson reads are taken as it reads them: the last of two keys counts."""
    deep: Any = json.parse_object(b'{"a":' * 1000 + b'":"' + b"}" * 1000)
    while isinstance(deep, dict):
        (deep,) = deep.values()
    assert deep == ":"
    ragged = b"[[1" + b",1" * 200_000 + b"],2]"
    assert json.parse_object(b'{"b":' + ragged + b',"c":{"a":1,"a":2}}')["c"]["a"] == 2
    with pytest.raises(BadRequest, match='the key "a" more than once'):
        json.parse_object(b'{"b":' + ragged[:999] + b'1],2],"c":{"a":1,"a":2}}')


def test_short_lists_stay_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"shape": [1, 1, 64, 64], "few": [*range(64)], "names": ["u"] * 65, "id": "a", "n": 7}
    document = few | {"data": [*range(65)], "more": [{"a": [1.5] * 400}, [None]]}
    uneven = [[1], [2] * 1000]
    assert json_arrays.loads(orjson.dumps(uneven)) == uneven
    monkeypatch.setattr(orjson, "loads", None)  # not read again as a whole
    found = json_arrays.loads(orjson.dumps(document))
    assert {name: found[name] for name in few} == few
    assert found["data"].tolist() == document["data"]
    assert found["more"][0]["a"].tolist() == [1.5] * 400
    assert found["more"][1] == [None]


@pytest.mark.parametrize(
    "shape", [(3, 1, 300, 301), (2**18 + 1,), (1, 1, 1, 200_000), (70_000, 3), (2, 90_000)]
)
def test_long_documents_go_both_ways_in_pieces(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = generator().standard_normal(shape).astype(np.float32)
    long = json_arrays.dumps(values)
    written = orjson.dumps({"inputs": {"u": long, "v": [[0.5]], "w": long}})
    assert written == orjson.dumps(
        {"inputs": {"u": values, "v": [[0.5]], "w": values}}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    for piece in json_arrays.pieces(values):
        assert piece.count(b",") <= json_arrays._PIECE_VALUES
    parsed, longest = json_arrays._parsed, 0

    def noted(raw: bytes) -> Any:
        nonlocal longest
        longest = max(longest, len(raw))
        return parsed(raw)

    monkeypatch.setattr(json_arrays, "_parsed", noted)
    monkeypatch.setattr(orjson, "loads", None)  # not read again as a whole
    monkeypatch.setattr(json, "MAX_CONTAINERS", 1 << 20)
    found = json.decode(written)
    for name in ("u", "w"):
        assert np.array_equal(found[name].astype(np.float32), values)
    assert found["v"].tolist() == [[0.5]]
    assert longest < json_arrays._PIECE + 100


@pytest.mark.usefixtures("_arrays_of_any_length")
def test_threads_do_not_share_a_parser() -> None:
    wrong: list[object] = []
    seeds = [random.getrandbits(32) for _ in range(4)]

    def read(seed: int) -> None:
        values = np.random.default_rng(seed).standard_normal((20, 30))
        body = orjson.dumps({"inputs": {"u": values}}, option=orjson.OPT_SERIALIZE_NUMPY)
        for _ in range(50):
            if not np.array_equal(json.decode(body)["u"], values):
                wrong.append(seed)
            time.sleep(0)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
