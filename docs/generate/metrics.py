"""Write reference/metrics.md from the metrics that the service registers."""

from typing import Any

import mkdocs_gen_files

from turbofno.service.metrics import Metrics

_INTRODUCTION = """\
---
hide: [toc]
---
# Metrics

`GET /metrics` answers in Prometheus' text format. Counters of a model are 0 as soon as it is loaded. With
[several processes](../how-to/processes.md) the supervisor adds up what all processes count.
`TURBOFNO_TRITON_METRICS=true` adds the same numbers under Triton's names ([differences](../how-to/observe.md#tritons-names)).

| metric | type | labels | meaning |
| --- | --- | --- | --- |
"""


def labels(collector: Any, family: Any) -> str:
    """The label names of a family, which only some collectors know without a sample."""
    names = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
    return ", ".join(f"`{name}`" for name in names)


with mkdocs_gen_files.open("reference/metrics.md", "w") as page:
    page.write(_INTRODUCTION)
    registry = Metrics().registry
    for collector in registry._collector_to_names:
        for family in collector.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            if family.name.startswith("turbofno"):
                page.write(
                    f"| `{name}` | {family.type} | {labels(collector, family)} | {family.documentation} |\n"
                )
    page.write(
        "\nThe process, Python and garbage collection metrics of `prometheus_client` come on top.\n"
    )
