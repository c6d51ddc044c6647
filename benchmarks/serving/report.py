"""The comparison of servers as tables for docs/benchmarks.md."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from benchmarks.page import cell, markdown
from benchmarks.serving.measure import PEERS_HALF
from benchmarks.serving.servers import BARE, OURS

Row = dict[str, Any]

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
    for title, of_case in _cases(rows):
        page += [f"### {title}", ""]
        page += markdown(_COLUMNS, [_line(name, of) for name, of in _by_server(of_case).items()])
        page += _ratios(of_case)
    page += _limits(rows)
    return page


def summary(lines: list[Row]) -> list[str]:
    """Fields/s of every server at its best, and what turbofno keeps of its peak past saturation."""
    cases = [(title, _by_server(of)) for title, of in _cases(lines[2:])]
    servers = list(dict.fromkeys(name for _, of in cases for name in of))
    table = [
        [title, *(round(_best(of[name])["fields/s"]) if name in of else None for name in servers)]
        for title, of in cases
    ]
    kept = [
        f"{past.get('of peak', past['fields/s'] / _best(of[OURS])['fields/s']):.0%} ({title})"
        for title, of in cases
        if (past := _at(of.get(OURS, []), "open, 4 of peak"))
    ]
    return [
        *markdown(["fields/s", *servers], table),
        f"Offered four times its peak, turbofno serves, of its peak: {', '.join(kept)}.",
    ]


def _cases(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    """Title and rows of each network, body format and size."""
    found = sorted([row for row in rows if "body" in row and "model" in row], key=_order)
    by_case = groupby(found, key=lambda row: (row["model"], row["body"], row["side"]))
    return [(f"{model}, {body}, {side}x{side}", list(of)) for (model, body, side), of in by_case]


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


def best_peer(of_case: list[Row]) -> Row | None:
    """The row with the most fields/s of the peers that batch, of one case's; None if none was measured."""
    of_peers = [row for row in of_case if not row["server"].startswith((OURS, BARE))]
    return _best(of_peers) if of_peers else None


def _ratios(of_case: list[Row]) -> list[str]:
    """A line with our rate and p99 relative to the best peer that batches."""
    servers, peer = _by_server(of_case), best_peer(of_case)
    if OURS not in servers or peer is None:
        return []
    ours = servers[OURS]
    gain = _best(ours)["fields/s"] / peer["fields/s"]
    text = f"turbofno: {cell(gain)}x the fields/s of the best peer ({peer['server']})"
    own = _at(ours, PEERS_HALF).get("p99 ms")
    its = _at(servers[peer["server"]], "open, 0.5 of peak").get("p99 ms")
    if own is not None and its is not None:
        text += f"; at half that peer's peak, p99 {cell(own)} ms, {cell(own / its)}x its own"
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
    wanted = {"server": OURS, "model": forward["model"], "side": forward["side"]}
    wanted |= {"body": "binary", "load": "closed, 1"}
    for row in rows:
        if wanted.items() <= row.items() and row["p50 ms"] is not None:
            return float(row["p50 ms"] - forward["p50 ms"])
    return None
