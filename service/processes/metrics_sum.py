"""The merged metrics of all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

Combine = Callable[[float, float], float]

PER_PROCESS = ("process_", "python_", "turbofno_device_memory_bytes", "turbofno_staging_bytes")
"""Not merged, but labelled `process`: role and index, such as engine-0, which a restarted process keeps."""

_GAUGES: dict[str, Combine] = {
    "turbofno_build_info": max,
    "turbofno_model_loaded": max,
    "turbofno_model_load_seconds": max,
    "turbofno_lowered_batch_limit": min,
}
"""Functions that merge these gauges; all others are added."""


class MetricsSum(Collector):
    """Merges metrics. Counters of dead processes are kept as of their last scrape, so that sums never fall."""

    def __init__(self) -> None:
        self._latest: dict[bytes, list[Metric]] = {}
        self._retired: list[Metric] = []

    def update(self, identity: bytes, text: bytes) -> None:
        families = list(text_string_to_metric_families(text.decode()))
        process = identity.decode().rpartition(".")[0]
        self._latest[identity] = [_labelled(family, process) for family in families]

    def retire(self, identity: bytes) -> None:
        """Keep only the counters of a process that died."""
        lasting = [
            family
            for family in self._latest.pop(identity, ())
            if family.type in ("counter", "histogram", "unknown")
            and not family.name.startswith(PER_PROCESS)
        ]
        self._retired = _merge([self._retired, lasting])

    def collect(self) -> Iterator[Metric]:
        return iter(_merge([self._retired, *self._latest.values()]))


def _labelled(family: Metric, process: str) -> Metric:
    if not family.name.startswith(PER_PROCESS):
        return family
    labelled = Metric(family.name, family.documentation, family.type)
    for sample in family.samples:
        labelled.add_sample(sample.name, {**sample.labels, "process": process}, sample.value)
    return labelled


def _merge(processes: Iterable[Iterable[Metric]]) -> list[Metric]:
    merged: dict[str, tuple[Metric, dict[tuple[str, frozenset[tuple[str, str]]], float]]] = {}
    for family in chain.from_iterable(processes):
        empty = Metric(family.name, family.documentation, family.type)
        _, known = merged.setdefault(family.name, (empty, {}))
        usual = min if family.name.endswith("_created") else float.__add__
        combine = _GAUGES.get(family.name, usual)
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            known[key] = combine(known[key], sample.value) if key in known else sample.value
    for family, values in merged.values():
        for (name, labels), value in values.items():
            family.add_sample(name, dict(labels), value)
    return [family for family, _ in merged.values()]
