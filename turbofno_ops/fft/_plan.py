"""A transform as a list of launches of the CUDA kernels: passes over axes, long axes in two steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from turbofno_ops import _native
from turbofno_ops._native import Fft, PlaneAxis, PlaneTransform
from turbofno_ops._support import A100, device_limits
from turbofno_ops.fft._rule import WHOLE_PLANES, is_cut, kernels, takes_planes
from turbofno_ops.fft._transform import KINDS, Axis, Transform, memory_order, real_of

MOST_POINTS = 2**20
"""Of an axis, in two steps."""
INPUT, RESULT, FIRST_TEMPORARY = 0, 1, 2

_MOST_LOOPS = 64
"""Launches for lines at more than two strides; above, the input is copied."""
_MOST_CHECKED = 4096
_WORD_BYTES, _WORD_VALUES = 16, 4  # complex float16 values
_HALF = 3
_PRECISIONS = {torch.float32: 0, torch.float16: _HALF}  # turbofno_precision


class Field(NamedTuple):
    """An array: its buffer, its first value, and the strides of its dimensions, in values."""

    buffer: int
    offset: int
    strides: tuple[int, ...]

    def at(self, dim: int, index: int) -> Field:
        """Return the part from `index` of `dim` on."""
        return self._replace(offset=self.offset + index * self.strides[dim])


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch. The structure has no pointers; `source` and `target` are buffers and first values."""

    kernel: str
    structure: Fft | PlaneTransform
    source: tuple[int, int]
    target: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies between complex arrays of a shape; with `clears`, the target's first so many values are set to zero before."""

    shape: tuple[int, ...]
    source: Field
    target: Field
    clears: int = 0


Step = Launch | Copy


@dataclass(slots=True)
class Plan:
    """Launches in order.

    Attributes:
        steps: Launches and copies.
        temporaries: Complex values of each temporary buffer; the first has the number FIRST_TEMPORARY.
        order: The dimensions in the order of memory; all else counts them so.
        copied: True if the input must be made contiguous in that order before.
    """

    steps: list[Step]
    temporaries: list[int]
    order: list[int]
    copied: bool


class Problem(NamedTuple):
    """The cache key of a plan. A result without strides is new, in the order of memory of the input.

    With `on_words`, both are float16 and begin at multiples of 16 bytes, the words of half_fft.
    """

    transform: Transform
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...]
    result_strides: tuple[int, ...] | None
    on_words: bool
    precision: int
    multiprocessors: int
    shared_bytes: int

    @property
    def limits(self) -> tuple[int, int, int]:
        """Return precision, multiprocessors and shared_bytes."""
        return self.precision, self.multiprocessors, self.shared_bytes


class _Refused(Exception):
    """The kernels do not support a transform; the message is the reason."""


class _Group(NamedTuple):
    """Lines at equal distances: their number, and their distances in input and result."""

    lines: int
    source: int
    target: int


def problem(x: torch.Tensor, transform: Transform, out: torch.Tensor | None = None) -> Problem:
    """Return what the plan of a transform of x, into `out` if given, depends on."""
    limits = device_limits(x.device) if x.is_cuda else A100
    precision, on_words = _PRECISIONS[real_of(x.dtype)], False
    if precision == _HALF:
        on_words = (x.data_ptr() | (0 if out is None else out.data_ptr())) % _WORD_BYTES == 0
    return Problem(
        transform,
        tuple(x.shape),
        tuple(x.stride()),
        tuple(memory_order(x)),
        None if out is None else tuple(out.stride()),
        on_words,
        precision,
        limits.multiprocessors,
        limits.shared_bytes,
    )


def refusal(x: torch.Tensor, transform: Transform) -> str | None:
    """Return the reason why the kernels do not support the transform of x, or None if they do."""
    return _considered(problem(x, transform))[0]


def takes_whole_planes(x: torch.Tensor, transform: Transform) -> bool:
    """Return True if a supported transform of x is one of whole planes."""
    return _considered(problem(x, transform))[1]


