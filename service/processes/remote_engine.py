"""The Engine interface over engine processes: fields in shared memory, everything else by messages."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from turbofno.models.core.config import ModelConfig
from turbofno.service.engine.interface import (
    Fields,
    Frame,
    ModelCounters,
    ModelStatus,
    PredictRequest,
    PredictResult,
    RolloutRequest,
    not_any_more,
    not_served,
)
from turbofno.service.errors import Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.processes import joining
from turbofno.service.processes.channel import PAUSE_SECONDS
from turbofno.service.processes.engine_link import EngineLink
from turbofno.service.processes.memory import SlotMemory
from turbofno.service.processes.messages import Peer, QueueState
from turbofno.service.processes.rollout_ring import copy_completely, ring_size
from turbofno.service.settings import Settings

logger = logging.getLogger(__name__)

_MEET_SECONDS = 1.0
"""Longest wait of a new front end for the engines: one may hang."""


class EngineQueue(QueueCapacity):
    """The queues of the engines as last published, to refuse requests early; the engines enforce the limits."""

    _drain_seconds = 1.0

    def update(self, queues: Sequence[QueueState]) -> None:
        """Use the state of the shortest of these queues: a request goes to one engine."""
        emptiest = min(queues, key=attrgetter("total"), default=QueueState())
        self.total = emptiest.total
        self._waiting = Counter({(model, v): fields for model, v, fields in emptiest.waiting})
        self._drain_seconds = emptiest.drain_seconds

    @property
    def drain_seconds(self) -> float:
        return self._drain_seconds


class RemoteEngine:
    """Implements turbofno.service.engine.interface.Engine over engine processes, each of which has every model.

    For the event loop only.
    """

    def __init__(self, identity: bytes, settings: Settings, metrics: Metrics) -> None:
        """`identity` is that of the front end; `settings` name the devices of all engines."""
        self._identity = identity
        self._engines = len(settings.devices or (settings.device,))
        """Their number when all are up."""
        self._most_joined = max(1, settings.max_batch_size // 4)
        """Fields of joined requests: a small part of a batch, since a large request stays whole and leaves batches unfilled."""
        size = settings.shared_memory_bytes
        # Fields that are cut are large, and the copy of what is not page-locked takes several times as long.
        several = any("+cuda" in devices for devices in settings.devices or ())
        self.memory = memory = SlotMemory(size, kept=size if several else None)
        metrics.shared_memory.set_function(lambda: memory.used_bytes)
        self.queue = EngineQueue(settings, metrics)
        self._links: dict[Peer, EngineLink] = {}
        self._connecting: asyncio.TimerHandle | None = None
        """Tries again to connect to the engines."""
        self._closed = False
        self._met = asyncio.Event()
        """Set once the engines that live have told their models."""
        self._rollouts_ended = metrics.rollouts_ended
        self._configs: WeakValueDictionary[str, ModelConfig] = WeakValueDictionary()
        """By digest: one object for all engines, as long as `config` returns it, or a request that it was checked against is pending."""
        self._digests: dict[int, str] = {}
        """By id of the configuration."""
        self._links_of: dict[int, list[EngineLink]] = {}
        """By id of the configuration: the engines that serve it, or else its model."""
        self._serving: dict[tuple[str, str | None], ModelConfig] = {}
        """By (model, version); version None is the newest that an engine serves."""
        self._statuses: list[ModelStatus] = []

    def set_engines(self, peers: Sequence[Peer]) -> None:
        """Use these engines; fail requests pending at others, which are dead. Once it is closed, do nothing."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._closed:
            return
        for peer in set(self._links) - set(peers):
            self._links.pop(peer).close(
                "the engine that had this request ended and is started again; retry"
            )
        for peer in peers:
            if peer in self._links:
                continue
            try:
                self._links[peer] = EngineLink(
                    peer.endpoint,
                    self._identity,
                    self.memory,
                    most_joined=self._most_joined,
                    digest_of=self._digest_of,
                    on_state=self._on_state,
                    on_queue=self._on_queue,
                )
            except OSError as error:
                # No descriptor is left. The supervisor tells only of changes.
                logger.error("no engine can be connected for now: %s", error)
                self._connecting = asyncio.get_running_loop().call_later(
                    PAUSE_SECONDS, self.set_engines, peers
                )
                break
        self._on_state()
        self._on_queue()

    async def meet(self) -> None:
        """Wait until the engines that live have told their models, at most a second: requests would be refused before."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_MEET_SECONDS):
                await self._met.wait()

    def start(self) -> None:
        """Do nothing: the supervisor starts the engines."""

    async def close(self, *, within: float) -> None:
        # The caller has already waited for its requests, and the engines serve until no front end is left.
        del within
        for link in self._links.values():
            link.close(
                "the service stopped before this request was done; retry, another may answer"
            )
        self._closed = True

    def buffer(self, size: int, *, aligned_at: int = 0) -> memoryview | None:
        # Small fields are copied there when requests are joined.
        return None if size <= joining.MOST_BYTES else self.memory.buffer(size, aligned_at)

    def config(self, model: str, version: str | None = None) -> ModelConfig:
        config = self._serving.get((model, version))
        if config is None:
            raise not_served(model, version, self._statuses) if self._statuses else _no_engine()
        return config

    def statuses(self) -> list[ModelStatus]:
        return self._statuses

    async def counters(self, model: str, version: str) -> ModelCounters:
        self.config(model, version)
        serving = [link for link in self._links.values() if (model, version) in link.digests]
        counters = await _call_all(serving, "counters", model, version)
        return _sum_counters(msgspec.convert(counters, list[ModelCounters]))

    def predict(self, request: PredictRequest) -> Coroutine[Any, Any, PredictResult]:
        config = request.config = request.config or self.config(request.model, request.version)
        if request.fields.nbytes > joining.MOST_BYTES and not self.memory.contains(request.fields):
            return self._predict_copied(request, config)
        # A coroutine of its own would be memory of each waiting request.
        return self._least_busy(config).predict(request)

    async def rollout(self, request: RolloutRequest) -> AsyncGenerator[Frame]:
        initial = request.initial
        config = initial.config = initial.config or self.config(initial.model, initial.version)
        places_wanted = ring_size(request.frame_bytes, request.last - request.start)
        ring = self.memory.array((places_wanted, *request.frame_shape))
        if not self.memory.contains(initial.fields):
            initial.fields = await self._to_shared_memory(initial.fields)
        link = self._least_busy(config)
        try:
            async with aclosing(link.rollout(request, ring)) as frames:
                async for frame in frames:
                    yield frame
        except Unavailable:
            if link not in self._links.values():
                # The engine, which counts the others, is lost.
                self._rollouts_ended.labels(config.name, config.version, "failed").inc()
            raise

    async def load(self, model: str) -> None:
        await self._change("load", model)

    async def unload(self, model: str) -> None:
        await self._change("unload", model)

    @property
    def ready(self) -> bool:
        """True if any engine is ready."""
        return not self._closed and any(link.state.ready for link in self._links.values())

    @property
    def failure(self) -> str:
        """Always empty: the supervisor restarts a failed engine."""
        return ""

    async def _change(self, method: str, model: str) -> None:
        """Change the models of all engines. Raises Unavailable if one is starting: it would miss the change."""
        if len(self._links) < self._engines:
            raise _no_engine()
        await _call_all(list(self._links.values()), method, model)

    async def _predict_copied(self, request: PredictRequest, config: ModelConfig) -> PredictResult:
        request.fields = await self._to_shared_memory(request.fields)
        return await self._least_busy(config).predict(request)

    async def _to_shared_memory(self, fields: Fields) -> Fields:
        """Copy fields that were parsed or converted elsewhere."""
        copy = self.memory.array(fields.shape)
        await copy_completely(copy, fields)
        return copy

    def _digest_of(self, config: ModelConfig) -> str:
        return self._digests.get(id(config), "")

    def _least_busy(self, config: ModelConfig) -> EngineLink:
        """The least busy engine that serves the configuration, or else its model."""
        links = self._links_of.get(id(config))
        if not links:
            # Unloaded, or its engine died.
            try:
                self.config(config.name, config.version)
            except Unavailable as error:
                raise not_any_more(error) from None
            raise _no_engine()
        return links[0] if len(links) == 1 else min(links, key=attrgetter("fields_in_flight"))

    def _on_state(self) -> None:
        links = list(self._links.values())
        if all(link.told for link in links):
            self._met.set()
        models = [model for link in links for model in link.state.models]
        published = {model.digest: model.config for model in models if model.digest}
        served = {
            digest: self._configs.get(digest) or ModelConfig.model_validate_json(text)
            for digest, text in published.items()
        }
        self._configs.update(served)
        self._digests = {id(config): digest for digest, config in self._configs.items()}
        statuses: dict[tuple[str, str], ModelStatus] = {}
        for status in (model.status for model in models):
            key = status.name, status.version
            if key not in statuses or status.state == "READY":
                statuses[key] = status
        merged = statuses.values() or map(_restarting, self._statuses)
        self._statuses = sorted(merged, key=lambda one: (one.name, int(one.version)))
        self._serving = {}
        for key in ((one.name, one.version) for one in self._statuses):
            if serving := [link for link in links if key in link.digests]:
                # The newest comes last.
                config = self._configs[serving[0].digests[key]]
                self._serving[key] = self._serving[key[0], None] = config
        self._links_of = {}
        for digest, config in self._configs.items():
            key = config.name, config.version
            serving = [link for link in links if key in link.digests]
            same = [link for link in serving if link.digests[key] == digest]
            self._links_of[id(config)] = same or serving

    def _on_queue(self) -> None:
        self.queue.update([link.queue for link in self._links.values()])


def _restarting(status: ModelStatus) -> ModelStatus:
    if status.state == "UNAVAILABLE":
        # The next engine will report the same.
        return status
    return ModelStatus(status.name, status.version, "LOADING", "the engine is restarting")


def _sum_counters(several: Sequence[ModelCounters]) -> ModelCounters:
    """Totals of one model over several engines."""
    total = ModelCounters()
    for counters in several:
        for name in (one.name for one in dataclasses.fields(ModelCounters)):
            if name not in ("batches", "last_inference_ms"):
                setattr(total, name, getattr(total, name) + getattr(counters, name))
        total.last_inference_ms = max(total.last_inference_ms, counters.last_inference_ms)
        for size, (count, ns) in counters.batches.items():
            before = total.batches.get(size, (0, 0))
            total.batches[size] = (before[0] + count, before[1] + ns)
    return total


async def _call_all(links: Sequence[EngineLink], method: str, *arguments: str) -> list[Any]:
    """The results of all engines; raises the first error once all are done."""
    if not links:
        raise _no_engine()
    calls = (link.ask(method, arguments) for link in links)
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _no_engine() -> Unavailable:
    return Unavailable(
        "an engine is being started (again); retry after the time in Retry-After", retry_after=1.0
    )
