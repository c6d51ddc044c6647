"""The measured part of docs/explanation/fusion.md: gains of the ladder's rungs beside those of the TurboFNO paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.page import Row, cell, markdown, measured_on, read, times, with_measured_part
from benchmarks.timing import RESULTS

DOCUMENT = Path(__file__).parents[1] / "docs" / "explanation" / "fusion.md"
RESULT = "gpu_ladder.jsonl"
PICTURES = {1: "ladder_1d.png", 2: "ladder_2d.png"}
_CALLS, _COPIES, _NO_COPIES = 5, "cuFFT+cuBLAS", "cuFFT+cuBLAS without copies"
_OURS = ("turbofno", "turbofno, channels last")
_PUBLISHED = "published kernel"


class Ladder(NamedTuple):
    """The measured rungs of one layer.

    Attributes:
        row: The row of its last rung, for batch, channels, grid and machine.
        ms: Milliseconds by rung, 0 to 4; 4 is missing where the kernels refuse it.
        errors: Relative L2 errors by rung.
        network_ms: Milliseconds of the rung that compiled networks run, 3 or 4, as a graph.
        calls_ms: The same, launched from Python.
    """

    row: Row
    ms: dict[int, float]
    errors: dict[int, float]
    network_ms: float
    calls_ms: float

    @property
    def fused_in_networks(self) -> bool:
        """True if compiled networks fuse the analysis."""
        return bool(self.row["analysis fused in networks"])

    @property
    def axes(self) -> int:
        """Grid axes."""
        return len(self.row["grid"])


Gain = Callable[[Ladder], float | None]


def _rung(rung: int) -> Gain:
    def gain(of: Ladder) -> float | None:
        return of.ms[rung - 1] / of.ms[rung] if rung in of.ms else None

    return gain


GAINS: dict[str, Gain] = {
    "1: truncated transforms": _rung(1),
    "2: pruned mix": _rung(2),
    "3: skip, bias, GELU fused": _rung(3),
    "4: next analysis fused": _rung(4),
    "1 to 4, as networks run": lambda of: of.ms[0] / of.network_ms,
    "5: one CUDA graph": lambda of: of.calls_ms / of.network_ms,
}
"""Each rung over the one before, and all over the chain of torch.fft, by name."""


def _transforms(of: Ladder) -> float:
    """Gain of truncated transforms and the pruned mix together."""
    return of.ms[0] / of.ms[2]


def _fusion(of: Ladder) -> float:
    """Gain of rungs 3 and 4, as networks run them."""
    return of.ms[2] / of.network_ms


_ALL: Gain = GAINS["1 to 4, as networks run"]
_BESIDE: tuple[tuple[str, str, str, str, Gain], ...] = (
    (
        "A: truncation, padding, pruning in the FFT, over PyTorch (10, 15)",
        "50 % on average, up to 100 %",
        "above 50 % on average, up to 100 %",
        "1 and 2 over 0",
        _transforms,
    ),
    (
        "C: product and inverse FFT in one kernel, over A (12, 17)",
        "10 to 30 % slower at 32 and 128 channels, 5 % in some cases",
        "1 to 3 %",
        "3 over 2",
        _rung(3),
    ),
    (
        "B: FFT and product in one kernel, over A (11, 16)",
        "3 to 5 %, from 128 channels on it may be slower",
        "1 to 2 %",
        "4 over 3",
        _rung(4),
    ),
    (
        "D: all in one kernel, over A to C (13, 18)",
        "10 to 20 %, at some sizes slower",
        "2 to 3 %",
        "3 and 4, as networks run, over 2",
        _fusion,
    ),
    (
        "E: the best of all, over PyTorch (14, 19)",
        "44 % on average, up to 250 %",
        "67 % on average, up to 150 %",
        "1 to 4, as networks run, over 0",
        _ALL,
    ),
    (
        "no launches from the host",
        "not measured",
        "not measured",
        "5",
        GAINS["5: one CUDA graph"],
    ),
)
"""Steps of the paper with figures; gains in one and two dimensions; our rungs; their gain."""


def ladders(rows: list[Row]) -> list[Ladder]:
    """The layers of a result file."""
    found = []
    steps = [row for row in rows if row["rung"] is not None]
    for _, group in groupby(steps, key=lambda row: row["layer"]):
        *rungs, last = group
        if last["rung"] != _CALLS:
            raise ValueError(f"{last['layer']} lacks its last rung")
        ms = {row["rung"]: row["ms"] for row in rungs}
        errors = {row["rung"]: row["relative L2 error"] for row in rungs}
        found.append(Ladder(last, ms, errors, last["ms"], last["calls ms"]))
    return found


def _gains(gain: Gain, of: list[Ladder]) -> list[float]:
    return [value for ladder in of if (value := gain(ladder)) is not None]


def _range(values: list[float]) -> str | None:
    """Median, least and most."""
    if not values:
        return None
    return f"{times(median(values))} ({times(min(values))} to {times(max(values))})"


def beside(found: list[Ladder]) -> list[str]:
    """The table of the paper's gains and ours; ours are missing where nothing is measured."""
    return markdown(
        [
            *("the paper's step (figures)", "theirs, 1D", "theirs, 2D", "our rungs"),
            *("ours, 1D", "ours, 2D"),
        ],
        [
            [
                *(step, one, two, rungs),
                *(
                    _range(_gains(gain, [x for x in found if x.axes == axes])) or "not measured"
                    for axes in (1, 2)
                ),
            ]
            for step, one, two, rungs, gain in _BESIDE
        ],
    )


