"""Runs one batch of slices. Splits it if memory runs out; bisects it if the model fails, to find the failing request."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from turbofno.service.engine.interface import NO_FIELDS, Fields
from turbofno.service.engine.out_of_memory import out_of_memory, release_frames
from turbofno.service.engine.runnable import ModelOutput, Ran, Runnable
from turbofno.service.errors import InferenceFailed, InvalidField, ServiceError, Unavailable
from turbofno.service.pipeline.ticket import Slice, Ticket

Parts = list[tuple[int, Slice]]
"""Slices to run together, each with its index in the batch; the two halves of a split slice share one index."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class BatchReport:
    """The result of a batch: an error for each failed slice, and timings. The outputs are in the tickets."""

    slices: Sequence[Slice]
    started: float = 0.0
    """Time at which the batch was started, on the `time.monotonic` clock."""
    ended: float = 0.0
    """Time at which its outputs were distributed, on the same clock."""
    start_seconds: float = 0.0
    """Time that the start took. On a CPU, and after a split, this includes the computation."""
    start_cpu_seconds: float = 0.0
    """CPU time that the start of the whole batch took: without waits for the interpreter lock."""
    gather_seconds: float = 0.0
    compute_seconds: float = 0.0
    scatter_seconds: float = 0.0
    ran: Ran = field(default_factory=partial(Ran, ""))
    splits: int = 0
    """Number of splits because memory ran out."""
    largest_run: int = 0
    """Most fields that ran together."""
    errors: dict[int, ServiceError] = field(default_factory=dict)
    """Index of the slice -> why it failed."""
    trust: dict[str, list[float]] = field(default_factory=dict)
    """Signal -> its values for the successful fields, in any order."""
    size: int = field(init=False)
    """Number of fields."""

    def __post_init__(self) -> None:
        self.size = sum(part.stop - part.start for part in self.slices)

    @property
    def runnable(self) -> Runnable:
        return self.slices[0].ticket.kind.runnable

    @property
    def device_seconds(self) -> float:
        """Device time used by the batch, including failed and repeated runs: nothing else starts meanwhile."""
        return max(self.start_seconds, self.compute_seconds)


