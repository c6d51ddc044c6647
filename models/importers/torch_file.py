"""Reader of torch.save files, zip and legacy: state dicts, training states and modules, without running code."""

from __future__ import annotations

import io
import reprlib
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from turbofno.models.core.stand_in import START_BYTES, stand_in
from turbofno.models.importers.archive import Archive, is_zip
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.safe_pickle import Builder, Named, Stub, read_pickle

# The pickle in a zip checkpoint holds names and shapes; the numbers are other members.
MAX_PICKLE_BYTES = 64 << 20
# A network of a thousand layers has a twentieth of this.
MAX_MODULES = 200_000
_MAX_AXES = 16
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001

_STORAGE_DTYPES = {
    "UntypedStorage": torch.uint8,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}


@dataclass(eq=False, slots=True)
class _Storage:
    """A storage of a pickle; `content` is None until its bytes are read."""

    dtype: torch.dtype
    elements: int
    content: Tensor | None = None


@dataclass(eq=False, slots=True)
class _Lazy:
    """A tensor in a legacy file, whose storage is read later."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    flags: Any = None


def read_torch_file(source: Path | bytes, label: str = "") -> Any:
    """The content of a torch.save file: dicts, lists, tensors on the CPU, and `Named` and `Stub` for the rest.

    `source` is a path or the file's bytes; `label` names it in error messages. A Parameter becomes a tensor, a module
    a stub (see `module_state`).

    Raises:
        ImportRefused: not a torch.save file, a damaged one, or one with a name that is not listed.
        FileNotFoundError: the file does not exist.
    """
    label = label or str(source)
    try:
        with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as file:
            zipped = is_zip(file)
        return _read_zip(source, label) if zipped else _read_legacy(source)
    except ImportRefused as error:
        text = str(error)
        raise ImportRefused(text if text.startswith(label) else f"{label}: {text}") from error
    except RecursionError as error:
        raise ImportRefused(f"{label}: nested too deeply for a checkpoint") from error


def module_state(module: Stub) -> dict[str, Tensor]:
    """The state dict of a pickled module: its parameters and buffers by dotted name."""
    state = {}
    for prefix, stub in _submodules(module):
        for kind in ("_parameters", "_buffers"):
            tensors = _members(stub, kind)
            state.update({prefix + name: t for name, t in tensors.items() if isinstance(t, Tensor)})
    return state


def submodules(module: Stub) -> dict[str, Stub]:
    """The submodules of a pickled module by dotted path; "" is the module itself."""
    return {prefix.removesuffix("."): stub for prefix, stub in _submodules(module)}


def _submodules(module: Stub) -> Iterator[tuple[str, Stub]]:
    pending = [("", module)]
    seen = set()
    count = 0
    while pending:
        prefix, stub = pending.pop()
        children = _members(stub, "_modules")
        # A leaf such as an activation may be shared; a shared module with submodules might not end.
        if id(stub) in seen and children:
            raise ImportRefused(
                f"the module {prefix or '(root)'} {stub.cls.qualified} occurs twice in the network: "
                "shared layers are not supported"
            )
        count += 1
        if count > MAX_MODULES:
            raise ImportRefused(f"the network has more than {MAX_MODULES:,} modules")
        seen.add(id(stub))
        yield prefix, stub
        pending += [
            (f"{prefix}{name}.", child)
            for name, child in reversed(children.items())
            if isinstance(child, Stub) and child.attributes.get("_modules") is not None
        ]


def _members(module: Stub, kind: str) -> dict[str, Any]:
    members = module.attributes.get(kind) or {}
    if not isinstance(members, dict) or not all(isinstance(name, str) for name in members):
        raise ImportRefused(f"the module {module.cls.qualified} has {kind} without names")
    return members


def _read_zip(source: Path | bytes, label: str) -> Any:
    with Archive(source, label) as archive:
        pickles = [name for name in archive.names if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            exported = any("/data/weights/" in name for name in archive.names)
            raise ImportRefused(
                "it is a zip file, but not of torch.save: it has no data.pkl"
                + ("; torch.export wrote it: save the network's state dict" if exported else "")
            )
        root = pickles[0].removesuffix("data.pkl")
        order = "little"
        if root + "byteorder" in archive.names:
            order = archive.read(root + "byteorder", limit=16).decode("ascii", "replace")
        if order != sys.byteorder:
            raise ImportRefused(
                f"it has {order!r} byte order, but this machine is {sys.byteorder}; save it again on such a machine"
            )
        storages: dict[str, _Storage] = {}

        def persistent(identity: Any) -> _Storage:
            dtype, key, elements = _storage_identity(identity)
            if key not in storages:
                content = archive.read(f"{root}data/{key}")
                storages[key] = _filled(_Storage(dtype, elements), content)
            elif (storages[key].dtype, storages[key].elements) != (dtype, elements):
                raise ImportRefused(f"storage {key} has two different descriptions")
            return storages[key]

        program = archive.read(pickles[0], limit=MAX_PICKLE_BYTES)
        return read_pickle(program, builders=_BUILDERS, persistent=persistent)


def _read_legacy(source: Path | bytes) -> Any:
    if isinstance(source, bytes):
        return _read_legacy_stream(io.BytesIO(source))
    with source.open("rb") as file:
        start = file.read(START_BYTES)
        if not start:
            raise ImportRefused("the file is empty")
        if instead := stand_in(start):
            raise ImportRefused(instead)
        if start.startswith(b"PK\x03\x04"):
            raise ImportRefused(
                "the file is truncated: it begins as a zip archive, but does not end as one; copy it again"
            )
        if start[:1] != b"\x80":
            raise ImportRefused(
                "not a file of torch.save; expected a checkpoint that torch.save or safetensors wrote"
            )
        # Read, not mapped: if a mapped file is truncated, its reader dies of SIGBUS.
        file.seek(0)
        return _read_legacy_stream(io.BytesIO(file.read()))


def _read_legacy_stream(stream: io.BytesIO) -> Any:
    """Read five pickles (magic number, version, machine, object, storage keys), then the storages' bytes."""
    if read_pickle(stream) != _LEGACY_MAGIC:
        raise ImportRefused("it is a pickle, but not of torch.save")
    version, machine = read_pickle(stream), read_pickle(stream)
    if version != _LEGACY_VERSION or not isinstance(machine, dict):
        raise ImportRefused(
            f"unknown version {reprlib.repr(version)} of torch.save's legacy format"
        )
    if machine.get("little_endian") is not (sys.byteorder == "little"):
        raise ImportRefused(
            "it was written on a machine of the other byte order; save it again on this one"
        )
    storages: dict[str, _Storage] = {}

    def persistent(identity: Any) -> Any:
        if isinstance(identity, tuple) and len(identity) == 4 and identity[0] == "module":
            # ("module", class, file, source): the class and its source code, which is ignored
            return identity[1]
        dtype, key, elements = _storage_identity(identity)
        return storages.setdefault(key, _Storage(dtype, elements))

    builders = {**_BUILDERS, **dict.fromkeys(_TENSOR_BUILDERS, _postponed)}
    value = read_pickle(stream, builders=builders, persistent=persistent)
    keys = read_pickle(stream)
    if not isinstance(keys, list) or set(map(str, keys)) != set(storages):
        raise ImportRefused("the file is damaged: its list of storages does not match its tensors")
    for key in keys:
        _read_legacy_storage(stream, storages[str(key)])
    return _settle(value)


