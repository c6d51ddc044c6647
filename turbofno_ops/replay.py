"""Recording of a function's PyTorch calls for one shape, replayed without the Python interpreter.

A small network on a CPU spends a quarter of its time or more in Python. Its PyTorch calls for one shape are the same every
time: they are recorded, made into a TorchScript graph and run by PyTorch's executor. Results are bitwise equal, which is
checked before the first use.

The graph has its own compilation unit, because the result of `torch.jit.trace` is never freed. Weights and tables are its
arguments, not constants, so that they are not copied.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode

from turbofno_ops._implementations import implementation_of
from turbofno_ops.dispatch import last_choice, record

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]

_WARM_RUNS = 3
"""TorchScript profiles the first run and optimises in the next."""
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
        "_is_view",
        "is_floating_point",
    }
)
"""Calls that neither return nor write a tensor. Their results are constants in later calls."""


class Unrecordable(RuntimeError):
    """Raised if a function does something that cannot be replayed; the message says what."""


class Replay:
    """A function recorded for one shape, callable with tensors of the shapes and dtypes of the examples.

    The function is run a few times in inference mode. Its PyTorch calls must not depend on the values of tensors. It reads
    weights at each call, but those that it was recorded with: not others that replace them, as `load_state_dict` does with
    `assign=True`.

    Args:
        function: Takes tensors and returns a tuple of tensors.
        examples: Its arguments.

    Raises:
        TypeError: `examples` is no list of tensors.
        Unrecordable: Its calls cannot be recorded, it returns no tuple of tensors, or the replay is not bitwise equal.

    Example:
        >>> replay = Replay(lambda x: (torch.relu(x) + 1,), [torch.randn(3)])
        >>> with torch.inference_mode():
        ...     replay(torch.tensor([-1.0, 0.0, 2.0]))
        (tensor([1., 1., 3.]),)
    """

    def __init__(self, function: Function, examples: Sequence[torch.Tensor]) -> None:
        if not isinstance(examples, Sequence) or not all(map(torch.is_tensor, examples)):
            raise TypeError(
                f"Replay: examples must be a list of tensors, as in Replay(function, [x]), not {_kind(examples)}"
            )
        self._expected = [(example.shape, example.dtype) for example in examples]
        with torch.inference_mode():
            # warm-up, so that tables made at the first call are not recorded
            function(*examples)
            recorder = _Recorder(examples)
            with recorder:
                results = function(*examples)
            if not isinstance(results, tuple | list) or not all(map(torch.is_tensor, results)):
                raise Unrecordable(
                    f"it must return a tuple of tensors, as in `return (y,)`, not {_kind(results)}"
                )
            self._choice = last_choice()
            self._constants = recorder.constants()
            self._function, self._unit = _compile(recorder, results, examples, self._constants)
            for _ in range(_WARM_RUNS):
                self(*examples)
            others = [_other(example) for example in examples]
            pairs = zip(self(*others), function(*others), strict=True)
            if not all(_bitwise_equal(ours, theirs) for ours, theirs in pairs):
                raise Unrecordable(
                    "the replay of other inputs is not bitwise equal to the function"
                )

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """Return the function's result. Call it in inference mode only.

        Raises:
            ValueError: Inputs of other shapes or dtypes than the examples.
        """
        # sizes are constants of the recorded calls, so other shapes may give wrong results
        if [(x.shape, x.dtype) for x in inputs] != self._expected:
            raise ValueError(
                f"the function was recorded for {_described(self._expected)}, got "
                f"{_described((x.shape, x.dtype) for x in inputs)}; record another Replay for these"
            )
        results: Tensors = self._function(*inputs, *self._constants)
        if self._choice is not None:
            record(self._choice)
        return results


class _TensorRef(NamedTuple):
    """A tensor among recorded arguments, by its number."""

    number: int


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    results: list[int]


class _Recorder(TorchFunctionMode):
    """Records every PyTorch call that returns or writes a tensor."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.external: list[int] = []
        """Numbers of tensors that the function neither got nor computed: weights, tables."""
        self.count = 0
        self._refs: dict[int, _TensorRef] = {}
        self._alive: list[torch.Tensor] = []
        """All recorded tensors, kept alive because the id of a freed tensor may be reused."""
        for tensor in inputs:
            self._new(tensor)

    def constants(self) -> Tensors:
        return tuple(self._alive[number] for number in self.external)

    def ref(self, tensor: torch.Tensor) -> _TensorRef:
        """Return the reference of a tensor; an unknown one becomes external."""
        ref = self._refs.get(id(tensor))
        if ref is None:
            ref = self._new(tensor)
            self.external.append(ref.number)
        return ref

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if isinstance(func, OpOverload | OpOverloadPacket):
            implementation = implementation_of(func)
            if implementation is not None:
                with self:
                    return implementation(*args, **kwargs)
        result = func(*args, **kwargs)
        made: list[torch.Tensor] = []
        _map_tensors(result, made.append)
        name = getattr(func, "__name__", str(func))
        if made or name == "__setitem__":
            given = _map_tensors(args, self.ref), _map_tensors(kwargs, self.ref)
            numbers = [(self._refs.get(id(one)) or self._new(one)).number for one in made]
            self.calls.append(_Call(func, *given, numbers))
        elif name not in _QUERIES:
            raise Unrecordable(f"{name} returns no tensor")
        return result

    def _new(self, tensor: torch.Tensor) -> _TensorRef:
        ref = self._refs[id(tensor)] = _TensorRef(self.count)
        self._alive.append(tensor)
        self.count += 1
        return ref


