"""Expensive pickles and false tensor geometries are refused; valid pickles are read as torch.load reads them."""

from __future__ import annotations

import io
import pickle
import struct
import time
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from turbofno.models.importers import safe_pickle, torch_file
from turbofno.models.importers.detect import read_checkpoint
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.safe_pickle import read_pickle
from turbofno.models.importers.torch_file import module_state, read_torch_file


def saved(content: object, *, legacy: bool = False) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


class Rebuilds:
    """An object that pickles as a tensor over a storage of 4 floats, with any geometry."""

    def __init__(self, offset: object, size: object, stride: object) -> None:
        self.geometry = offset, size, stride

    def __reduce__(self) -> object:
        storage = torch.zeros(4).untyped_storage()
        typed = torch.storage.TypedStorage(
            wrap_storage=storage, dtype=torch.float32, _internal=True
        )
        return torch._utils._rebuild_tensor_v2, (typed, *self.geometry, False, OrderedDict())


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "geometry",
    [
        (0, (10**6, 10**6), (0, 0)),
        (0, (5,), (1,)),
        (3, (2,), (1,)),
        (-1, (2,), (1,)),
        (0, (2,), (-1,)),
        (0, (2, 2), (1,)),
        (0, (2**63, 2**63), (2**63, 1)),
        (0, (2.5,), (1,)),
        ("0", (2,), (1,)),
    ],
)
def test_tensor_outside_its_storage_is_refused(geometry: tuple[object, ...], legacy: bool) -> None:
    with pytest.raises(ImportRefused, match="a tensor of shape"):
        read_torch_file(saved({"weight": Rebuilds(*geometry)}, legacy=legacy), "file")


def test_the_same_storage_serves_a_tensor_that_fits() -> None:
    found = read_torch_file(saved({"weight": Rebuilds(1, (3,), (1,))}), "file")
    assert torch.equal(found["weight"], torch.zeros(3))


def test_storage_of_an_unexpected_length_is_refused() -> None:
    content = saved({"weight": torch.zeros(1000)}, legacy=True)
    for cut in (content[:-1], content + b"x"):
        try:
            assert read_torch_file(cut, "file")["weight"].shape == (1000,)
            assert len(cut) > len(content)
        except ImportRefused:
            assert len(cut) < len(content)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (b"\x80\x02\x8b" + struct.pack("<i", 300) + b"\x01" * 300 + b".", "an integer of"),
        (b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".", "damaged or truncated"),
        (b"L" + b"9" * 100_000 + b"L\n.", "damaged or truncated"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.", "damaged or truncated"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (b"\x80\x02Pname\n.", "refers to data outside"),
        (b"\x80\x02K\x01K\x02\x86R.", "damaged or truncated|calls a"),
        (b"\x80\x02}(K\x01K\x02u", "truncated"),
        (b"", "truncated"),
        (b"\x80\x02h\x07.", "damaged or truncated"),
        (b"ccollections\nOrderedDict\n(dVx\nK\x01sb.", "sets the state of a Named"),
    ],
)  # fmt: skip
def test_program_is_refused(program: bytes, says: str) -> None:
    with pytest.raises(ImportRefused, match=says):
        read_pickle(program)


def test_a_far_memo_index_takes_no_memory() -> None:
    assert read_pickle(b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b".") == []


def test_too_many_instructions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_pickle, "MAX_STEPS", 1000)
    assert read_pickle(pickle.dumps([1] * 900))
    with pytest.raises(ImportRefused, match="more than 1,000 steps"):
        read_pickle(pickle.dumps([1] * 2000))


def doubling(levels: int, wrap: bytes) -> bytes:
    """A tuple of the same tuple twice, `levels` deep: 2^levels leaves in a few bytes."""
    return b"\x80\x02)" + b"2\x86" * levels + wrap


@pytest.mark.parametrize("legacy", [False, True])
def test_nested_sharing_takes_no_exponential_time(legacy: bool, tmp_path: Path) -> None:
    shared: object = ()
    for _ in range(60):
        shared = (shared, shared)
    (tmp_path / "model.pt").write_bytes(saved({"x": shared}, legacy=legacy))
    started = time.monotonic()
    with pytest.raises(ImportRefused, match="over and over"):
        read_checkpoint(tmp_path / "model.pt")
    with pytest.raises(ImportRefused, match="a dict key"):
        read_pickle(b"\x80\x02}" + doubling(60, b"K\x01s.")[2:])
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("legacy", [False, True])
def test_deep_nesting_ends_in_a_refusal(legacy: bool, tmp_path: Path) -> None:
    deep = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    content = saved([], legacy=legacy)
    stream = io.BytesIO()
    if legacy:
        content = content.replace(pickle.dumps([], 2), deep, 1)
    else:
        import zipfile

        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("m/data.pkl", deep)
        content = stream.getvalue()
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(ImportRefused, match=r"nested too deeply|a list"):
        read_checkpoint(tmp_path / "model.pt")


def test_a_module_inside_itself_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model._modules["again"] = model
    with pytest.raises(ImportRefused, match="occurs twice"):
        module_state(read_torch_file(saved(model), "file"))


def test_modules_that_share_a_long_list_of_modules_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_file, "MAX_MODULES", 1000)
    model = torch.nn.Sequential(*(torch.nn.Sequential() for _ in range(60)))
    shared = {str(i): torch.nn.Identity() for i in range(60)}
    for part in model:
        part._modules = shared
    with pytest.raises(ImportRefused, match="more than 1,000 modules"):
        module_state(read_torch_file(saved(model), "file"))


@pytest.mark.parametrize("legacy", [False, True])
def test_valid_content_is_read_as_by_torch(legacy: bool) -> None:
    base = torch.randn(6, 5, dtype=torch.complex64)
    content = {
        "tensors": OrderedDict(
            transposed=base.T,
            part=base[1:4, ::2],
            scalar=torch.tensor(3.5),
            empty=torch.empty(0, 3),
            half=torch.randn(3).half(),
            bfloat=torch.randn(3).bfloat16(),
            integers=torch.arange(5),
            flags=torch.tensor([True, False]),
            parameter=torch.nn.Parameter(torch.randn(2)),
        ),
        "plain": [1, -(2**70), 2.5, "text", b"bytes", None, True, (1, (2, 3)), {4, 5}],
        "size": base.shape,
    }
    expected = torch.load(io.BytesIO(saved(content, legacy=legacy)), weights_only=False)
    found = read_torch_file(saved(content, legacy=legacy), "file")
    assert found["plain"] == expected["plain"]
    assert found["size"] == (6, 5)
    assert list(found["tensors"]) == list(expected["tensors"])
    for name, tensor in expected["tensors"].items():
        assert found["tensors"][name].dtype == tensor.dtype
        assert torch.equal(found["tensors"][name], tensor.detach()), name
