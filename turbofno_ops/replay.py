"""What a function does to tensors of one shape, recorded once and then run without the interpreter.

A small network on a CPU spends a quarter of its time, or more, in Python, on which operation comes next. The calls that
it makes into PyTorch, with all sizes in them, are the same each time: they are kept, made into a TorchScript graph, and
run by PyTorch's own executor. The results are equal to the bit, which is checked before the first use.

The graph lives in a compilation unit of its own, because what `torch.jit.trace` makes stays in memory for ever; and
weights and tables are arguments of it, not constants, so that nothing is copied.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode

from turbofno_ops import _library
from turbofno_ops.dispatch import last_choice, record

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]

_WARM_RUNS = 3
"""TorchScript looks on for a run and optimises in the next."""
_QUERIES = frozenset(
    {
        "__get__",
        "__len__",
        "size",
        "dim",
        "numel",
        "stride",
        "is_contiguous",
        "is_complex",
        "is_floating_point",
    }
)
"""What gives no tensor and writes into none: its results have become constants of later calls."""


class Unrecordable(RuntimeError):
    """The function does what cannot be replayed; the message says what."""


class Replay:
    """Made from `function` and examples of its tensor arguments; called with tensors of the same shapes and dtypes.

    `function` must do the same whatever the values are. It is run a few times, in inference mode.

    Raises:
        Unrecordable: its calls cannot be recorded, or did not give the same to the bit when replayed.
    """

    def __init__(self, function: Function, examples: Sequence[torch.Tensor]) -> None:
        with torch.inference_mode():
            # tables that are made on the first call are not a part of it
            function(*examples)
            recorder = _Recorder(examples)
            with recorder:
                results = function(*examples)
            self._choice = last_choice()
            self._constants = recorder.constants()
            self._function, self._unit = _compiled(recorder, results, examples, self._constants)
            for _ in range(_WARM_RUNS):
                self(*examples)
            others = [torch.randn_like(example) for example in examples]
            pairs = zip(self(*others), function(*others), strict=True)
            if not all(_identical(ours, theirs) for ours, theirs in pairs):
                raise Unrecordable("other inputs gave other results than without a recording")

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """What the function would return; in inference mode only."""
        results: Tensors = self._function(*inputs, *self._constants)
        if self._choice is not None:
            record(self._choice)
        return results


class _Place(NamedTuple):
    """Stands for a tensor among recorded arguments: its number."""

    number: int


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    results: list[int]


class _Recorder(TorchFunctionMode):
    """Notes every call into PyTorch that gives tensors, or writes into one."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.outside: list[int] = []
        """Tensors that came from elsewhere: weights, tables."""
        self.count = 0
        self._places: dict[int, _Place] = {}
        self._alive: list[torch.Tensor] = []
        """All that were met: the number of one that is gone could be given to another."""
        for tensor in inputs:
            self._new(tensor)

    def constants(self) -> Tensors:
        return tuple(self._alive[number] for number in self.outside)

    def place(self, tensor: torch.Tensor) -> _Place:
        """Where a tensor stands that was made on the way, or came from elsewhere."""
        place = self._places.get(id(tensor))
        if place is None:
            place = self._new(tensor)
            self.outside.append(place.number)
        return place

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if isinstance(func, OpOverload | OpOverloadPacket):
            implementation = _library.implementation_of(func)
            if implementation is not None:
                with self:
                    return implementation(*args, **kwargs)
        result = func(*args, **kwargs)
        made: list[torch.Tensor] = []
        _tensors(result, made.append)
        name = getattr(func, "__name__", str(func))
        if made or name == "__setitem__":
            given = _tensors(args, self.place), _tensors(kwargs, self.place)
            numbers = [(self._places.get(id(one)) or self._new(one)).number for one in made]
            self.calls.append(_Call(func, *given, numbers))
        elif name not in _QUERIES:
            raise Unrecordable(f"{name} gives no tensor")
        return result

    def _new(self, tensor: torch.Tensor) -> _Place:
        place = self._places[id(tensor)] = _Place(self.count)
        self._alive.append(tensor)
        self.count += 1
        return place


def _compiled(
    recorder: _Recorder,
    results: Sequence[torch.Tensor],
    examples: Sequence[torch.Tensor],
    constants: Tensors,
) -> tuple[Callable[..., Tensors], object]:
    """The recorded calls as a TorchScript function of inputs and constants, and what keeps it alive."""
    first = [*range(len(examples)), *recorder.outside]
    last = [recorder.place(result).number for result in results]
    if len(recorder.outside) > len(constants):
        raise Unrecordable("a result was not computed")

    def run(*given: torch.Tensor) -> Tensors:
        values: list[Any] = [None] * recorder.count
        for number, value in zip(first, given, strict=True):
            values[number] = value
        for call in recorder.calls:
            made: list[torch.Tensor] = []
            _tensors(
                call.function(*_filled(call.args, values), **_filled(call.kwargs, values)),
                made.append,
            )
            for number, value in zip(call.results, made, strict=True):
                values[number] = value
        return tuple(values[number] for number in last)

    with warnings.catch_warnings():
        # of what a trace cannot follow; here nothing but the calls is left, and the result is checked
        warnings.simplefilter("ignore")
        graph, _ = torch._C._create_graph_by_tracing(
            run, (*examples, *constants), lambda _: "", True, False
        )
    unit = torch._C.CompilationUnit()
    return unit.create_function("replay", graph), unit


def _tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same nest of sequences and dictionaries, its tensors changed."""
    return _mapped(value, torch.Tensor, change)


def _filled(value: Any, values: Sequence[Any]) -> Any:
    """The same nest, a tensor in each place."""
    return _mapped(value, _Place, lambda place: values[place.number])


def _mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    # before tuples: a place is one
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list):
        return [_mapped(one, kind, change) for one in value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(_mapped(one, kind, change) for one in value)
    if isinstance(value, dict):
        return {name: _mapped(one, kind, change) for name, one in value.items()}
    return value


def _identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in every bit that says something: NaN is NaN."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one.nan_to_num(), other.nan_to_num()
    )
