"""Metrics under Triton's names, so that its dashboards and autoscalers work unchanged."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from turbofno.service.metrics import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Protocol

    from turbofno.service.metrics import Metrics

    class _Collectable(Protocol):
        def collect(self) -> Iterable[Metric]: ...


_Values = dict[tuple[str, ...], float]

DURATIONS = {
    "request": "request_duration",
    "queue": "queue",
    "compute_input": "decode",
    "compute_infer": "compute",
    "compute_output": "encode",
}
"""Triton's step -> attribute of Metrics. Unlike Triton's, the input and output steps include decoding and encoding."""

_FAILURES = {429: "REJECTED", 503: "REJECTED", 504: "REJECTED", 499: "CANCELED", 500: "BACKEND"}
_OTHER = "OTHER"
FAILURES = (*dict.fromkeys(_FAILURES.values()), _OTHER)


class TritonMetrics(Collector):
    """nv_inference_*{model,version}, computed from the service's metrics at each scrape.

    Each is linear in those, so sums over processes are correct. Counters are untyped, because Triton's names lack the
    suffix _total of the text format.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        answered = self._zeros()
        failed: _Values = defaultdict(
            float, {(*key, reason): 0.0 for key in metrics.models for reason in FAILURES}
        )
        for labels, value in _samples(metrics.requests.collect(), "_total"):
            # turbofno_request_duration_seconds excludes rollouts, so exclude them here too.
            if labels["model"] and labels["protocol"] != "rollout":
                key = (labels["model"], labels["version"])
                reason = failure_reason(int(labels["code"]))
                if reason is None:
                    answered[key] += value
                else:
                    failed[*key, reason] += value
        yield _family("request_success", "Requests with a response below status 400.", answered)
        yield _family("request_failure", "Requests failed.", failed, (*MODEL, "reason"))
        fields = self._by_model(metrics.fields, "_total")
        for model, value in self._by_model(metrics.gradients, "_total").items():
            fields[model] += value
        yield _family("count", "Fields predicted or differentiated.", fields)
        batches = self._by_model(metrics.batch_size, "_count")
        yield _family("exec_count", "Batches run.", batches)
        waiting = self._by_model(metrics.queue_depth, "")
        yield _family("pending_request_count", "Fields in the queue.", waiting, kind="gauge")
        for step, ours in DURATIONS.items():
            seconds = self._by_model(getattr(metrics, ours), "_sum")
            microseconds = {key: value * 1e6 for key, value in seconds.items()}
            yield _family(f"{step}_duration_us", "Total time in microseconds.", microseconds)

    def _by_model(self, metric: _Collectable, suffix: str) -> _Values:
        values = self._zeros()
        for labels, value in _samples(metric.collect(), suffix):
            values[labels["model"], labels["version"]] += value
        return values

    def _zeros(self) -> _Values:
        return defaultdict(float, dict.fromkeys(self._metrics.models, 0.0))


def failure_reason(code: int) -> str | None:
    """Triton's failure reason for an HTTP status; None below 400."""
    if code < 400:
        return None
    return _FAILURES.get(code, _OTHER)


def _samples(families: Iterable[Metric], suffix: str) -> Iterator[tuple[Mapping[str, str], float]]:
    for family in families:
        for sample in family.samples:
            if sample.name == family.name + suffix:
                yield sample.labels, sample.value


def _family(
    name: str, text: str, values: _Values, labels: tuple[str, ...] = MODEL, *, kind: str = "unknown"
) -> Metric:
    family = Metric(f"nv_inference_{name}", text, kind)
    for key, value in values.items():
        family.add_sample(family.name, dict(zip(labels, key, strict=True)), value)
    return family
