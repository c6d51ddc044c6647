"""Write docs/benchmarks.md and the measured parts of other pages: `python -m benchmarks.tables`."""

from __future__ import annotations

from pathlib import Path

from benchmarks import fusion
from benchmarks.gpu.report import (
    gpu_drawn,
    gpu_fft,
    gpu_gradients,
    gpu_heatmap,
    gpu_imported,
    gpu_layers,
    gpu_models,
    gpu_ntt,
    gpu_plans,
    gpu_trust,
)
from benchmarks.page import Row, markdown, read, with_measured_part
from benchmarks.serving.gpu.report import serving_gpu
from benchmarks.serving.report import serving, summary
from benchmarks.timing import RESULTS, no_options

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
COMPARISONS = ROOT / "README.md", ROOT / "docs" / "explanation" / "comparison.md"
"""Pages with the summary of the servers."""


def chains(lines: list[Row]) -> list[str]:
    """The section of the share of imported networks that run as chains; the first line is the environment."""
    where, *rows = lines
    by_kind, by_mlp, refused = (
        [row for row in rows if key in row] for key in ("networks", "expansion", "refused")
    )
    places = [key for key in by_kind[0] if key.startswith("chain on ")]
    return [
        "## Imported networks as chains of kernels",
        "",
        f"PyTorch {where['torch']}, commit {where['commit']}, {where['at'][:10]}; `python -m benchmarks.chains`.",
        "",
        "Networks with random weights, saved by neuraloperator 2.0.0, or with PhysicsNeMo's tensors, and imported. Defaults: 64",
        "channels (PhysicsNeMo's 32) and one common change each. Drawn: every argument that changes the result varies. On the CPU",
        "each ran as a chain of torch stages; distance is its relative L2 distance from the library. Where the largest exceeds 1e-5,",
        "the last column has the library's own float32 error against float64. For the cards the kernels' support checks were asked at",
        "float32, with the card's limits; no card ran. A chain somewhere is one on each of three grids (CPU: up to 256, 45x45,",
        "18x18x18; cards: up to 4096, 256x256, 64x64x64, with odd sizes).",
        "",
        *markdown(
            [
                *("networks", "count", "import", *places, "median distance", "largest distance"),
                "library's float32 error there",
            ],
            [
                [
                    *(row["networks"], row["count"], row["import"]),
                    *(_share_of(row[place], row["import"]) for place in places),
                    *(row["median distance"], row["largest distance"], row["float32 error there"]),
                ]
                for row in by_kind
            ],
        ),
        "Drawn networks by hidden channels and by the expansion of their channel MLPs (the library's default is 0.5):",
        "",
        *markdown(
            ["channels", "expansion", "import", *places],
            [
                [
                    *(row["channels"], row["expansion"] or "no MLP", row["import"]),
                    *(_share_of(row[place], row["import"]) for place in places),
                ]
                for row in by_mlp
            ],
        ),
        "Refusals, each with the channels of its networks and, in brackets, how many they are:",
        "",
        *markdown(["refused", "times", "channels", "why"], (list(row.values()) for row in refused)),
    ]


def _share_of(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else ""


_CPU_TITLES = {
    "ops": "Spectral convolution on a CPU",
    "models": "Whole models on a CPU",
    "caches": "CPU milliseconds of a field by the number of fields at once",
    "service": "The service",
    "resolution": "Error by the grid on which the network runs",
    "factorised": "Factorised weights: channel product of one layer",
    "tfno": "Factorised weights: whole networks on a CPU",
}


def over_cards(lines: list[Row]) -> list[str]:
    """The section of fields cut over GPUs; the first line is the environment."""
    rows = lines[1:]
    last = max((row for row in rows if row["gpu"] is not None), key=lambda row: row["at"])
    return [
        "## One field over several GPUs",
        "",
        f"PyTorch {last['torch']}, {last['at'][:10]} and before; `python -m benchmarks.distributed`.",
        "float32, one process a card. Efficiency: the time of one card, divided by cards and time;",
        "that of an FFT of slabs refers to plain PyTorch on one card. Exchange: of the kept modes, or of the field, alone; that",
        "of an FFT runs beside other work, that of a network is part of the product of modes. A call alone also waits for the",
        "slowest host process. Rows with a citation are published, of A100 cards. [How it works](explanation/slabs.md).",
        "",
        *markdown(
            [
                *("what", "GPU", "cards", "grid", "ms"),
                *("efficiency", "exchange, ms", "GiB a card", "commit"),
            ],
            [
                [
                    *(row["what"], row["gpu"], row["cards"], row.get("grid"), row["ms"]),
                    *(row.get("efficiency"), row.get("exchange_ms"), row.get("gib_a_card")),
                    row["commit"] if row["gpu"] else None,
                ]
                for row in sorted(
                    rows, key=lambda row: (row["what"], row["gpu"] or "", row["cards"])
                )
            ],
        ),
    ]


def _cpu(name: str, lines: list[Row]) -> list[str]:
    """The section of a file whose first line is the environment and whose rows are flat."""
    where, *rows = lines
    machine = f"{where['processor']}, {where['threads']} threads, PyTorch {where['torch']}"
    return [
        f"## {_CPU_TITLES[name]}",
        "",
        f"{machine}, commit {where['commit']}, {where['at'][:10]}; `python -m benchmarks.{name}`.",
        "",
        *markdown(list(rows[0]), (list(row.values()) for row in rows)),
    ]


def document(results: Path = RESULTS) -> str:
    """The whole page, from the result files that exist."""
    lines = [
        "# Benchmarks",
        "",
        "Generated by `python -m benchmarks.tables` from `benchmarks/results/`; do not edit. `make bench`, `make bench-serving`",
        "and, with a GPU, `make bench-gpu` measure again. Times are medians of runs in turn.",
        "",
    ]
    for name, section in (
        ("gpu_layers", gpu_layers),
        ("gpu_models", gpu_models),
        ("gpu_gradients", gpu_gradients),
        ("gpu_imported", gpu_imported),
        ("gpu_drawn", gpu_drawn),
        ("gpu_plans", gpu_plans),
        ("chains", chains),
        ("gpu_heatmap", gpu_heatmap),
        ("gpu_fft", gpu_fft),
        ("gpu_trust", gpu_trust),
        ("gpu_ntt", gpu_ntt),
        ("distributed", over_cards),
    ):
        if (file := results / f"{name}.jsonl").is_file():
            lines += section(read(file))
    for name in _CPU_TITLES:
        if (file := results / f"{name}.jsonl").is_file():
            lines += _cpu(name, read(file))
    if (file := results / "serving.jsonl").is_file():
        lines += serving(read(file))
    for name in ("serving_gpu", "serving_gpus"):
        if (file := results / f"{name}.jsonl").is_file():
            lines += serving_gpu(read(file))
    return "\n".join(lines).rstrip() + "\n"


def pages() -> dict[Path, str]:
    """Every page that has results, and its text."""
    servers = summary(read(RESULTS / "serving.jsonl"))
    return {
        DOCUMENT: document(),
        fusion.DOCUMENT: fusion.document(),
        **{page: with_measured_part(page, servers) for page in COMPARISONS},
    }


def main() -> None:
    """Write the pages."""
    for page, text in pages().items():
        page.write_text(text)
        print(f"written to {page.relative_to(ROOT)}")


if __name__ == "__main__":
    no_options(__doc__)
    main()
