"""The merged metrics of all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from turbofno.service.metrics import Collected, collected

Combine = Callable[[float, float], float]
Samples: TypeAlias = Sequence[tuple[str, Mapping[str, str], float]]
"""Name, labels, value."""
Families: TypeAlias = Sequence[tuple[str, str, str, Samples]]
"""Name, text, type, samples. Sent as they are: writing and parsing the text format takes many times as long."""

PER_PROCESS = ("process_", "python_", "turbofno_device_memory_bytes", "turbofno_staging_bytes")
"""Not merged, but labelled `process`: role and index, such as engine-0, which a restarted process keeps."""

_GAUGES: dict[str, Combine] = {
    "turbofno_build_info": max,
    "turbofno_model_loaded": max,
    "turbofno_model_load_seconds": max,
    "turbofno_lowered_batch_limit": min,
}
"""Functions that merge these gauges; all others are added."""


async def families(registry: Collector) -> Families:
    """All metrics of a process, collected as by `collected`."""
    return [
        (
            family.name, family.documentation, family.type,
            [(sample.name, sample.labels, float(sample.value)) for sample in family.samples],
        )
        for family in await collected(registry)
    ]  # fmt: skip


class MetricsSum:
    """Merges metrics. Counters of dead processes are kept as of their last scrape, so that sums never fall."""

    def __init__(self) -> None:
        self._latest: dict[bytes, list[Metric]] = {}
        self._retired: list[Metric] = []

    def update(self, identity: bytes, latest: Families) -> None:
        process = identity.decode().rpartition(".")[0]
        self._latest[identity] = [_labelled(process, *family) for family in latest]

    def retire(self, identity: bytes) -> None:
        """Keep only the counters of a process that died."""
        lasting = [
            family
            for family in self._latest.pop(identity, ())
            if family.type in ("counter", "histogram", "unknown")
            and not family.name.startswith(PER_PROCESS)
        ]
        self._retired = _merge([self._retired, lasting])

    async def text(self) -> bytes:
        """All metrics in the text format. Of hundreds of models that takes a second, in which the event loop goes on."""
        # meanwhile replaced, not changed
        processes = [self._retired, *self._latest.values()]
        return await asyncio.to_thread(lambda: generate_latest(Collected(_merge(processes))))


def _labelled(process: str, name: str, text: str, kind: str, samples: Samples) -> Metric:
    labelled = Metric(name, text, kind)
    own = {"process": process} if name.startswith(PER_PROCESS) else {}
    for sample, labels, value in samples:
        labelled.add_sample(sample, {**labels, **own}, value)
    return labelled


def _merge(processes: Iterable[Iterable[Metric]]) -> list[Metric]:
    merged: dict[str, tuple[Metric, dict[tuple[str, frozenset[tuple[str, str]]], float]]] = {}
    for family in chain.from_iterable(processes):
        empty = Metric(family.name, family.documentation, family.type)
        _, known = merged.setdefault(family.name, (empty, {}))
        for sample in family.samples:
            usual = min if sample.name.endswith("_created") else float.__add__
            combine = _GAUGES.get(sample.name, usual)
            key = (sample.name, frozenset(sample.labels.items()))
            known[key] = combine(known[key], sample.value) if key in known else sample.value
    for family, values in merged.values():
        for (name, labels), value in values.items():
            family.add_sample(name, dict(labels), value)
    return [family for family, _ in merged.values()]
