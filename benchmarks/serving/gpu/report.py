"""The service on a GPU as tables for docs/benchmarks.md."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from benchmarks.page import cell, markdown

Row = dict[str, Any]

_ALONE = ("batch", "on the device", "through the pipeline")
_SERVED = (
    "devices",
    "frontends",
    "max batch",
    "fields a request",
    "load",
    "fields/s",
    "p50 ms",
    "p99 ms",
    "mean batch",
)
_FEW = ("frontends", "connections", "fields/s", "p50 ms", "p99 ms", "mean batch")
_CPU = ("frontend", "frontend system", "engine", "engine loop", "client")


def over_several(rows: list[Row]) -> bool:
    """True if the service ran on several GPUs, as many engines or as one."""
    return any({",", "+"} & set(row.get("devices", "")) for row in rows)


def serving_gpu(lines: list[Row]) -> list[str]:
    """The section of a result file of the service; its first two lines are the environment and the GPU."""
    host, where, *rows = lines
    shared = next(row for row in rows if "server cores" in row)
    page = [
        f"## Served from {'several GPUs' if over_several(rows) else 'a GPU'}",
        "",
        f"{where['gpu']}, {host['threads']} cores ({host['processor']}): {shared['server cores']} for the server, "
        f"{shared['client cores']} for as many clients;",
        f"PyTorch {where['torch']}, commit {where['commit']}, {where['at'][:10]}; `python -m benchmarks.serving.gpu`. Limits:",
        "[Performance](explanation/performance.md). Fields of 128x128, fp32, 64 KB in and 64 KB out, binary over loopback; every",
        "answer is compared with float64. Open loops run at 70 % of the rate of the closed loop above. The model's rate is that of",
        "one GPU. CPU: microseconds of all cores for a field; clients of an open loop spin.",
        "",
    ]
    for name, group in groupby(rows, key=lambda row: row.get("model")):
        if name is not None:
            page += _model(name, list(group))
    return page + _ceilings(rows)


def _model(name: str, rows: list[Row]) -> list[str]:
    alone = [row for row in rows if "on the device" in row]
    served = [row for row in rows if "frontends" in row and row["load"] != "few"]
    engine = [row for row in rows if "engine CPU us/field" in row and "frontends" not in row]
    bare = max(float(row["on the device"]) for row in alone)
    page = [
        f"### {name}",
        "",
        "Fields a second without HTTP: of the compiled model in device memory, and through the service's pipeline in one",
        "process, from single fields in host memory to answers there:",
        "",
        *markdown(("batch", "model", "pipeline"), [[row[key] for key in _ALONE] for row in alone]),
    ]
    page += [
        f"The engine process alone, single fields ({row['load']}): {cell(row['fields/s'])} fields/s, "
        f"{cell(row['engine CPU us/field'])} us of CPU a field, of which {cell(row['engine loop CPU us/field'])} on its event loop."
        for row in engine
    ]
    return [
        *page,
        *([""] if engine else []),
        *markdown(
            (
                *_SERVED[:6],
                "share of the model's rate",
                *_SERVED[6:],
                *(f"{role} CPU" for role in _CPU),
                "errors",
            ),
            [
                [
                    *(row[key] for key in _SERVED[:6]),
                    f"{100 * row['fields/s'] / bare:.0f} %",
                    *(row[key] for key in _SERVED[6:]),
                    *(row[f"{role} CPU us/field"] for role in _CPU),
                    sum(row["errors"].values()),
                ]
                for row in served
            ],
        ),
        *_of_few([row for row in rows if row.get("load") == "few"]),
    ]


def _of_few(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    return [
        "Single fields of a few clients on one GPU, in a closed loop; without front ends the service is one process:",
        "",
        *markdown(
            (*_FEW, "errors"),
            [[*(row[key] for key in _FEW), sum(row["errors"].values())] for row in rows],
        ),
    ]


def _ceilings(rows: list[Row]) -> list[str]:
    bus = ", ".join(f"{cell(row['GB/s'])} GB/s {row['bus']}" for row in rows if "bus" in row)
    page = [f"The bus, pinned memory: {bus}."]
    page += [
        f"Sockets over loopback, {row['loopback']}, both ends together: {cell(row['us'])} us, "
        f"{cell(row['system CPU us'])} us of CPU in the kernel and {cell(row['user CPU us'])} outside."
        for row in rows
        if "loopback" in row
    ]
    return [*page, ""]
