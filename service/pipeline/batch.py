"""One batch from its slices to its report: started, split when memory runs out, its culprit found when it fails."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from service.errors import (
    InferenceFailed,
    InvalidField,
    ServiceError,
    Unavailable,
)
from service.runtime.page_locked import straight

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from service.pipeline.engine import Fields
    from service.pipeline.ticket import ModelOutput, Runnable, Slice, Ticket

    Parts = list[tuple[int, Slice]]
    """Slices to run together, each with the index of the slice of the batch that it is, or is a part of."""

logger = logging.getLogger(__name__)


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, of the device or of the machine.

    torch has an exception of its own for its CUDA allocator alone: pinned memory, custom ops and its CPU
    allocator say it in words.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("out of memory", "DefaultCPUAllocator"))
    )


def release_frames(error: Exception) -> None:
    """Let go of what the failed calls still hold in their frames, which is most of the memory."""
    error.__traceback__ = None


@dataclass(slots=True)
class BatchReport:
    """What became of a batch: an error for each slice that failed; the outputs are in the tickets."""

    slices: Sequence[Slice]
    started: float = field(default_factory=time.monotonic)
    """When the device thread took it up."""
    start_seconds: float = 0.0
    """What the device thread spent on it; all of its run where that waits for the end."""
    gather_seconds: float = 0.0
    compute_seconds: float = 0.0
    scatter_seconds: float = 0.0
    backend: str = ""
    precision: str = "fp32"
    splits: int = 0
    """How often it was cut in two because memory ran out."""
    largest_run: int = 0
    """Most fields that did run together."""
    errors: dict[int, ServiceError] = field(default_factory=dict)
    """Index of the slice -> why it failed."""
    trust: dict[str, list[float]] = field(default_factory=dict)
    """Signal -> its values for the fields that did not fail, in any order."""
    size: int = field(init=False)
    """Number of fields."""

    def __post_init__(self) -> None:
        self.size = sum(part.stop - part.start for part in self.slices)

    @property
    def runnable(self) -> Runnable:
        return self.slices[0].ticket.runnable

    @property
    def device_seconds(self) -> float:
        """What it kept from others: also when the model failed, or had to be run again in pieces."""
        return max(self.start_seconds, self.compute_seconds)


def start_batch(slices: Sequence[Slice]) -> Callable[[], BatchReport]:
    """Start slices of one bucket as one batch; what it returns waits for the answers and hands them out.

    If memory runs out it runs the batch in halves, down to single fields; if the model fails, in halves down to
    single slices, so that mates survive. Such pieces run one at a time, to their end.
    """
    return _Batch(slices).start()


class _Batch:
    """Its runs start on the device thread; waits and answers belong to the thread that finishes."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self._report = BatchReport(slices)
        self._runs: list[tuple[Parts, Callable[[], ModelOutput]]] = []

    def start(self) -> Callable[[], BatchReport]:
        started = time.perf_counter()
        parts = list(enumerate(self._report.slices))
        try:
            self._runs.append((parts, self._start(parts)))
        except Exception as error:
            self._run_in_pieces(parts, error)
        self._report.start_seconds = time.perf_counter() - started
        return self._finish

    def _start(self, parts: Parts) -> Callable[[], ModelOutput]:
        fields = [part.fields for _, part in parts]
        runnable, vjp = self._report.runnable, self._report.slices[0].ticket.vjp
        if vjp is not None:
            return runnable.start_vjp(fields, vjp)
        answers = [answer for _, part in parts if (answer := _place(part)) is not None]
        if len(answers) == len(parts) and straight(answers):
            return runnable.start(fields, answers)
        return runnable.start(fields)

    def _run_in_pieces(self, parts: Parts, error: Exception) -> None:
        pieces = self._pieces(parts, error)
        if not pieces:
            self._fail(parts, error)
        release_frames(error)
        if out_of_memory(error):
            self._report.runnable.free_memory()
        for piece in pieces:
            try:
                output = _owned(self._start(piece)())
            except Exception as another:
                self._run_in_pieces(piece, another)
            else:
                self._runs.append((piece, partial(_given, output)))

    def _pieces(self, parts: Parts, error: Exception) -> list[Parts]:
        """What to run instead of parts that failed together; nothing if there is no smaller piece."""
        report = self._report
        if isinstance(error, ServiceError):
            return []
        if out_of_memory(error):
            halves = _halves(parts)
            report.splits += bool(halves)
            return halves
        if len(parts) == 1:
            return []
        if len(parts) == len(report.slices):
            logger.warning(
                "a batch of %d requests failed on model %s (%s); looking for the culprit by halves",
                len(parts), report.runnable.name, type(error).__name__,
            )  # fmt: skip
        middle = len(parts) // 2
        return [parts[:middle], parts[middle:]]

    def _finish(self) -> BatchReport:
        for parts, wait in self._runs:
            try:
                output = wait()
            except Exception as error:
                self._fail(parts, error)
            else:
                started = time.perf_counter()
                try:
                    self._hand_out(parts, output)
                finally:
                    if output.release is not None:
                        output.release()
                self._report.scatter_seconds += time.perf_counter() - started
        self._runs.clear()
        return self._report

    def _fail(self, parts: Parts, error: Exception) -> None:
        for index, part in parts:
            self._report.errors[index] = _explain(part.ticket, error)

    def _hand_out(self, parts: Parts, output: ModelOutput) -> None:
        report = self._report
        report.gather_seconds += output.gather_seconds
        report.compute_seconds += output.compute_seconds
        report.backend, report.precision = output.backend, output.precision
        report.largest_run = max(report.largest_run, _size(parts))
        # NaN and infinity survive a sum, so most batches need no closer look; a sum may also overflow by itself.
        total = output.total
        if total is None:
            assert output.fields is not None
            with np.errstate(over="ignore", invalid="ignore"):
                total = output.fields.sum()
        all_finite = math.isfinite(total)
        copies = _Copies()
        start = 0
        for index, part in parts:
            count = part.stop - part.start
            fields = _answer_of(part, output, start)
            trust = {name: values[start : start + count] for name, values in output.trust.items()}
            start += count
            if not all_finite:
                finite = np.isfinite(fields).reshape(count, -1).all(axis=1)
                if not finite.all():
                    report.errors[index] = _not_finite(part, int(np.argmin(finite)))
                    continue
            try:
                _give(part, fields, trust, output, copies)
            except ServiceError as error:
                report.errors[index] = error
            else:
                for name, values in trust.items():
                    report.trust.setdefault(name, []).extend(values)
        copies.make()