@lru_cache(_MOST_CHECKED)
def _considered(of: Problem) -> tuple[str | None, bool]:
    try:
        steps = plan_of(of).steps
    except _Refused as refused:
        return str(refused), False
    return None, [step.kernel for step in steps if isinstance(step, Launch)] == [WHOLE_PLANES]


def plan_of(of: Problem) -> Plan:
    """Return the plan of a supported transform."""
    builder = _Builder(of)
    steps = builder.steps()
    return Plan(steps, builder.temporaries, list(of.order), builder.copied)


class _Builder:
    """Makes the steps of one plan."""

    def __init__(self, of: Problem) -> None:
        self.temporaries: list[int] = []
        self.copied = False
        self._of = of
        place = {dim: at for at, dim in enumerate(of.order)}
        axes = tuple(axis._replace(dim=place[axis.dim]) for axis in of.transform.axes)
        shape = [of.shape[dim] for dim in of.order]
        strides = [of.strides[dim] for dim in of.order]
        if of.result_strides is None:
            results = _contiguous(of.transform._replace(axes=axes).shape(shape))
        else:
            results = [of.result_strides[dim] for dim in of.order]
        self._shape, self._strides, self._results, axes = _merged(shape, strides, results, axes)
        self._transform = of.transform._replace(axes=axes)
        self._passes = [
            (axis, kind)
            for axis, kind in self._transform.passes
            if (axis.points, axis.given, axis.kept, kind) != (1, 1, 1, "complex")
        ]
        if not self._passes:
            raise _Refused("a transform of one point is a copy")
        if any(axis.points > MOST_POINTS for axis in axes):
            # also beyond the kernels' 32-bit integers
            raise _Refused(f"an axis has more than {MOST_POINTS} points")

    def steps(self) -> list[Step]:
        """Return the steps."""
        planes = self._whole_planes()
        if planes is not None:
            return [Launch(WHOLE_PLANES, planes, (INPUT, 0), (RESULT, 0))]
        if self._needs_copy():
            self.copied, self._strides = True, _contiguous(self._shape)
        source = Field(INPUT, 0, tuple(self._strides))
        target = Field(RESULT, 0, tuple(self._results))
        return list(self._passes_over(source, target))

    def _whole_planes(self) -> PlaneTransform | None:
        """Return the transform of contiguous planes if their kernel takes it, else None."""
        of, shape = self._transform, self._shape
        height, width = len(shape) - 2, len(shape) - 1
        axes = {axis.dim: axis for axis in of.axes}
        if self._of.precision != 0 or axes.keys() != {height, width}:
            return None
        if of.kind != "complex" and of.axes[-1].dim != width:
            return None
        contiguous = self._strides == _contiguous(shape) and self._results == _contiguous(
            of.shape(shape)
        )
        if not contiguous or not takes_planes(of.axes):
            return None
        structure = PlaneTransform(
            planes=math.prod(shape[:-2]),
            height=PlaneAxis(*axes[height][1:]),
            width=PlaneAxis(*axes[width][1:]),
            kind=KINDS.index(of.kind),
            inverse=of.inverse,
            shared_bytes=self._of.shared_bytes,
            scale=of.scale(of.total),
        )
        return None if _native.refusal(f"{WHOLE_PLANES}_unsupported", structure) else structure

    def _needs_copy(self) -> bool:
        """Return True if the lines of the first pass are at so many strides that a copy is better than many launches."""
        axis, kind = self._passes[0]
        if kind == "real_to_complex" and self._strides[axis.dim] == 1:
            # kernels read pairs of real values where strides are even; every launch then begins at a pair
            batch = zip(self._shape, self._strides, strict=True)
            if len({stride % 2 for n, stride in batch if n > 1 and stride != 1}) > 1:
                return self._strides != _contiguous(self._shape)
        shape = [*self._shape]
        shape[axis.dim] = axis.kept
        results = self._results if len(self._passes) == 1 else _contiguous(shape)
        loops = _groups(self._shape, self._strides, results, axis.dim)
        inner_is_lines = not self._is_long(axis, kind)
        most = 2 if inner_is_lines else 1
        if len(loops) <= most or self._strides == _contiguous(self._shape):
            return False
        counts = sorted((group.lines for group in loops), reverse=True)
        return math.prod(counts[most:]) > _MOST_LOOPS

    def _passes_over(self, source: Field, target: Field) -> Iterator[Step]:
        shape = self._shape
        for at, (axis, kind) in enumerate(self._passes):
            after = [*shape]
            after[axis.dim] = axis.kept
            last = at == len(self._passes) - 1
            to = target if last else self._temporary(after, source)
            try:
                scale = self._scale(axis.points, last=last)
                steps: Iterable[Step] = list(
                    self._launches(shape, axis, kind, source, to, scale=scale)
                )
            except _Refused:
                if not self._is_long(axis, kind):
                    raise
                steps = self._in_two_steps(shape, axis, source, to, last=last)
            yield from steps
            shape, source = after, to

    def _temporary(self, shape: Sequence[int], *others: Field) -> Field:
        """Return a contiguous array in the first temporary buffer that none of `others` is in."""
        buffer = FIRST_TEMPORARY
        while any(other.buffer == buffer for other in others):
            buffer += 1
        index = buffer - FIRST_TEMPORARY
        self.temporaries += [0] * (index + 1 - len(self.temporaries))
        self.temporaries[index] = max(self.temporaries[index], math.prod(shape))
        return Field(buffer, 0, tuple(_contiguous(shape)))

    def _scale(self, points: int, *, last: bool) -> float:
        """Return the factor of a pass: in float32 the whole factor in the last one, in float16 each its own."""
        if self._of.precision != 0:
            # so that what is between the passes does not overflow
            return self._transform.scale(points)
        return self._transform.scale(self._transform.total) if last else 1.0

    def _is_long(self, axis: Axis, kind: str) -> bool:
        """Return True if the axis needs two steps where its lines are at any distances. Raises _Refused if it cannot have them."""
        structure = self._structure(axis, kind)
        reason = _kernel(structure, on_words=False)[1]
        if reason is None:
            return False
        if kind != "complex":
            raise _Refused(reason)
        if _split(axis.points, *self._of.limits) is None:
            raise _Refused(reason)
        return True

    def _structure(self, axis: Axis, kind: str) -> Fft:
        structure = _line(axis, *self._of.limits)
        structure.kind, structure.inverse = KINDS.index(kind), self._transform.inverse
        return structure

    def _launches(
        self,
        shape: Sequence[int],
        axis: Axis,
        kind: str,
        source: Field,
        target: Field,
        *,
        scale: float,
    ) -> Iterator[Launch]:
        """Yield the launches of one axis: all lines, at two strides each."""
        structure = self._structure(axis, kind)
        structure.in_point, structure.out_point = source.strides[axis.dim], target.strides[axis.dim]
        structure.scale = scale
        groups = _groups(shape, source.strides, target.strides, axis.dim)
        neighbours = _Group(1, 1, 1)
        if (groups and groups[-1].source < structure.in_point) or len(groups) > 1:
            neighbours = groups.pop()
        yield from self._looped(structure, groups, neighbours, source, target)

    def _looped(
        self,
        structure: Fft,
        groups: list[_Group],
        neighbours: _Group,
        source: Field,
        target: Field,
    ) -> Iterator[Launch]:
        """Yield launches with `neighbours` as inner lines, the largest group as outer lines, and one for each other line."""
        outer = max(groups, default=_Group(1, 1, 1))
        others = [group for group in groups if group is not outer]
        structure.outer, structure.in_outer, structure.out_outer = outer
        structure.inner, structure.in_inner, structure.out_inner = neighbours
        begins = [source.offset, target.offset]
        begins += [stride for group in others for stride in (group.source, group.target)]
        on_words = self._of.on_words and all(at % _WORD_VALUES == 0 for at in begins)
        kernel, reason = _kernel(structure, on_words=on_words)
        if reason is not None:
            raise _Refused(reason)
        for index in itertools.product(*(range(group.lines) for group in others)):
            steps = list(zip(index, others, strict=True))
            yield Launch(
                kernel,
                structure,
                (source.buffer, source.offset + sum(i * group.source for i, group in steps)),
                (target.buffer, target.offset + sum(i * group.target for i, group in steps)),
            )

    def _in_two_steps(
        self, shape: list[int], axis: Axis, source: Field, target: Field, *, last: bool
    ) -> Iterator[Step]:
        """Yield the four-step transform of a long axis of n = first * second points.

        Value p = second * a + b, result k = c + first * d: transforms over a for each b, times exp(2 pi i b c / n), then
        over b for each c. What is given or kept is rounded up to whole rows, by a copy.
        """
        dim = axis.dim
        split = _split(axis.points, *self._of.limits)
        assert split is not None
        first, second = split
        in_head, in_tail = _rows(axis.in_head, axis.in_tail, first, second)
        out_head, out_tail = _rows(axis.out_head, axis.out_tail, second, first)
        rows_in, rows_out = (in_head + in_tail) * second, (out_head + out_tail) * first
        if rows_in != axis.given:
            padded_shape = _with(shape, dim, rows_in)
            padded = self._temporary(padded_shape, source, target)
            moves = ((axis.in_head, 0, 0), (axis.in_tail, axis.in_head, rows_in - axis.in_tail))
            yield from _copies(shape, dim, moves, source, padded, clears=math.prod(padded_shape))
            source = padded
        between = self._temporary(_with(shape, dim, axis.points), source, target)
        apart, apart_between = source.strides[dim], between.strides[dim]
        factors = self._scales_of_two(axis.points, first, second, last=last)
        yield from self._step_of_two(
            shape,
            Axis(dim, first, in_head, in_tail, first, 0),
            (source, second * apart),
            (between, second * apart_between),
            inner=_Group(second, apart, apart_between),
            twiddle_points=axis.points,
            scale=factors[0],
        )
        to = target
        if rows_out != axis.kept:
            to = self._temporary(_with(shape, dim, rows_out), between, target)
        yield from self._step_of_two(
            shape,
            Axis(dim, second, second, 0, out_head, out_tail),
            (between, apart_between),
            (to, first * to.strides[dim]),
            inner=_Group(first, second * apart_between, to.strides[dim]),
            twiddle_points=0,
            scale=factors[1],
        )
        if to is not target:
            moves = (
                (axis.out_head, 0, 0),
                (axis.out_tail, rows_out - axis.out_tail, axis.out_head),
            )
            yield from _copies(shape, dim, moves, to, target)

    def _scales_of_two(
        self, points: int, first: int, second: int, *, last: bool
    ) -> tuple[float, float]:
        if self._of.precision == 0:
            return 1.0, self._scale(points, last=last)
        return self._transform.scale(first), self._transform.scale(second)

    def _step_of_two(
        self,
        shape: Sequence[int],
        axis: Axis,
        source: tuple[Field, int],
        target: tuple[Field, int],
        *,
        inner: _Group,
        twiddle_points: int,
        scale: float,
    ) -> Iterator[Launch]:
        """Yield the launches of one step; source and target come with the distance of neighbouring points."""
        (given, in_point), (result, out_point) = source, target
        structure = self._structure(axis, "complex")
        structure.in_point, structure.out_point = in_point, out_point
        structure.twiddle_points, structure.scale = twiddle_points, scale
        groups = _groups(shape, given.strides, result.strides, axis.dim)
        yield from self._looped(structure, groups, inner, given, result)


