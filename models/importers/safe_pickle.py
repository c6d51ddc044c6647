"""An interpreter of pickles as data: it imports nothing and calls no function that a file names.

A pickle is a program. Its dangerous instructions look up a name (GLOBAL), or call or configure the result (REDUCE,
NEWOBJ, BUILD, ..). Here a name becomes a `Named`, a pair of strings, if `models/importers/allowed_names.py` lists
it; other names are refused. One exception is neuraloperator's activation, which may have any name, so that the error
can say which, and the user's setting replace it. A call of a `Named` runs one of our builders, chosen by the exact name (tensors, dicts,
sets), or creates a `Stub` that records the arguments. No other call is possible.
"""

from __future__ import annotations

import io
import pickletools
import reprlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from turbofno.models.importers.allowed_names import is_allowed, may_name_activation
from turbofno.models.importers.refusal import SAVE_TENSORS, ImportRefused

# Instructions and copied items. A training state of ten thousand tensors has a third of the limit.
MAX_STEPS = 1_000_000
MAX_INTEGER_BYTES = 255

_Opcode = tuple[pickletools.OpcodeInfo, Any, int | None]
Builder = Callable[..., Any]


class Source(Protocol):
    """A binary stream positioned at the start of a pickle."""

    def read(self, size: int = -1, /) -> bytes: ...
    def readline(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Named:
    """The name of a class or function in a file; it is never imported."""

    module: str
    name: str

    @property
    def qualified(self) -> str:
        """Module and name, such as `torch.nn.modules.conv.Conv2d`."""
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Stub:
    """Record of an object of a foreign class: its arguments, attributes and items."""

    cls: Named
    args: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)

    def __repr__(self) -> str:
        # Objects may refer to each other, and printing them all may not end.
        return f"<{self.cls.qualified}>"


_NOTHING_RUN = (
    "nothing was run. If the file is your own, save its state dict, torch.save(model.state_dict(), path); if that is "
    f"refused, too, save the tensors only: {SAVE_TENSORS}"
)
# neuraloperator's constructor argument, which every state dict holds in its entry `_metadata`
_ACTIVATION = "non_linearity"


class _Mark:
    """The stack entry of a MARK opcode."""


_MARK = _Mark()

_VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set,
}  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickle(
    source: Source | bytes,
    *,
    builders: dict[str, Builder] | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """The value of the pickle at the start of `source`: plain data, `Named` and `Stub`.

    `builders` maps qualified names to our functions that replace their calls; `persistent` resolves persistent
    ids (torch's storages).

    Raises:
        ImportRefused: a name that is not listed, a malformed, truncated or oversized pickle.
    """
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        return _Machine(builders or {}, persistent).run(stream)
    except ImportRefused:
        raise
    except RecursionError as error:
        raise ImportRefused("the pickle is nested too deeply for a checkpoint") from error
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
        RuntimeError,
    ) as error:
        raise ImportRefused(f"the pickle is damaged or truncated: {error}") from error