class Batch:
    """Slices of one bucket, to be started once."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        self.report = BatchReport(slices)
        self._runs: list[tuple[Parts, Callable[[], ModelOutput]]] = []
        self._parts: Parts = list(enumerate(slices))
        self._error: Exception | None = None
        """Why the slices could not start together."""

    def start(self) -> Callable[[], BatchReport]:
        """Returns a function that waits for the outputs and distributes them, on any thread.

        If memory runs out, the batch runs in halves, down to single fields. If the model fails, it runs in halves down to
        single slices, so that only the failing request gets an error. Each piece finishes before the next one starts.
        """
        if self._error is None:
            self.start_whole()
        error, self._error = self._error, None
        if error is not None:
            started = time.perf_counter()
            self._run_in_pieces(self._parts, error)
            self.report.start_seconds += time.perf_counter() - started
        return self._finish

    def start_whole(self) -> Callable[[], BatchReport] | None:
        """As `start`, but returns None if the slices cannot run together: `start` then runs the pieces, and waits for them."""
        self.report.started = time.monotonic()
        started, cpu_started = time.perf_counter(), time.thread_time()
        try:
            self._runs.append((self._parts, self._start(self._parts)))
        except Exception as error:
            self._error = error
            return None
        finally:
            self.report.start_seconds = time.perf_counter() - started
            self.report.start_cpu_seconds = time.thread_time() - cpu_started
        return self._finish

    def _start(self, parts: Parts) -> Callable[[], ModelOutput]:
        fields = [part.of(part.ticket.request.fields) for _, part in parts]
        runnable, vjp = self.report.runnable, parts[0][1].ticket.request.vjp
        if vjp is not None:
            return runnable.start_vjp(fields, vjp)
        buffers = [
            part.of(buffer)
            for _, part in parts
            if (buffer := part.ticket.request.output_buffer) is not None
        ]
        if len(buffers) == len(parts):
            return runnable.start(fields, buffers)
        return runnable.start(fields)

    def _run_in_pieces(self, parts: Parts, error: Exception) -> None:
        pieces = self._pieces(parts, error)
        if not pieces:
            self._fail(parts, error)
        release_frames(error)
        if out_of_memory(error):
            self.report.runnable.free_memory()
        for piece in pieces:
            try:
                output = _with_own_memory(self._start(piece)())
            except Exception as another:
                self._run_in_pieces(piece, another)
            else:
                self._runs.append((piece, partial(_return, output)))

    def _pieces(self, parts: Parts, error: Exception) -> list[Parts]:
        """The pieces to run instead of parts that failed together; empty if they cannot be divided."""
        report = self.report
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
                "a batch of %d requests failed on model %s (%s); running it in halves to find the failing request",
                len(parts), report.runnable.name, type(error).__name__,
            )  # fmt: skip
        middle = len(parts) // 2
        return [parts[:middle], parts[middle:]]

    def _finish(self) -> BatchReport:
        for parts, wait in self._runs:
            try:
                output = wait()
            except Exception as error:
                # The device was lost: errors of the model are raised by the start (see Runnable.start).
                self._fail(parts, error)
            else:
                started = time.perf_counter()
                try:
                    self._distribute(parts, output)
                finally:
                    if output.release is not None:
                        output.release()
                self.report.scatter_seconds += time.perf_counter() - started
        self._runs.clear()
        self.report.ended = time.monotonic()
        return self.report

    def _fail(self, parts: Parts, error: Exception) -> None:
        for index, part in parts:
            self.report.errors[index] = _explain(part.ticket, error)

    def _distribute(self, parts: Parts, output: ModelOutput) -> None:
        report = self.report
        report.gather_seconds += output.gather_seconds
        report.compute_seconds += output.compute_seconds
        report.ran = output.ran
        report.largest_run = max(report.largest_run, _size(parts))
        # NaN and infinity propagate through a sum: check fields only if it is not finite (it may also overflow).
        total = output.total
        if total is None:
            assert output.fields is not None
            with np.errstate(over="ignore", invalid="ignore"):
                total = output.fields.sum()
        finite = math.isfinite(total)
        if output.fields is not None or not finite:
            # A view would keep the memory of the whole batch for as long as a slow client reads its response.
            copy = output.release is not None or len(parts) > 1
            self._place(parts, output.fields, finite=finite, copy=copy)
        for name, values in output.trust.items():
            self._note_trust(parts, name, values)

    def _place(self, parts: Parts, fields: Fields | None, *, finite: bool, copy: bool) -> None:
        """Check each slice's outputs if not all are `finite`; give them to its ticket if not there yet (`fields` is None)."""
        copies: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        """Destinations and sources of the copies to make."""
        end = 0
        for index, part in parts:
            begin, end = end, end + part.stop - part.start
            own = None if fields is None else fields[begin:end]
            try:
                if not finite:
                    _check_finite(part, own)
                if own is not None:
                    _place(part, own, copies, copy=copy)
            except ServiceError as error:
                # Its traceback would keep this frame, and so shared memory, until the next garbage collection.
                self.report.errors[index] = error.with_traceback(None)
        if copies[0]:
            # One call, since each releases the interpreter lock and waits to get it back.
            torch._foreach_copy_(*copies)

    def _note_trust(self, parts: Parts, name: str, values: list[float]) -> None:
        """Give a signal's values to the tickets of slices without an error, and to the report."""
        errors, noted = self.report.errors, self.report.trust.setdefault(name, [])
        end = 0
        for index, (ticket, start, stop) in parts:
            begin, end = end, end + stop - start
            if index in errors:
                continue
            result, own = ticket.result, values[begin:end]
            assert result is not None
            noted += own
            if stop - start < ticket.size:
                of_all = list(result.trust.get(name, ())) or [0.0] * ticket.size
                of_all[start:stop] = own
                own = of_all
            result.trust[name] = tuple(own)


