"""Triton's names for what we measure, so that its dashboards and autoscalers work unchanged."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from service.metrics import Metrics

_Values = dict[tuple[str, ...], float]

MODEL = ("model", "version")
DURATIONS = {
    "request": "request_duration",
    "queue": "queue",
    "compute_input": "decode",
    "compute_infer": "compute",
    "compute_output": "encode",
}
"""Triton's step -> our histogram. Triton's input and output steps copy tensors; ours also take a body apart and make one."""


class TritonMetrics(Collector):
    """nv_inference_*{model,version}, computed from our own metrics at each scrape.

    Sums of ours over processes give sums of these: each is linear in what it is made of. Counters are untyped, because
    Triton's lack the suffix that the text format's counters have here.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        answered: _Values = defaultdict(float)
        failed: _Values = defaultdict(float)
        for labels, value in _samples(metrics.requests.collect(), "_total"):
            if labels["model"]:
                key = (labels["model"], labels["version"])
                reason = failure_reason(int(labels["code"]))
                if reason is None:
                    answered[key] += value
                else:
                    failed[*key, reason] += value
        yield _family("request_success", "Requests answered.", answered)
        yield _family("request_failure", "Requests failed.", failed, (*MODEL, "reason"))
        fields = _by_model(metrics.fields.collect(), "_total")
        yield _family("count", "Fields predicted.", fields)
        batches = _by_model(metrics.batch_size.collect(), "_count")
        yield _family("exec_count", "Batches run.", batches)
        waiting = _by_model(metrics.queue_depth.collect(), "")
        yield _family("pending_request_count", "Fields waiting.", waiting, kind="gauge")
        for step, ours in DURATIONS.items():
            seconds = _by_model(getattr(metrics, ours).collect(), "_sum")
            microseconds = {key: value * 1e6 for key, value in seconds.items()}
            yield _family(f"{step}_duration_us", "Microseconds in all.", microseconds)


def failure_reason(code: int) -> str | None:
    """Triton's reason for an HTTP status; None for an answer."""
    if code < 400:
        return None
    return {429: "REJECTED", 503: "REJECTED", 504: "REJECTED", 499: "CANCELED", 500: "BACKEND"}.get(
        code, "OTHER"
    )


def _samples(families: Iterable[Metric], suffix: str) -> Iterator[tuple[Mapping[str, str], float]]:
    for family in families:
        for sample in family.samples:
            if sample.name == family.name + suffix:
                yield sample.labels, sample.value


def _by_model(families: Iterable[Metric], suffix: str) -> _Values:
    values: _Values = defaultdict(float)
    for labels, value in _samples(families, suffix):
        values[labels["model"], labels["version"]] += value
    return values


def _family(
    name: str, text: str, values: _Values, labels: tuple[str, ...] = MODEL, *, kind: str = "unknown"
) -> Metric:
    family = Metric(f"nv_inference_{name}", text, kind)
    for key, value in values.items():
        family.add_sample(family.name, dict(zip(labels, key, strict=True)), value)
    return family