def _copies(
    shape: Sequence[int],
    dim: int,
    moves: Sequence[tuple[int, int, int]],
    source: Field,
    target: Field,
    *,
    clears: int = 0,
) -> Iterator[Copy]:
    """Yield copies of parts of a dimension: their number of values, and their first ones in source and target."""
    for count, at_source, at_target in moves:
        if count:
            part = tuple(_with(shape, dim, count))
            yield Copy(part, source.at(dim, at_source), target.at(dim, at_target), clears)
            clears = 0


def _contiguous(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous array."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return strides[::-1]


def _with(shape: Sequence[int], dim: int, size: int) -> list[int]:
    return [*shape[:dim], size, *shape[dim + 1 :]]


def _merged(
    shape: list[int], strides: list[int], results: list[int], axes: tuple[Axis, ...]
) -> tuple[list[int], list[int], list[int], tuple[Axis, ...]]:
    """Drop dimensions of size 1 and merge neighbours that are one on both sides, where they are not transformed."""
    transformed = {axis.dim for axis in axes}
    sizes: list[int] = []
    apart: list[tuple[int, int]] = []
    place: dict[int, int] = {}
    open_group = False
    for dim, (size, a, b) in enumerate(zip(shape, strides, results, strict=True)):
        if dim not in transformed:
            if size == 1:
                continue
            if open_group and apart[-1] == (size * a, size * b):
                sizes[-1], apart[-1] = sizes[-1] * size, (a, b)
                continue
        open_group = dim not in transformed
        place[dim] = len(sizes)
        sizes.append(size)
        apart.append((a, b))
    moved = tuple(axis._replace(dim=place[axis.dim]) for axis in axes)
    return sizes, [a for a, _ in apart], [b for _, b in apart], moved


def _groups(
    shape: Sequence[int], source: Sequence[int], target: Sequence[int], dim: int
) -> list[_Group]:
    """Return the lines along `dim` as few groups at equal distances, those farthest apart first."""
    found: list[_Group] = []
    for at, (size, a, b) in enumerate(zip(shape, source, target, strict=True)):
        if at == dim or size == 1:
            continue
        if found and (found[-1].source, found[-1].target) == (size * a, size * b):
            size *= found.pop().lines
        found.append(_Group(size, a, b))
    return found


def _rows(head: int, tail: int, rows: int, each: int) -> tuple[int, int]:
    """Return the rows of `each` values that the head and the tail of an axis reach into; all `rows` are a head."""
    heads, tails = -(-head // each), -(-tail // each)
    return (rows, 0) if heads + tails >= rows else (heads, tails)


@lru_cache(_MOST_CHECKED)
def _split(
    points: int, precision: int, multiprocessors: int, shared_bytes: int
) -> tuple[int, int] | None:
    """Return the factors of a long axis, as equal as possible, that both have kernels, or None."""
    for first in range(math.isqrt(points), 1, -1):
        second, rest = divmod(points, first)
        factors = (Axis(0, factor, factor, 0, factor, 0) for factor in (first, second))
        if rest == 0 and all(
            _kernel(_line(axis, precision, multiprocessors, shared_bytes), on_words=False)[1]
            is None
            for axis in factors
        ):
            return second, first
    return None


def _line(axis: Axis, precision: int, multiprocessors: int, shared_bytes: int) -> Fft:
    """Return the complex transform of one contiguous line."""
    return Fft(
        outer=1,
        inner=1,
        in_point=1,
        out_point=1,
        points=axis.points,
        in_head=axis.in_head,
        in_tail=axis.in_tail,
        out_head=axis.out_head,
        out_tail=axis.out_tail,
        precision=precision,
        multiprocessors=multiprocessors,
        shared_bytes=shared_bytes,
        scale=1.0,
    )


def _kernel(structure: Fft, *, on_words: bool) -> tuple[str, str | None]:
    """Return the kernel of a launch, and the reason why it does not run, if none does.

    With `on_words`, the arrays are float16 and those of every launch begin at multiples of 16 bytes.
    """
    reasons = []
    given = structure.in_head + structure.in_tail
    kept = structure.out_head + structure.out_tail
    names = kernels(
        structure.points,
        structure.kind,
        cut=is_cut(structure.points, given, kept),
        on_words=on_words,
    )
    for name in names:
        reason = _native.refusal(f"{name}_unsupported", structure)
        if reason is None:
            return name, None
        reasons.append(reason)
    return name, "; ".join(dict.fromkeys(reasons))