def _compile(
    recorder: _Recorder,
    results: Sequence[torch.Tensor],
    examples: Sequence[torch.Tensor],
    constants: Tensors,
) -> tuple[Callable[..., Tensors], object]:
    """Return the recorded calls as a TorchScript function of inputs and constants, and the object that owns it."""
    first = [*range(len(examples)), *recorder.external]
    last = [recorder.ref(result).number for result in results]
    if len(recorder.external) > len(constants):
        raise Unrecordable("a result was not computed")

    def run(*given: torch.Tensor) -> Tensors:
        values: list[Any] = [None] * recorder.count
        for number, value in zip(first, given, strict=True):
            values[number] = value
        for call in recorder.calls:
            made: list[torch.Tensor] = []
            _map_tensors(
                call.function(*_resolve(call.args, values), **_resolve(call.kwargs, values)),
                made.append,
            )
            for number, value in zip(call.results, made, strict=True):
                values[number] = value
        return tuple(values[number] for number in last)

    with warnings.catch_warnings():
        # tracer warnings do not apply: only recorded calls are traced, and the result is checked
        warnings.simplefilter("ignore")
        graph, _ = torch._C._create_graph_by_tracing(
            run, (*examples, *constants), lambda _: "", True, False
        )
    unit = torch._C.CompilationUnit()
    return unit.create_function("replay", graph), unit


def _map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Replace the tensors in nested sequences and dictionaries."""
    return _map_nested(value, torch.Tensor, change)


def _resolve(value: Any, values: Sequence[Any]) -> Any:
    """Replace the references in nested sequences and dictionaries by tensors."""
    return _map_nested(value, _TensorRef, lambda ref: values[ref.number])


def _map_nested(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    # before tuples, because a reference is a tuple
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list):
        return [_map_nested(one, kind, change) for one in value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(_map_nested(one, kind, change) for one in value)
    if isinstance(value, dict):
        return {name: _map_nested(one, kind, change) for name, one in value.items()}
    return value


def _other(example: torch.Tensor) -> torch.Tensor:
    """Return another input; the same numbers if they are integers or booleans, which may be indices or masks."""
    if example.is_floating_point() or example.is_complex():
        return torch.randn_like(example)
    return example.clone()


def _kind(values: object) -> str:
    """Return the type of a value, with those of its elements."""
    kind = type(values).__name__
    if isinstance(values, tuple | list):
        kind += f" of {', '.join(type(one).__name__ for one in values)}"
    return kind


def _described(tensors: Iterable[tuple[torch.Size, torch.dtype]]) -> str:
    return ", ".join(f"{list(shape)} of {dtype}" for shape, dtype in tensors) or "no tensors"


def _bitwise_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if both are bitwise equal; all NaNs count as equal."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one.nan_to_num(), other.nan_to_num()
    )