class _Machine:
    """The pickle virtual machine: a stack, a memo, and a method for each kind of opcode."""

    def __init__(
        self, builders: dict[str, Builder], persistent: Callable[[Any], Any] | None
    ) -> None:
        self._builders = builders
        self._persistent = persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._steps = 0

    def run(self, stream: Source) -> Any:
        for opcode, argument, _ in _opcodes(stream):
            self._count(1)
            name = opcode.name
            if name == "STOP":
                value = self._stack.pop()
                _refuse_explosion(value)
                return value
            self._step(name, argument)
        raise ImportRefused("the pickle is truncated: it has no STOP")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            if isinstance(argument, int) and argument.bit_length() > 8 * MAX_INTEGER_BYTES:
                raise ImportRefused(f"the pickle has an integer of {argument.bit_length():,} bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            taken = [stack.pop() for _ in range(_TUPLES[name])]
            stack.append(tuple(reversed(taken)))
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("PROTO", "FRAME"):
            pass
        else:
            handler = getattr(self, f"_do_{name.lower()}", None)
            if handler is None:
                raise ImportRefused(
                    f"the pickle uses the instruction {name}, which is not supported"
                )
            handler(argument)

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise ImportRefused(
                f"the pickle takes more than {MAX_STEPS:,} steps, too many for a checkpoint; {_NOTHING_RUN}"
            )

    def _count_copied(self, value: Any) -> None:
        """Count the items that a call copies from a value; a pickle can repeat such calls cheaply."""
        if isinstance(value, str | bytes):
            self._count(len(value) // 64)
        elif isinstance(value, tuple | list | dict | set | frozenset):
            self._count(len(value))

    def _pop_to_mark(self) -> list[Any]:
        items: list[Any] = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        items.reverse()
        return items

    # Containers

    def _do_list(self, _: Any) -> None:
        self._stack.append(self._pop_to_mark())

    def _do_tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def _do_dict(self, _: Any) -> None:
        items = self._pop_to_mark()
        self._stack.append({})
        self._set_items(items)

    def _do_frozenset(self, _: Any) -> None:
        self._stack.append(frozenset(map(_key, self._pop_to_mark())))

    def _do_append(self, _: Any) -> None:
        self._extend([self._stack.pop()])

    def _do_appends(self, _: Any) -> None:
        self._extend(self._pop_to_mark())

    def _do_additems(self, _: Any) -> None:
        items = self._pop_to_mark()
        target = self._stack[-1]
        if not isinstance(target, set):
            raise ImportRefused("the pickle is damaged: set items without a set")
        target.update(map(_key, items))

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, Stub):
            target = target.items
        if not isinstance(target, list):
            raise ImportRefused("the pickle is damaged: list items without a list")
        target.extend(items)

    def _do_setitem(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set_items([key, value])

    def _do_setitems(self, _: Any) -> None:
        self._set_items(self._pop_to_mark())

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        pairs = zip(items[::2], items[1::2], strict=True)
        if isinstance(target, Stub):
            target.items.extend(pairs)
        elif isinstance(target, dict):
            target.update((_key(key), value) for key, value in pairs)
        else:
            raise ImportRefused("the pickle is damaged: dict items without a dict")

    # Stack and memo

    def _do_pop(self, _: Any) -> None:
        self._stack.pop()

    def _do_pop_mark(self, _: Any) -> None:
        self._pop_to_mark()

    def _do_dup(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def _do_put(self, argument: int) -> None:
        self._memo[argument] = self._stack[-1]

    _do_binput = _do_long_binput = _do_put

    def _do_memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _do_get(self, argument: int) -> None:
        self._stack.append(self._memo[argument])

    _do_binget = _do_long_binget = _do_get

    # Names and calls

    def _do_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._push_name(module, name)

    def _do_stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._push_name(module, name)

    def _push_name(self, module: Any, name: Any) -> None:
        # The value of a dict's entry follows its key.
        key = self._stack[-1] if self._stack else None
        self._stack.append(
            _named(module, name, is_activation=isinstance(key, str) and key == _ACTIVATION)
        )

    def _do_reduce(self, _: Any) -> None:
        args, target = self._stack.pop(), self._stack.pop()
        self._stack.append(self._call(target, args))

    def _do_newobj(self, _: Any) -> None:
        self._do_reduce(None)

    def _do_newobj_ex(self, _: Any) -> None:
        keywords, args, target = (self._stack.pop() for _ in range(3))
        if keywords:
            raise ImportRefused(
                "the pickle makes an object with keyword arguments, which is not supported"
            )
        self._stack.append(self._call(target, args))

    def _do_obj(self, _: Any) -> None:
        target, *args = self._pop_to_mark()
        self._stack.append(self._call(target, tuple(args)))

    def _do_inst(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(self._call(_named(module, name), tuple(self._pop_to_mark())))

    def _call(self, target: Any, args: Any) -> Any:
        if not isinstance(target, Named):
            raise ImportRefused(f"the pickle calls a {type(target).__name__}; nothing was run")
        if not isinstance(args, tuple):
            raise ImportRefused(
                f"the pickle is damaged: the arguments of {target.qualified} are not a tuple"
            )
        if target.qualified == "copyreg._reconstructor" and isinstance(args[0], Named):
            return self._call(args[0], ())
        builder = self._builders.get(target.qualified) or BUILDERS.get(target.qualified)
        if builder is not None:
            for argument in args:
                self._count_copied(argument)
            return builder(*args)
        return Stub(target, args)

    def _do_build(self, _: Any) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        if isinstance(target, Stub):
            for part in state if isinstance(state, tuple) else (state,):
                self._count_copied(part)
            target.attributes.update(_attributes(state))
        elif not isinstance(target, dict):
            # The state of a dict has only attributes such as torch's `_metadata`, which are dropped.
            raise ImportRefused(
                f"the pickle sets the state of a {type(target).__name__}; nothing was run"
            )

    def _do_persid(self, argument: str) -> None:
        self._stack.append(self._resolve(argument))

    def _do_binpersid(self, _: Any) -> None:
        self._stack.append(self._resolve(self._stack.pop()))

    def _resolve(self, identity: Any) -> Any:
        if self._persistent is None:
            raise ImportRefused("the pickle refers to data outside itself")
        return self._persistent(identity)


def _opcodes(stream: Source) -> Iterator[_Opcode]:
    # pickletools only reads the arguments, and checks their lengths against the stream
    return pickletools.genops(stream)  # type: ignore[arg-type]


def _named(module: Any, name: Any, *, is_activation: bool = False) -> Named:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ImportRefused("the pickle is damaged: a name is not text")
    listed = is_allowed(module, name)
    if not listed and not (is_activation and may_name_activation(module, name)):
        raise ImportRefused(
            f"the file refers to {module}.{name}, which is not on the list of names in FNO checkpoints; {_NOTHING_RUN}"
        )
    return Named(module, name)


def _refuse_explosion(value: Any) -> None:
    """Refuse containers that share parts so often that, expanded, they have more than MAX_STEPS items.

    Comparing, printing or walking such a value would not end.
    """
    sizes: dict[int, int] = {}
    pending = [(value, False)]
    while pending:
        item, inside_known = pending.pop()
        if inside_known:
            sizes[id(item)] = 1 + sum(sizes[id(part)] for part in _parts(item))
            if sizes[id(item)] > MAX_STEPS:
                raise ImportRefused(
                    "the pickle has lists or dicts that contain each other over and over"
                )
        elif id(item) not in sizes:
            # A stub counts as one item. A container that is met before its size is known contains itself,
            # so its preliminary size is the limit.
            sizes[id(item)] = 1 if isinstance(item, Stub) else MAX_STEPS
            if not isinstance(item, Stub):
                pending.append((item, True))
            pending += [(part, False) for part in _parts(item) if id(part) not in sizes]


def _parts(value: Any) -> Iterable[Any]:
    """The containers and stubs directly inside a container or stub."""
    if isinstance(value, Stub):
        inside: Iterable[Any] = (value.args, value.attributes, value.items)
    elif isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list | tuple):
        inside = value
    else:
        inside = ()
    return (part for part in inside if isinstance(part, dict | list | tuple | Stub))


_PLAIN_KEYS = (str, bytes, int, float, bool, type(None), Named)
# Tensors are keys in optimisers that were saved whole.
_BY_IDENTITY: tuple[Any, ...] = (object.__hash__, Tensor.__hash__)


def _key(value: Any) -> Any:
    """Check a dict key or set item; hashing nested tuples could take exponential time."""
    if isinstance(value, _PLAIN_KEYS) or type(value).__hash__ in _BY_IDENTITY:
        return value
    if isinstance(value, tuple) and all(isinstance(item, _PLAIN_KEYS) for item in value):
        return value
    raise ImportRefused(f"the pickle has a dict key or set item of type {type(value).__name__}")


def _attributes(state: Any) -> dict[str, Any]:
    """The attributes in an object's state, which is a dict, a (dict, slots) pair, or anything else."""
    if (
        isinstance(state, tuple)
        and len(state) == 2
        and all(isinstance(s, dict | None) for s in state)
    ):
        return {k: v for part in state if part for k, v in part.items() if isinstance(k, str)}
    if isinstance(state, dict):
        return {k: v for k, v in state.items() if isinstance(k, str)}
    return {"__state__": state}


def _ordered_dict(items: Any = ()) -> OrderedDict[Any, Any]:
    return OrderedDict((_key(key), value) for key, value in items)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """`_codecs.encode`, with which protocol 2 writes bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise ImportRefused(
            f"the pickle has bytes in the encoding {reprlib.repr(encoding)}, expected latin1"
        )
    return text.encode("latin1")


def _attribute(owner: Any, name: Any) -> Named | Stub:
    """The name of a torch function such as torch.tanh, which is pickled as getattr of a torch class.

    Of a class or object of torch.optim a record: the state of OneCycleLR in older releases holds its function.
    """
    if owner == Named("torch._C", "_VariableFunctionsClass"):
        return _named("torch._VariableFunctions", name)
    cls = owner.cls if isinstance(owner, Stub) else owner
    if isinstance(cls, Named) and cls.module.startswith("torch.optim."):
        return Stub(Named("builtins", "getattr"), (owner, name))
    raise ImportRefused(f"the pickle calls getattr; {_NOTHING_RUN}")


# Harmless calls, by their names in files; protocol 2 writes __builtin__ for builtins.
BUILDERS: dict[str, Builder] = {
    "collections.OrderedDict": _ordered_dict,
    "collections.defaultdict": lambda *_: {},
    "_codecs.encode": _encode,
}
for _module in ("builtins", "__builtin__"):
    BUILDERS |= {
        f"{_module}.getattr": _attribute,
        # empty bytes
        f"{_module}.bytes": lambda: b"",
        f"{_module}.set": lambda items=(): {_key(item) for item in items},
        f"{_module}.frozenset": lambda items=(): frozenset(_key(item) for item in items),
        f"{_module}.slice": lambda *bounds: tuple(bounds),
        f"{_module}.complex": lambda real, imag: complex(real, imag),
    }
