"""All metrics of the service, in one registry for each application."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter as _Count
from collections import defaultdict
from importlib import metadata
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from turbofno.service.answer_warnings import REASONS as WARNING_REASONS
from turbofno.service.histogram_batch import HistogramBatch
from turbofno.service.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch
    from prometheus_client.core import Metric

SECONDS = (
    50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3,
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
RATIOS = tuple(tenth / 10 for tenth in range(1, 11))

DISTANCES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
RESIDUALS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)

MODEL = ("model", "version")
REFUSED_WITHOUT_MODEL = (
    "body_timeout", "body_too_large", "connections", "draining", "form_type", "header_timeout", "header_too_large", "host",
    "no_http", "origin", "solver_busy", "solver_timeout", "unauthorized", "unread",
)  # fmt: skip
"""Reasons to refuse a request before its model is known, or regardless of it."""
ROLLOUT_OUTCOMES = ("done", "blow_up", "failed", "left")
REFUSED_WITH_MODEL = (
    "body_timeout", "body_too_large", "caller_bytes", "caller_fields", "deadline", "draining", "inflight_bytes",
    "model_bytes", "model_fields", "queue_full", "too_late",
)  # fmt: skip


_MOST_PENDING = 512
"""Most records kept of a kind: thousands would push the waiting requests out of the caches, and start garbage collections."""

# Tuples, which cost least: there is one for each request.
_Answered: TypeAlias = tuple[Any, ...]
_Ran: TypeAlias = tuple[Any, ...]


class _Cached:
    """Caches `labels`, for which prometheus_client formats strings and takes a lock at each of ten calls for a request."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._known: dict[tuple[object, ...], Self] = {}
        super().__init__(*args, **options)

    def labels(self, *values: object, **named: object) -> Self:
        """The child with these label values."""
        found = None if named else self._known.get(values)
        if found is None:
            found = super().labels(*values, **named)  # type: ignore[misc]
            if not named:
                self._known[values] = found
        return found

    def remove(self, *values: object) -> None:
        """Remove the child with these label values."""
        self._known.clear()
        super().remove(*values)  # type: ignore[misc]


class _Counter(_Cached, Counter):
    pass


class _Gauge(_Cached, Gauge):
    pass


class _Pending(Collector):
    """Counts requests, batches and signals many at a time: at each scrape, as the first of the registry, and every `_MOST_PENDING`."""

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self._count()
        return iter(())


