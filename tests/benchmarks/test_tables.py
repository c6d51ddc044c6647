"""docs/benchmarks.md and the heat map, from result files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.gpu.device import floor_ms
from benchmarks.gpu.picture import draw, speed_ups
from benchmarks.page import markdown
from benchmarks.serving.gpu.report import over_several
from benchmarks.tables import document, pages

WHERE = {"gpu": "GPU", "torch": "2.11", "cuda": "13.0", "commit": "abc", "at": "2026-11-21T00:00"}


def write(file: Path, rows: list[dict[str, object]]) -> None:
    file.write_text("".join(json.dumps({**row, **WHERE}) + "\n" for row in rows))


def layer_row(what: str, precision: str, ms: float, error: float) -> dict[str, object]:
    return {
        "layer": "2D B1",
        "what": what,
        "backend": "b",
        "precision": precision,
        "ms": ms,
        "floor ms": 0.05 if precision == "bf16" else 0.1,
        "floor with spectra ms": 0.1 if precision == "bf16" else 0.16,
        "relative L2 error": error,
    }


def cells(page: str, header: str) -> dict[str, str]:
    """The first row of the table whose header line contains `header`, by column."""
    lines = page.splitlines()
    at = next(i for i, line in enumerate(lines) if header in line)
    names, values = ([c.strip() for c in lines[j].strip("|").split("|")] for j in (at, at + 2))
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_committed_page_matches_the_committed_results(page: Path) -> None:
    assert page.read_text() == pages()[page], "run `python -m benchmarks.tables`"


def test_layers_are_compared_with_the_peers_best(tmp_path: Path) -> None:
    rows = [
        layer_row("turbofno alone, call", "fp32", 0.5, 1e-7),
        layer_row("turbofno alone, graph", "fp32", 0.4, 1e-7),
        layer_row("turbofno in a chain", "fp32", 0.2, 1e-7),
        layer_row("turbofno alone, graph", "bf16", 0.25, 3e-3),
        layer_row("turbofno in a chain", "bf16", 0.1, 3e-3),
        layer_row("eager, call", "fp32, 1x1 convolution TF32", 3.0, 1e-3),
        layer_row("eager, graph", "fp32, 1x1 convolution TF32", 1.0, 1e-3),
        layer_row("eager, graph", "fp32", 1.5, 2e-7),
        layer_row("cuFFT+cuBLAS, graph", "fp32", 0.8, 3e-7),
    ]
    write(tmp_path / "gpu_layers.jsonl", rows)
    page = document(tmp_path)
    times = cells(page, "in a chain, fp32")
    assert times["in a chain, fp32"] == "0.2 (2x)"
    assert times["alone, fp32"] == "0.4 (4x)"
    assert times["chain, bf16"] == "0.1 (2x)"
    assert times["PyTorch eager"] == "1 (10x)"
    assert times["torch.compile"] == ""
    with_spectra = cells(page, "floor with spectra")
    assert with_spectra["floor with spectra"] == "0.16"
    assert with_spectra["fp32"] == "0.2 (1.25x)"
    assert with_spectra["bf16"] == "0.1 (1x)"
    gains = cells(page, "chain: eager by calls")
    assert gains["chain: eager by calls"] == "15x"
    assert gains["chain: eager"] == "5x"
    assert gains["alone: cuFFT+cuBLAS"] == "2x"
    assert gains["bf16 over fp32"] == "2x"
    errors = cells(page, "eager strict")
    assert errors["eager"] == "0.001"
    assert errors["eager strict"] == "2.0e-07"


def test_models_are_fields_a_second(tmp_path: Path) -> None:
    def row(what: str, precision: str, ms: float) -> dict[str, object]:
        return {
            "model": "m",
            "batch": 8,
            "what": what,
            "precision": precision,
            "ms": ms,
            "fields/s": 8 / ms * 1e3,
            "relative L2 error": 1e-7,
        }

    rows = [
        row("turbofno", "fp32", 1.0),
        row("eager, call", "fp32, 1x1 convolutions TF32", 16.0),
        row("eager, graph", "fp32, 1x1 convolutions TF32", 8.0),
    ]
    write(tmp_path / "gpu_models.jsonl", rows)
    found = cells(document(tmp_path), "x eager")
    assert found["fp32"] == "8000"
    assert found["x eager"] == "16x"
    assert found["x eager, graph"] == "8x"
    assert found["x torch.compile"] == ""


def test_imported_networks_are_compared_with_strict_float32(tmp_path: Path) -> None:
    def row(what: str, precision: str, ms: float, error: float) -> dict[str, object]:
        return {
            "network": "n",
            "batch": 8,
            "peer": "neuraloperator 2.0",
            "what": what,
            "execution": "graph" if what == "turbofno" else "",
            "backend": "cuda",
            "precision": precision,
            "ms": ms,
            "copy TB/s": 4.2,
            "relative L2 error": error,
            "float32 error on the CPU": 3e-7,
        }

    rows = [
        row("turbofno", "fp32", 1.0, 2e-7),
        row("eager, call", "fp32, convolutions TF32", 6.0, 1e-3),
        row("eager, graph", "fp32, convolutions TF32", 4.0, 1e-3),
        row("eager, call", "fp32", 8.0, 4e-7),
        row("eager, graph", "fp32", 5.0, 4e-7),
    ]
    write(tmp_path / "gpu_imported.jsonl", rows)
    page = document(tmp_path)
    times = cells(page, "x graph")
    assert (times["x eager"], times["x graph"], times["x eager, TF32"]) == ("8x", "5x", "6x")
    assert (times["runs as"], times["backend"]) == ("graph", "cuda")
    errors = cells(page, "float32 on the CPU |")
    assert (errors["turbofno"], errors["eager"]) == ("2.0e-07", "4.0e-07")
    assert "4.2 TB/s" in page


def heatmap_rows() -> list[dict[str, object]]:
    return [
        {
            "layer": f"B{batch} C{channels}",
            "batch": batch,
            "channels": channels,
            "grid": grid,
            "modes": modes,
            "speed-up": batch / channels,
            "1x1 convolution of eager": "TF32",
            **WHERE,
        }
        for grid, modes in (([128, 128], [24, 12]), ([1024], [16]))
        for batch in (4, 16, 64)
        for channels in (8, 32)
        if (batch, channels) != (4, 32)
    ]


def test_speed_ups_are_in_their_cells() -> None:
    batches, channels, table = speed_ups(heatmap_rows())
    assert (batches, channels) == ([4, 16, 64], [8, 32])
    np.testing.assert_array_equal(table, [[0.5, 2, 8], [np.nan, 0.5, 2]])


def test_picture_is_drawn(tmp_path: Path) -> None:
    draw(heatmap_rows(), tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    write(tmp_path / "gpu_heatmap.jsonl", heatmap_rows())
    assert "Least: 0.5x at B4 C8. Most: 8x at B64 C8." in document(tmp_path)


def test_numbers_in_a_table() -> None:
    row = markdown(["a"] * 6, [[1234.5, 3.14159, 2.5e-7, 0.0, None, "x"]])[2]
    assert row == "| 1234 | 3.14 | 2.5e-07 | 0 |  | x |"


def test_floor_reads_once_and_writes_once() -> None:
    values = 32 * 64 * 128 * 128
    assert floor_ms(values, 4, 4e12) == pytest.approx(0.0671, rel=1e-3)
    assert floor_ms(values, 2, 4e12) == pytest.approx(0.0671 / 2, rel=1e-3)
    assert floor_ms(0, 4, 4e12, modes=25 * 10**7) == pytest.approx(1.0)


def test_served_rates_are_shares_of_the_models_best_rate(tmp_path: Path) -> None:
    alone = {"model": "m", "side": 128, "through the pipeline": 1.0}
    cpu = dict.fromkeys(("frontend", "frontend system", "engine", "engine loop", "client"), 5.0)
    served: dict[str, object] = {
        "model": "m", "devices": "0", "frontends": 8, "max batch": 64, "server cores": 12, "client cores": 4,
        "fields a request": 16, "load": "closed", "fields/s": 900.0, "p50 ms": 1.0, "p99 ms": 2.0,
        "mean batch": 60.0, "errors": {"HTTP 503": 2, "no answer": 1},
        **{f"{role} CPU us/field": value for role, value in cpu.items()},
    }  # fmt: skip
    write(
        tmp_path / "serving_gpu.jsonl",
        [
            {"threads": 16, "processor": "P"},
            {},
            {**alone, "batch": 1, "on the device": 400.0},
            {**alone, "batch": 64, "on the device": 1000.0},
            served,
            {**served, "load": "few", "frontends": 1, "connections": 2, "p50 ms": 0.75},
            {"bus": "in", "GB/s": 50.0},
        ],
    )
    few = cells(document(tmp_path), "| frontends | connections")
    assert (few["connections"], few["p50 ms"], few["errors"]) == ("2", "0.75", "3")
    row = cells(document(tmp_path), "share of the model's rate")
    assert row["share of the model's rate"] == "90 %"
    assert (row["devices"], row["frontends"], row["fields/s"], row["errors"]) == (
        "0",
        "8",
        "900",
        "3",
    )
    assert "## Served from a GPU" in document(tmp_path)


@pytest.mark.parametrize(("devices", "several"), [("0", False), ("0,1", True), ("0+1", True)])
def test_results_of_several_gpus_have_a_section_of_their_own(devices: str, several: bool) -> None:
    rows: list[dict[str, object]] = [{"bus": "in"}, {"devices": "0"}, {"devices": devices}]
    assert over_several(rows) == several


def test_fields_over_cards(tmp_path: Path) -> None:
    where = {"gpu": "NVIDIA H200", "torch": "2.11", "commit": "abc", "at": "2026-11-21T00:00"}
    what = {**where, "what": "layer, C32 512^3 m16"}
    rows: list[dict[str, object]] = [
        {**what, "cards": 2, "ms": 4.0, "efficiency": 0.95, "exchange_ms": 0.05},
        {**what, "cards": 1, "ms": 7.6, "efficiency": 1.0, "gib_a_card": 70.0},
        {**what, "cards": 1, "ms": 8.0, "gpu": "NVIDIA H100", "at": "2026-11-20T00:00"},
        {**where, "what": "FFT, A100 (A 2022)", "gpu": None, "cards": 2, "ms": 44.0},
    ]
    lines = [{"commit": "of the copy that ran"}, *rows]
    (tmp_path / "distributed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = document(tmp_path)
    assert "PyTorch 2.11, 2026-11-21 and before" in page
    table = page[page.index("| what | GPU") :].splitlines()[2:]
    assert table == [
        "| FFT, A100 (A 2022) |  | 2 |  | 44 |  |  |  |  |",
        "| layer, C32 512^3 m16 | NVIDIA H100 | 1 |  | 8 |  |  |  | abc |",
        "| layer, C32 512^3 m16 | NVIDIA H200 | 1 |  | 7.6 | 1 |  | 70 | abc |",
        "| layer, C32 512^3 m16 | NVIDIA H200 | 2 |  | 4 | 0.95 | 0.05 |  | abc |",
    ]