def _place(
    part: Slice, rows: Fields, copies: tuple[list[torch.Tensor], list[torch.Tensor]], *, copy: bool
) -> None:
    """Give the outputs of a slice to its ticket, directly or by an entry in `copies`.

    Raises:
        InferenceFailed: the outputs do not have the shape of the ticket's result.
    """
    ticket = part.ticket
    request, result = ticket.request, ticket.result
    assert result is not None
    if request.output_buffer is None and part.whole:
        # A copy by numpy or torch would release the interpreter lock, and wait to get it back.
        result.fields = np.ndarray(rows.shape, np.float32, rows.tobytes()) if copy else rows
        return
    shape = (ticket.size, *rows.shape[1:])
    if result.fields is NO_FIELDS:
        result.fields = np.empty(shape, np.float32)
    elif result.fields.shape != shape:
        raise InferenceFailed(
            f"model {result.model!r} gave shape {shape}, expected {result.fields.shape}"
        )
    copies[0].append(torch.from_numpy(part.of(result.fields)))
    copies[1].append(torch.from_numpy(rows))


def _check_finite(part: Slice, rows: Fields | None) -> None:
    """Raise InvalidField if the outputs of a slice (`rows`; None: in its output buffer) contain NaN or infinity."""
    ticket = part.ticket
    if rows is None:
        assert ticket.request.output_buffer is not None
        rows = part.of(ticket.request.output_buffer)
    source = "values" if ticket.request.vjp is None else "values, or its cotangent's,"
    check_outputs(rows, ticket.kind.flow.model, first=part.start, of=ticket.size, source=source)


def check_outputs(
    rows: Fields, model: str, *, first: int = 0, of: int | None = None, source: str = "values"
) -> None:
    """Raise InvalidField if outputs hold NaN or infinity; they are those of the fields from `first` on, of so many."""
    finite = np.isfinite(rows.reshape(len(rows), -1)).all(1)
    if finite.all():
        return
    raise InvalidField(
        f"model {model!r} gave NaN or infinity for field {first + int(np.argmin(finite))} of "
        f"{len(rows) if of is None else of} (counted from 0): its {source} are probably far outside the training range; "
        "compare them with the input statistics in the model's description"
    )


def _size(parts: Parts) -> int:
    return sum(part.stop - part.start for _, part in parts)


def _with_own_memory(output: ModelOutput) -> ModelOutput:
    """Copy the output if its memory is a staging buffer of the device, and release that buffer."""
    if output.release is None:
        return output
    try:
        fields = None if output.fields is None else output.fields.copy()
        return output._replace(fields=fields, release=None)
    finally:
        output.release()


def _return(output: ModelOutput) -> ModelOutput:
    return output


def _halves(parts: Parts) -> list[Parts]:
    """The same fields in two pieces whose sizes differ by at most one; none for a single field."""
    total = _size(parts)
    if total == 1:
        return []
    first: Parts = []
    second: Parts = []
    left = (total + 1) // 2
    for index, part in parts:
        cut = min(part.start + left, part.stop)
        left -= cut - part.start
        if cut > part.start:
            first.append((index, part._replace(stop=cut)))
        if cut < part.stop:
            second.append((index, part._replace(start=cut)))
    return [first, second]


def _explain(ticket: Ticket, error: Exception) -> ServiceError:
    runnable, about = ticket.kind.runnable, {"data": {"request_id": ticket.request.request_id}}
    if isinstance(error, ServiceError):
        return error
    # Joined requests run again, alone.
    level = logging.DEBUG if ticket.request.joined else logging.ERROR
    if out_of_memory(error):
        logger.log(level, "model %s ran out of memory", runnable.name, extra=about)
        return Unavailable(
            f"there is not enough free memory to run model {runnable.name!r} on this request; "
            "send fewer fields or a coarser grid, or retry later",
            retry_after=5.0,
        )
    logger.log(level, "model %s failed", runnable.name, exc_info=error, extra=about)
    return InferenceFailed(
        f"model {runnable.name!r} failed on this request alone; the server's log has the cause"
    )