def _by_grid(found: list[Ladder]) -> list[str]:
    grids = dict.fromkeys(tuple(x.row["grid"]) for x in found)
    rows = []
    for grid in grids:
        of = [x for x in found if tuple(x.row["grid"]) == grid]
        modes = "x".join(map(str, of[0].row["modes"]))
        gains = (_range(_gains(gain, of)) for gain in GAINS.values())
        rows.append([f"{'x'.join(map(str, grid))}, {modes} kept", len(of), *gains])
    return markdown(["grid", "layers", *GAINS], rows)


def _analysis(found: list[Ladder]) -> list[str]:
    rows = []
    for fused, where in ((True, "networks fuse it"), (False, "networks run it as a kernel")):
        gains = _gains(_rung(4), [x for x in found if x.fused_in_networks == fused])
        if gains:
            rows.append([where, len(gains), _range(gains)])
    return markdown(["the next analysis", "layers", "gain when fused"], rows)


def _errors(found: list[Ladder]) -> str:
    rungs = sorted({rung for x in found for rung in x.errors})
    most = (
        f"{cell(max(x.errors[rung] for x in found if rung in x.errors))} on rung {rung}"
        for rung in rungs
    )
    return f"Largest relative L2 error against float64: {', '.join(most)}."


def worth(found: list[Ladder]) -> list[str]:
    """Sentences on the fusion by itself."""
    said = []
    for axes in sorted({x.axes for x in found}):
        of = [x for x in found if x.axes == axes]
        whole, by_itself = median(_gains(_ALL, of)), median(_gains(_fusion, of))
        shares = [
            math.log(fused) / math.log(every)
            for fused, every in zip(_gains(_fusion, of), _gains(_ALL, of), strict=True)
            if every > 1
        ]
        share = f"{median(shares):.0%}" if shares else "no part"
        slower = sum(gain < 1 for gain in _gains(_fusion, of))
        said += [
            f"In {axes}D the whole ladder up to rung 4 is worth {times(whole)}, the fusion by itself (rungs 3 and 4 over",
            f"rung 2) {times(by_itself)}, truncated transforms and the pruned mix {times(median(_gains(_transforms, of)))}; "
            f"medians of {len(of)} layers. On the",
            f"logarithmic scale, on which gains add up, fusion is {share} of the whole. It is slower on {slower} layers.",
            "",
        ]
    return said


def _shared_weight(rows: list[Row]) -> list[str]:
    table = []
    for _, group in groupby(rows, key=lambda row: row["layer"]):
        of = {row["what"]: row for row in group}
        one = next(iter(of.values()))
        names = (_COPIES, _NO_COPIES, *_OURS, _PUBLISHED)
        shown = (
            f"{cell(of[name]['ms'])} ({times(of[name]['ms'] / one['floor ms'])})"
            if name in of
            else None
            for name in names
        )
        ours = min(of[name]["ms"] for name in _OURS)
        ratios = (times(of[name]["ms"] / ours) for name in (_COPIES, _NO_COPIES))
        table.append(
            [one["grid"][0], one["channels"], one["batch"], one["floor ms"], *shown, *ratios]
        )
    published = any(row["what"] == _PUBLISHED for row in rows)
    return [
        *markdown(
            [
                *("points", "channels", "batch", "floor", "cuFFT+cuBLAS", "without copies"),
                *(*_OURS, _PUBLISHED, "x cuFFT+cuBLAS", "x without copies"),
            ],
            table,
        ),
        "The published kernel's times are those that its program prints; its result is not checked."
        if published
        else "The published kernel is left out: the run was given no checkout of it.",
        "",
    ]


def section(rows: list[Row]) -> list[str]:
    """The measured part of the page."""
    found = ladders(rows)
    lines = [
        "## Side by side",
        "",
        "Theirs as the paper states them: 100 % is twice as fast. Ours: median (least to most) of all layers; 2x is twice",
        "as fast.",
        "",
        *beside(found),
    ]
    if not rows:
        return [*lines, "Ours are not measured yet: `python -m benchmarks.gpu ladder`.", ""]
    lines += measured_on(rows[0])
    if found:
        lines += ["## By itself", "", *worth(found), "## Each rung", ""]
        lines += [
            "Gain of each rung over the one before: median (least to most) over batch and hidden channels.",
            "",
        ]
        lines += _by_grid(found)
        for axes, picture in PICTURES.items():
            if any(x.axes == axes for x in found):
                alt = f"Gain of each rung over the one before in {axes}D, over batch and hidden channels"
                lines += [f"![{alt}](../{picture})", ""]
        lines += [*_analysis(found), _errors(found), ""]
    shared = [row for row in rows if row["rung"] is None]
    if shared:
        lines += ["## The paper's own case", ""]
        lines += [
            "Milliseconds and, in brackets, multiples of the floor: the complex field read once and written once. The last",
            "columns: times of cuFFT and cuBLAS over the faster of ours.",
            "",
        ]
        lines += _shared_weight(shared)
    return lines


def document(results: Path = RESULTS, page: Path = DOCUMENT) -> str:
    """The whole page, with its measured part from the result file if there is one."""
    file = results / RESULT
    return with_measured_part(page, section(read(file) if file.is_file() else []))