class Metrics:
    """All metrics, registered in `registry`, so that a process can have several applications."""

    def __init__(self, *, version: str = VERSION) -> None:
        self.registry = CollectorRegistry()
        self._answered: defaultdict[tuple[Any, ...], list[_Answered]] = defaultdict(list)
        """By model, version, protocol, status and names of the steps."""
        self._ran: list[_Ran] = []
        self._judged: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
        """Values of trust signals, by model, version and signal."""
        self.registry.register(_Pending(self._count_pending))
        self.requests = self._counter(
            "turbofno_requests", "Requests answered.", (*MODEL, "protocol", "code")
        )
        self.fields = self._counter("turbofno_fields", "Fields predicted.", MODEL)
        self.gradients = self._counter(
            "turbofno_gradients", "Fields whose gradient was computed.", MODEL
        )
        self.prediction_warnings = self._counter(
            "turbofno_prediction_warnings",
            "Responses with a warning, by its reason.",
            (*MODEL, "reason"),
        )
        self.rejections = self._counter(
            "turbofno_rejections",
            "Requests refused or dropped, by reason, and by model if known.",
            ("reason", "model"),
        )
        for reason in REFUSED_WITHOUT_MODEL:
            self.rejections.labels(reason, "")
        self.models: set[tuple[str, str]] = set()
        """Name and version of each model that has been served."""
        self.backend_batches = self._counter(
            "turbofno_backend_batches",
            "Device batches, by the spectral backend that ran them.",
            ("model", "backend", "precision"),
        )
        self.request_duration = self._seconds(
            "turbofno_request_duration_seconds",
            "Time from request header to last response byte, without rollouts.",
        )
        self.decode = self._seconds("turbofno_decode_seconds", "Time to decode a request body.")
        self.queue = self._seconds("turbofno_queue_seconds", "Time in the queue for the device.")
        self.compute = self._seconds(
            "turbofno_compute_seconds", "Time of the device batches of a request."
        )
        self.encode = self._seconds("turbofno_encode_seconds", "Time to encode a response.")
        self.steps = {
            "decode": self.decode,
            "queue": self.queue,
            "compute": self.compute,
            "encode": self.encode,
        }
        batch = (*MODEL, "backend")
        self.batch_size = self._histogram(
            "turbofno_batch_size", "Fields in a device batch.", batch, COUNTS
        )
        self.batch_fill_ratio = self._histogram(
            "turbofno_batch_fill_ratio", "Batch size over the maximum batch size.", batch, RATIOS
        )
        self.batch_queue_depth = self._histogram(
            "turbofno_batch_queue_depth",
            "Fields of the model left in the queue when a batch was formed.",
            batch,
            (0, *COUNTS),
        )
        self._trust = {
            "input_distance": self._histogram(
                "turbofno_input_distance",
                "Distance of each input field from the training data; 1 in 100 training fields is above 1.",
                MODEL,
                DISTANCES,
            ),
            "residual": self._histogram(
                "turbofno_residual",
                "Residual of the model's PDE for each output field, about its relative error.",
                MODEL,
                RESIDUALS,
            ),
        }
        self.rollout_steps = self._counter(
            "turbofno_rollout_steps", "Rollout steps computed, counted for each field.", MODEL
        )
        self.rollouts_ended = self._counter(
            "turbofno_rollouts_ended",
            "Rollouts, by outcome: done, blow_up, failed, or left (the client disconnected).",
            (*MODEL, "outcome"),
        )
        self.rollout_batch_size = self._histogram(
            "turbofno_rollout_batch_size", "Fields in a batch of a rollout step.", MODEL, COUNTS
        )
        self.solver = self._seconds(
            "turbofno_solver_seconds",
            "Time to draw a sample or solve a PDE, including the wait for earlier ones.",
        )
        self.queue_depth = self._gauge("turbofno_queue_depth", "Fields in the queue.", MODEL)
        self.inflight_bytes = self._gauge(
            "turbofno_inflight_bytes",
            "Bytes of request bodies and unsent responses.",
            (),
        )
        self.shared_memory = self._gauge(
            "turbofno_shared_memory_bytes",
            "Shared memory in use for request bodies and responses, with front ends.",
            (),
        )
        self.rank_seconds = self._counter(
            "turbofno_rank_seconds",
            "Time that a rank of an engine of several devices ran on its slabs; `group` is the engine.",
            ("group", "rank"),
        )
        self.rank_memory = self._gauge(
            "turbofno_rank_memory_bytes",
            "Memory of a rank of an engine of several devices: reserved on its GPU, on a CPU resident.",
            ("group", "rank"),
        )
        self.out_of_memory_splits = self._counter(
            "turbofno_out_of_memory_splits",
            "Batches split in two because memory ran out.",
            MODEL,
        )
        self.lowered_batch_limit = self._gauge(
            "turbofno_lowered_batch_limit",
            "Maximum batch size while it is lowered because memory ran out, for the model's worst grid; else absent.",
            MODEL,
        )
        self.model_loaded = self._gauge(
            "turbofno_model_loaded",
            "1 for each model that is ready.",
            (*MODEL, "backend", "precision"),
        )
        self.model_load_seconds = self._gauge(
            "turbofno_model_load_seconds", "Time to load and warm up the model.", MODEL
        )
        Info("turbofno_build", "Versions of the service.", registry=self.registry).info(
            {
                "version": version,
                "torch": metadata.version("torch"),
                "python": platform.python_version(),
            }
        )
        self.device_memory = DeviceMemory()
        self.registry.register(self.device_memory)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def serve(self, model: str, version: str) -> None:
        """Create the series of a model at zero: rate() misses the first event of a counter that starts with it, and an
        autoscaler has no data before the first request.
        """
        self.models.add((model, version))
        for protocol in ("predict", "oip", "rollout", "vjp"):
            self.requests.labels(model, version, protocol, 200)
        for counter in (self.fields, self.gradients, self.rollout_steps, self.out_of_memory_splits):
            counter.labels(model, version)
        self.queue_depth.labels(model, version)
        for outcome in ROLLOUT_OUTCOMES:
            self.rollouts_ended.labels(model, version, outcome)
        for reason in WARNING_REASONS:
            self.prediction_warnings.labels(model, version, reason)
        for reason in REFUSED_WITH_MODEL:
            self.rejections.labels(reason, model)

    def answered(
        self,
        model: str,
        version: str,
        protocol: str,
        status: int,
        warned: Sequence[str],
        seconds: float,
        steps: Mapping[str, float],
    ) -> None:
        """Count a finished request: reasons of its answer's warnings, seconds in all and of the steps that ran."""
        alike = self._answered[model, version, protocol, status, *steps]
        alike.append((warned, seconds, *steps.values()))
        if len(alike) >= _MOST_PENDING:
            self._count_pending()

    def ran(
        self,
        model: str,
        version: str,
        backend: str,
        precision: str,
        size: int,
        fill_ratio: float,
        queue_depth: int,
        predicted: int,
        differentiated: int,
    ) -> None:
        """Count a batch of `size` fields; `predicted` and `differentiated` are the fields of the requests that it completed."""
        self._ran.append(
            (model, version, backend, precision, size, fill_ratio, queue_depth, predicted, differentiated)
        )  # fmt: skip
        if len(self._ran) >= _MOST_PENDING:
            self._count_pending()

    def _count_pending(self) -> None:
        self._count_answered()
        for (model, version, signal), values in self._judged.items():
            self._trust[signal].labels(model, version).observe(*values)
        self._judged.clear()
        alike: defaultdict[tuple[str, str, str, str], list[_Ran]] = defaultdict(list)
        for batch in self._ran:
            alike[batch[:4]].append(batch)
        self._ran.clear()
        for (model, version, backend, precision), several in alike.items():
            self.backend_batches.labels(model, backend, precision).inc(len(several))
            labels = model, version, backend
            *_, sizes, ratios, depths, predicted, differentiated = zip(*several, strict=True)
            self.fields.labels(model, version).inc(sum(predicted))
            self.gradients.labels(model, version).inc(sum(differentiated))
            self.batch_size.labels(*labels).observe(*sizes)
            self.batch_fill_ratio.labels(*labels).observe(*ratios)
            self.batch_queue_depth.labels(*labels).observe(*depths)

    def _count_answered(self) -> None:
        answered, self._answered = self._answered, defaultdict(list)
        for (model, version, protocol, status, *steps), several in answered.items():
            self.requests.labels(model, version, protocol, status).inc(len(several))
            if not model:
                continue
            warned, durations, *taken = zip(*several, strict=True)
            for reason, times in _Count(chain.from_iterable(warned)).items():
                self.prediction_warnings.labels(model, version, reason).inc(times)
            # A streamed rollout lasts as long as its client reads, so it would distort the latency.
            if protocol != "rollout":
                self.request_duration.labels(model, version).observe(*durations)
            for name, seconds in zip(steps, taken, strict=True):
                self.steps[name].labels(model, version).observe(*seconds)

    def reject(self, reason: str, model: str = "") -> None:
        """Count a request that was refused or dropped."""
        self.rejections.labels(reason, model).inc()

    def note_trust(self, model: str, version: str, trust: Mapping[str, Sequence[float]]) -> None:
        """Record the trust signals of fields."""
        for signal, values in trust.items():
            judged = self._judged[model, version, signal]
            judged += values
            if len(judged) >= _MOST_PENDING:
                self._count_pending()

    async def text(self) -> bytes:
        """All metrics in the text format."""
        families = await collected(self.registry)
        # Of hundreds of models the text takes a long time, in which the event loop must go on.
        return await asyncio.to_thread(generate_latest, Collected(families))

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return _Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return _Gauge(name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> HistogramBatch:
        return HistogramBatch(name, text, labels, buckets, registry=self.registry)

    def _seconds(self, name: str, text: str) -> HistogramBatch:
        return self._histogram(name, text, MODEL, SECONDS)


async def collected(registry: Collector) -> list[Metric]:
    """All metric families. Other work of the event loop runs between two, since those of hundreds of models take long."""
    families = []
    for family in registry.collect():
        families.append(family)
        await asyncio.sleep(0)
    return families


class Collected(Collector):
    """Metric families as of when they were collected."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


class DeviceMemory(Collector):
    """turbofno_device_memory_bytes{kind} and turbofno_staging_bytes, read when scraped; no samples on a CPU."""

    def __init__(self) -> None:
        self._device: torch.device | None = None
        self._limit = 0
        self._models = _nothing

    def watch(
        self,
        device: torch.device,
        *,
        limit: int,
        models: Callable[[], int],
    ) -> None:
        """Report this CUDA device.

        `limit` is the memory limit of the process; `models` returns the bytes held by models with their graphs.
        """
        self._device, self._limit, self._models = device, limit, models

    def collect(self) -> Iterator[GaugeMetricFamily]:
        memory = GaugeMetricFamily(
            "turbofno_device_memory_bytes",
            "CUDA memory of this process: allocated, reserved and peak_allocated by PyTorch; models with their "
            "CUDA graphs; limit.",
            labels=["kind"],
        )
        staging = GaugeMetricFamily(
            "turbofno_staging_bytes",
            "Host memory that PyTorch has page-locked, for copies of batches to the device and back.",
        )
        if self._device is not None:
            # Slow to import; only needed with a device.
            import torch

            memory.add_metric(["allocated"], torch.cuda.memory_allocated(self._device))
            memory.add_metric(["reserved"], torch.cuda.memory_reserved(self._device))
            memory.add_metric(["peak_allocated"], torch.cuda.max_memory_allocated(self._device))
            memory.add_metric(["models"], self._models())
            memory.add_metric(["limit"], self._limit)
            staging.add_metric([], torch.cuda.host_memory_stats()["allocated_bytes.current"])
        yield memory
        yield staging


def _nothing() -> int:
    return 0