def _read_legacy_storage(stream: io.BytesIO, storage: _Storage) -> None:
    header = stream.read(8)
    if len(header) != 8 or struct.unpack("<q", header)[0] != storage.elements:
        raise ImportRefused("the file is truncated, or a storage has an unexpected length")
    _filled(storage, stream.read(storage.elements * storage.dtype.itemsize))


def _storage_identity(identity: Any) -> tuple[torch.dtype, str, int]:
    """Dtype, key and number of elements out of ("storage", class, key, location, elements[, view])."""
    if not (isinstance(identity, tuple) and len(identity) in (5, 6) and identity[0] == "storage"):
        raise ImportRefused("the pickle refers to external data other than a storage")
    _, kind, key, _, elements = identity[:5]
    if len(identity) == 6 and identity[5] is not None:
        raise ImportRefused(
            "the file has storage views of torch 0.3, which are not supported; save it again with a newer torch"
        )
    dtype = _STORAGE_DTYPES.get(kind.name) if isinstance(kind, Named) else None
    if dtype is None or not isinstance(elements, int) or elements < 0:
        raise ImportRefused(f"a storage has the unknown kind {reprlib.repr(kind)}")
    if not isinstance(key, str | int) or not str(key).isalnum():
        raise ImportRefused(f"a storage has the key {reprlib.repr(key)}, expected a number")
    key = str(key)
    return dtype, key, elements