class _Copies:
    """Copies between arrays, made by one call: each call gives the interpreter lock away, and waits to get it back."""

    def __init__(self) -> None:
        self._to: list[torch.Tensor] = []
        self._source: list[torch.Tensor] = []

    def add(self, to: Fields, source: Fields) -> None:
        self._to.append(torch.from_numpy(to))
        self._source.append(torch.from_numpy(source))

    def make(self) -> None:
        if self._to:
            torch._foreach_copy_(self._to, self._source)


def _give(
    part: Slice,
    fields: Fields,
    trust: dict[str, list[float]],
    output: ModelOutput,
    copies: _Copies,
) -> None:
    ticket = part.ticket
    ticket.backend, ticket.precision = output.backend, output.precision
    for name, values in trust.items():
        of_all = ticket.trust.setdefault(name, [0.0] * ticket.size)
        of_all[part.start : part.stop] = values
    if output.fields is None:
        ticket.outputs = ticket.answer
        return
    if part.whole and ticket.answer is None and output.release is None:
        ticket.outputs = fields
        return
    if ticket.outputs is None:
        ticket.outputs = _room(ticket, fields.shape[1:])
    copies.add(ticket.outputs[part.start : part.stop], fields)


def _place(part: Slice) -> Fields | None:
    """Where the outputs of a slice are to stand, if that is known beforehand."""
    answer = part.ticket.answer
    return None if answer is None else answer[part.start : part.stop]


def _answer_of(part: Slice, output: ModelOutput, start: int) -> Fields:
    """The outputs of a slice, which in those of the whole run begin at `start`."""
    if output.fields is not None:
        return output.fields[start : start + part.stop - part.start]
    placed = _place(part)
    assert placed is not None
    return placed


def _size(parts: Parts) -> int:
    return sum(part.stop - part.start for _, part in parts)


def _room(ticket: Ticket, shape: tuple[int, ...]) -> Fields:
    """Where the outputs of a ticket go. Raises InferenceFailed if that was made for others."""
    expected = (ticket.size, *shape)
    if ticket.answer is None:
        return np.empty(expected, np.float32)
    if ticket.answer.shape != expected:
        raise InferenceFailed(
            f"model {ticket.runnable.name!r} gave shape {expected}, expected {ticket.answer.shape}"
        )
    return ticket.answer


def _owned(output: ModelOutput) -> ModelOutput:
    """The same, in memory of its own."""
    if output.release is None:
        return output
    try:
        fields = None if output.fields is None else output.fields.copy()
        return output._replace(fields=fields, release=None)
    finally:
        output.release()


def _given(output: ModelOutput) -> ModelOutput:
    return output


def _halves(parts: Parts) -> list[Parts]:
    """The same fields in two pieces of equal size, to one; none if there is but one field."""
    total = _size(parts)
    if total == 1:
        return []
    first: Parts = []
    second: Parts = []
    room = (total + 1) // 2
    for index, part in parts:
        cut = min(part.start + room, part.stop)
        room -= cut - part.start
        if cut > part.start:
            first.append((index, part._replace(stop=cut)))
        if cut < part.stop:
            second.append((index, part._replace(start=cut)))
    return [first, second]


def _not_finite(part: Slice, index: int) -> InvalidField:
    what = "values" if part.ticket.vjp is None else "values, or its cotangent's,"
    return InvalidField(
        f"model {part.ticket.runnable.name!r} gave NaN or infinity for field {part.start + index} of "
        f"{part.ticket.size} (counted from 0): its {what} are probably far outside the training range; "
        "compare them with the input statistics in the model's description"
    )


def _explain(ticket: Ticket, error: Exception) -> ServiceError:
    runnable, about = ticket.runnable, {"data": {"request_id": ticket.request_id}}
    if isinstance(error, ServiceError):
        return error
    if out_of_memory(error):
        logger.error("model %s ran out of memory", runnable.name, extra=about)
        return Unavailable(
            f"there is not enough free memory to run model {runnable.name!r} on this request; "
            "send fewer fields or a coarser grid, or retry later",
            retry_after=5.0,
        )
    logger.error("model %s failed", runnable.name, exc_info=error, extra=about)
    return InferenceFailed(
        f"model {runnable.name!r} failed on this request alone; the server's log has the cause"
    )
