"""The comparison of servers as tables for docs/benchmarks.md."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from benchmarks.page import cell, markdown

Row = dict[str, Any]

_OURS = "turbofno"
_BARE = "bare uvicorn + torch"
_COLUMNS = (
    *("server", "best fields/s", "CPU ms/field", "p50 ms, 1 client", "half load p50 ms"),
    *(
        "half load p99 ms",
        "90 % p99 ms",
        "2x: fields/s",
        "2x: p99 ms",
        "4x: fields/s",
        "4x: p99 ms",
    ),
)


def serving(lines: list[Row]) -> list[str]:
    """The section of results/serving.jsonl, whose first lines are the environment and the shares of cores."""
    where, cores, *rows = lines
    machine = f"{where['processor']}, PyTorch {where['torch']}, commit {where['commit']}"
    shared = f"client on {cores['client cores']} core, server on {cores['server cores']}"
    page = [
        "## Servers compared",
        "",
        f"{machine}, {where['at'][:10]}; {shared}; `make bench-serving`. Configurations and columns:",
        "[Comparison](explanation/comparison.md).",
        "",
    ]
    found = [row for row in rows if "body" in row and "model" in row]
    for (model, body, side), group in groupby(
        sorted(found, key=_order), key=lambda row: (row["model"], row["body"], row["side"])
    ):
        servers = _by_server(list(group))
        page += [f"### {model}, {body}, {side}x{side}", ""]
        page += markdown(_COLUMNS, [_line(name, of) for name, of in servers.items()])
        page += _ratios(servers)
    page += _limits(rows)
    return page


def _order(row: Row) -> tuple[bool, bool, int]:
    return row["model"] != "light-2d", row["body"] == "JSON", row["side"]


def _by_server(rows: list[Row]) -> dict[str, list[Row]]:
    servers: dict[str, list[Row]] = {}
    for row in rows:
        servers.setdefault(row["server"], []).append(row)
    return servers


def _best(rows: list[Row]) -> Row:
    return max(
        (row for row in rows if row["load"].startswith("closed")), key=lambda row: row["fields/s"]
    )


def _at(rows: list[Row], load: str) -> Row:
    return next((row for row in rows if row["load"] == load), {})


def _line(name: str, rows: list[Row]) -> list[object]:
    best, alone = _best(rows), _at(rows, "closed, 1")
    half, nearly = _at(rows, "open, 0.5 of peak"), _at(rows, "open, 0.9 of peak")
    line = [name, best["fields/s"], best["CPU ms/field"], alone["p50 ms"]]
    line += [half.get("p50 ms"), half.get("p99 ms"), nearly.get("p99 ms")]
    for load in ("open, 2 of peak", "open, 4 of peak"):
        past = _at(rows, load)
        line += [past.get("fields/s"), past.get("p99 ms")]
    return line


def _ratios(servers: dict[str, list[Row]]) -> list[str]:
    """A line with our rate and p99 relative to the best peer that batches."""
    peers = {name: of for name, of in servers.items() if not name.startswith((_OURS, _BARE))}
    if _OURS not in servers or not peers:
        return []
    ours = servers[_OURS]
    fastest = max(peers, key=lambda name: float(_best(peers[name])["fields/s"]))
    gain = _best(ours)["fields/s"] / _best(peers[fastest])["fields/s"]
    text = f"turbofno: {cell(gain)}x the fields/s of the best peer ({fastest})"
    halves = {name: _at(of, "open, 0.5 of peak").get("p99 ms") for name, of in peers.items()}
    known = {name: p99 for name, p99 in halves.items() if p99 is not None}
    own = _at(ours, "open, 0.5 of peak").get("p99 ms")
    if known and own is not None:
        calmest = min(known, key=lambda name: float(known[name]))
        text += (
            f"; p99 at half load {cell(own / known[calmest])}x that of the best peer ({calmest})"
        )
    return [f"{text}.", ""]


def _limits(rows: list[Row]) -> list[str]:
    """The limits: the network without a server, and a server without work."""
    of_forward = ("model", "side", "load", "network", "p50 ms", "fields/s", "above")
    of_null = ("side", "load", "fields/s", "p50 ms", "p99 ms", "late ms")
    forward = [
        {
            **row,
            "above": _above(row, rows)
            if row["load"] == "batch 1" and row["network"] in ("ours", "replayed")
            else None,
        }
        for row in rows
        if row["server"] == "bare forward"
    ]
    null = [row for row in rows if row["server"] == "null server"]
    failed = [[row["server"], row["failed"]] for row in rows if "failed" in row]
    return [
        "### Limits",
        "",
        "The network without a server on the server's cores, one thread: the module that all servers run here, replayed as",
        "turbofno runs it, and through torch.fft, as other libraries run such networks:",
        "",
        *markdown(
            (
                *("model", "grid", "fields at once", "network", "ms", "fields/s"),
                "turbofno's p50 above it, ms",
            ),
            [[row[key] for key in of_forward] for row in forward],
        ),
        "The load generator against a server that does nothing:",
        "",
        *markdown(
            ("grid", "load", "requests/s", "p50 ms", "p99 ms", "sent late, p99 ms"),
            [[row.get(key) for key in of_null] for row in null],
        ),
        *(["Left out:", "", *markdown(("server", "why"), failed)] if failed else []),
    ]


def _above(forward: Row, rows: list[Row]) -> float | None:
    """Milliseconds by which our p50 for one client and binary bodies exceeds that of the module."""
    wanted = {"server": _OURS, "model": forward["model"], "side": forward["side"]}
    wanted |= {"body": "binary", "load": "closed, 1"}
    for row in rows:
        if wanted.items() <= row.items() and row["p50 ms"] is not None:
            return float(row["p50 ms"] - forward["p50 ms"])
    return None