def _filled(storage: _Storage, content: bytes) -> _Storage:
    if len(content) != storage.elements * storage.dtype.itemsize:
        raise ImportRefused(
            f"damaged or truncated: a storage of {storage.elements:,} numbers of {storage.dtype} has "
            f"{len(content):,} bytes"
        )
    if storage.elements == 0:
        storage.content = torch.empty(0, dtype=storage.dtype)
    else:
        storage.content = torch.frombuffer(bytearray(content), dtype=storage.dtype)
    return storage


def _tensor(storage: Any, offset: Any, size: Any, stride: Any) -> Tensor:
    """A view of a storage, refused if it exceeds the storage or repeats its numbers."""
    if not isinstance(storage, _Storage) or storage.content is None:
        raise ImportRefused("the file has a tensor without a storage")
    if not _whole(size) or not _whole(stride) or not _whole((offset,)) or len(size) != len(stride):
        raise ImportRefused(
            f"a tensor of shape {reprlib.repr(size)} with strides {reprlib.repr(stride)}"
        )
    elements, last = 1, offset
    for extent, step in zip(size, stride, strict=True):
        elements *= extent
        last += (extent - 1) * step
    if elements and (last >= storage.elements or elements > storage.elements):
        raise ImportRefused(
            f"a tensor of shape {list(size)} in a storage of {storage.elements:,} numbers"
        )
    return storage.content.as_strided(size, stride, offset)


def _whole(values: Any) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) <= _MAX_AXES
        and all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 63 for v in values)
    )


def _rebuild(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Tensor:
    return _flagged(_tensor(storage, offset, size, stride), _flags(rest))


def _rebuild_from_bytes(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    _grad: Any,
    _hooks: Any,
    dtype: Any,
    *rest: Any,
) -> Tensor:
    """A tensor of complex half precision, which has no kind of storage: torch writes bytes."""
    if not isinstance(storage, _Storage) or storage.content is None or dtype != _COMPLEX_HALF:
        kind = dtype.qualified if isinstance(dtype, Named) else reprlib.repr(dtype)
        raise ImportRefused(
            f"a tensor of {kind} is stored as bytes, which is not supported: save it as tensor.to(torch.complex64), or float()"
        )
    numbers = storage.content.view(torch.complex32)
    view = _Storage(numbers.dtype, numbers.numel(), numbers)
    return _flagged(_tensor(view, offset, size, stride), rest[0] if rest else None)


def _postponed(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> _Lazy:
    return _Lazy(storage, offset, size, stride, _flags(rest))


def _flags(rest: tuple[Any, ...]) -> Any:
    """What torch writes after requires_grad and the hooks: {"conj": True, "neg": True} of a lazy view, or nothing."""
    return rest[2] if len(rest) > 2 else None


def _flagged(tensor: Tensor, flags: Any) -> Tensor:
    """The tensor as the view that was saved; a view, because many tensors may share one storage."""
    if not flags:
        return tensor
    numbers = tensor.is_complex() or tensor.is_floating_point()
    if not isinstance(flags, dict) or not set(flags) <= {"conj", "neg"} or not numbers:
        raise ImportRefused(
            f"a tensor of {tensor.dtype} has the unknown flags {reprlib.repr(flags)}"
        )
    if flags.get("conj"):
        tensor = tensor.conj()
    return torch._neg_view(tensor) if flags.get("neg") else tensor


def _settle(value: Any) -> Any:
    """Replace the lazy tensors in `value` by tensors, in place inside containers."""
    # Keyed by id; keeping the original prevents the reuse of its id.
    done: dict[int, tuple[Any, Any]] = {}

    def settled(item: Any) -> Any:
        if id(item) in done:
            return done[id(item)][1]
        result = item
        if isinstance(item, _Lazy):
            whole = _tensor(item.storage, item.offset, item.size, item.stride)
            result = _flagged(whole, item.flags)
        elif isinstance(item, tuple):
            result = tuple(map(settled, item))
        done[id(item)] = (item, result)
        _settle_inside(result, settled)
        return result

    return settled(value)


def _settle_inside(item: Any, settled: Callable[[Any], Any]) -> None:
    if isinstance(item, dict):
        item.update({key: settled(entry) for key, entry in item.items()})
    elif isinstance(item, list):
        item[:] = map(settled, item)
    elif isinstance(item, Stub):
        item.args = settled(item.args)
        settled(item.attributes)
        settled(item.items)


_COMPLEX_HALF = Named("torch", "complex32")
_TENSOR_BUILDERS = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2")
_BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(_TENSOR_BUILDERS, _rebuild),
    "torch._utils._rebuild_tensor_v3": _rebuild_from_bytes,
    "torch._utils._rebuild_parameter": lambda data, *_: data,
    "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
    "torch.Size": lambda sizes=(): tuple(sizes),
}
