"""Sections of docs/benchmarks.md from the results of a GPU."""

from __future__ import annotations

from itertools import groupby
from statistics import mean, median
from typing import Any

from benchmarks.page import Row, cell, markdown, measured_on, times
from turbofno_ops import PRECISIONS

PICTURE = "gpu_heatmap.png"
_PEER_ERRORS = ("eager", "torch.compile")
_ISSUED = ("eager, call", "eager, graph")


def _by(rows: list[Row], *keys: str) -> list[list[Row]]:
    return [list(group) for _, group in groupby(rows, key=lambda row: [row[k] for k in keys])]


def _find(rows: list[Row], what: str, precision: str | None = None) -> Row | None:
    """The fastest row, of the precision if one is given, whose `what` begins with `what`; None if there is none."""
    found = [
        row
        for row in rows
        if row["what"].startswith(what) and precision in (None, row["precision"])
    ]
    return min(found, key=lambda row: row["ms"], default=None)


def _ratio(slow: Row | None, fast: Row | None) -> str | None:
    return None if slow is None or fast is None else times(slow["ms"] / fast["ms"])


def _of(row: Row | None, key: str) -> Any:
    return None if row is None else row[key]


def _floors(row: Row | None, floor: str = "floor ms") -> str | None:
    if row is None:
        return None
    return f"{cell(row['ms'])} ({times(row['ms'] / row[floor])})"


def gpu_layers(rows: list[Row]) -> list[str]:
    """The section of Fourier layers: times against the floor, speed-ups, errors."""
    layers = _by(rows, "layer")
    times, spectra, gains, errors = [], [], [], []
    for of in layers:
        chained, alone = (
            _find(of, "turbofno in a chain", "fp32"),
            _find(of, "turbofno alone", "fp32"),
        )
        eager, compiled = _find(of, "eager"), _find(of, "torch.compile")
        direct, label = _find(of, "cuFFT+cuBLAS"), of[0]["layer"]
        times.append(
            [
                *(label, of[0]["floor ms"], _floors(chained), _floors(alone)),
                *(_floors(_find(of, "turbofno in a chain", p)) for p in ("tf32", "bf16")),
                *(_floors(_find(of, "turbofno alone", "bf16")), _floors(eager)),
                *(_floors(compiled), _floors(direct)),
            ]
        )
        of_chain = (_find(of, "turbofno in a chain", p) for p in PRECISIONS)
        shown = (_floors(row, "floor with spectra ms") for row in of_chain)
        spectra.append([label, of[0]["floor with spectra ms"], *shown])
        gains.append(
            [
                *(label, _ratio(_find(of, "eager, call"), chained), _ratio(eager, chained)),
                *(_ratio(compiled, chained), _ratio(direct, chained)),
                *(_ratio(eager, alone), _ratio(direct, alone)),
                _ratio(chained, _find(of, "turbofno in a chain", "bf16")),
            ]
        )
        own = (_of(_find(of, "turbofno alone", p), "relative L2 error") for p in PRECISIONS)
        strict = _of(_find(of, "eager", "fp32"), "relative L2 error")
        errors.append([label, *own, *_peer_errors(of), strict, _of(direct, "relative L2 error")])
    return [
        "## Fourier layers on a GPU",
        "",
        *measured_on(rows[0]),
        "Spectral convolution, 1x1 skip, bias, GELU. Milliseconds of a layer and, in brackets, its multiple of the floor: the",
        "time to read and write the field once at the copy bandwidth of the same run (half of that for fields in bfloat16). PyTorch at its",
        'better of calls and CUDA graph. "In a chain": one of eight such layers in a compiled model, where small fields stay in',
        'the L2 cache. "Alone", and all of PyTorch: one layer, on inputs that are not in the cache.',
        "",
        *markdown(
            [
                *(
                    "layer",
                    "floor",
                    "in a chain, fp32",
                    "alone, fp32",
                    "chain, tf32",
                    "chain, bf16",
                ),
                *("alone, bf16", "PyTorch eager", "torch.compile", "cuFFT+cuBLAS"),
            ],
            times,
        ),
        "Layers in a chain against the time to read and write the field and its spectra once (in bfloat16 only the field is smaller):",
        "",
        *markdown(["layer", "floor with spectra", *PRECISIONS], spectra),
        "How many times faster at fp32:",
        "",
        *markdown(
            [
                *("layer", "chain: eager by calls", "chain: eager", "chain: torch.compile"),
                *("chain: cuFFT+cuBLAS", "alone: eager", "alone: cuFFT+cuBLAS", "bf16 over fp32"),
            ],
            gains,
        ),
        'Relative L2 error against float64. PyTorch runs the 1x1 convolution in TF32 by default; "strict" is float32. A mixed',
        "spectrum has imaginary parts in its zeroth modes. At some sizes cuFFT's inverse does not ignore them, hence",
        "PyTorch's errors of a percent; ours and cuFFT+cuBLAS ignore them.",
        "",
        *markdown(["layer", *PRECISIONS, *_PEER_ERRORS, "eager strict", "cuFFT+cuBLAS"], errors),
    ]


def _peer_errors(rows: list[Row]) -> list[Any]:
    default = [row for row in rows if row["precision"] != "fp32"]
    return [_of(_find(default, name), "relative L2 error") for name in _PEER_ERRORS]


def gpu_models(rows: list[Row]) -> list[str]:
    """The section of whole models: fields a second, speed-ups, errors."""
    speeds, errors = [], []
    for of in _by(rows, "model", "batch"):
        own = [_find(of, "turbofno", precision) for precision in PRECISIONS]
        eager, graph = _find(of, "eager, call"), _find(of, "eager, graph")
        compiled, best = _find(of, "torch.compile, call"), _find(of, "torch.compile")
        label = [of[0]["model"], of[0]["batch"]]
        speeds.append(
            [
                *label,
                *(_of(row, "fields/s") for row in (*own, eager, graph, compiled, best)),
                *(_ratio(row, own[0]) for row in (eager, graph, compiled, best)),
            ]
        )
        strict = _of(_find(of, "eager", "fp32"), "relative L2 error")
        errors.append(
            [*label, *(_of(row, "relative L2 error") for row in own), *_peer_errors(of), strict]
        )
    peers = ("eager", "eager, graph", "torch.compile", "torch.compile, best of call and graph")
    return [
        "## Whole models on a GPU",
        "",
        *measured_on(rows[0]),
        "Fields a second, and the speed-up of ours at fp32. Ours: calls of the result of `compile_fno`.",
        "",
        *markdown(
            ["model", "batch", *PRECISIONS, *peers, *(f"x {peer}" for peer in peers)], speeds
        ),
        "Relative L2 error against float64:",
        "",
        *markdown(["model", "batch", *PRECISIONS, *_PEER_ERRORS, "eager strict"], errors),
    ]


def gpu_gradients(rows: list[Row]) -> list[str]:
    """The section of gradients: times, speed-ups, errors."""
    table = []
    for of in _by(rows, "model", "batch"):
        own, eager = _find(of, "turbofno"), _find(of, "eager")
        table.append(
            [
                *(of[0]["model"], of[0]["batch"]),
                *(_of(own, "ms"), _of(eager, "ms"), _ratio(eager, own)),
                *(_of(row, "relative L2 error") for row in (own, eager)),
            ]
        )
    return [
        "## Gradients on a GPU",
        "",
        *measured_on(rows[0]),
        "Milliseconds of a vector-Jacobian product, with the output, of trained networks on their training grids: as `:vjp`",
        "computes it, and by PyTorch eager and its autograd in strict float32. Relative L2 error against float64, of gradient and",
        "output; eager's errors of some percent are those of cuFFT's inverse, as for the layers.",
        "",
        *markdown(
            ["model", "batch", "ms", "eager, ms", "x eager", "error", "eager's error"], table
        ),
    ]


def gpu_imported(rows: list[Row]) -> list[str]:
    """The section of imported networks: times of both libraries, speed-ups, errors."""
    times, errors = [], []
    for of in _by(rows, "network", "batch"):
        own = _find(of, "turbofno")
        strict = [_find(of, how, "fp32") for how in _ISSUED]
        default = [_find([r for r in of if r["precision"] != "fp32"], how) for how in _ISSUED]
        label = [of[0]["network"], of[0]["batch"]]
        times.append(
            [
                *(*label, of[0]["peer"], _of(own, "ms")),
                *(_of(row, "ms") for row in (*strict, *default)),
                *(_ratio(row, own) for row in (*strict, *default)),
                *(_of(own, "execution"), _of(own, "backend")),
            ]
        )
        errors.append(
            [
                *(*label, _of(own, "relative L2 error"), of[0]["float32 error on the CPU"]),
                *(_of(row, "relative L2 error") for row in (strict[0], default[0])),
            ]
        )
    peers = ("eager", "graph", "eager, TF32", "graph, TF32")
    return [
        "## Imported networks",
        "",
        *measured_on(rows[0]),
        "Networks of neuraloperator 2.0 with its defaults except for what the name says (16 modes an axis in two dimensions,",
        "three input channels, PDEBench's ten, one output channel), in the library and imported, as the service runs them:",
        "milliseconds of a batch at fp32, and speed-ups. The library runs in strict float32 (`torch.backends.cuda.matmul.allow_tf32` and",
        "`torch.backends.cudnn.allow_tf32` off) by calls and in a CUDA graph, and with PyTorch's default, convolutions in TF32.",
        f"Copy bandwidth of this card: {cell(rows[0]['copy TB/s'])} TB/s.",
        "",
        *markdown(
            [
                *("network", "batch", "peer", "turbofno", *peers),
                *(f"x {peer}" for peer in peers),
                *("runs as", "backend"),
            ],
            times,
        ),
        "Runs as: one chain of kernels, a CUDA graph of the module, or the module layer by layer.",
        "",
        "Relative L2 error against the library in float64, of ours and of the library in float32 on the CPU and on the GPU. On the",
        "GPU the library's inverse transform is cuFFT's, with the errors described above.",
        "",
        *markdown(
            ["network", "batch", "turbofno", "float32 on the CPU", "eager", "eager, TF32"], errors
        ),
    ]


def gpu_drawn(rows: list[Row]) -> list[str]:
    """The section of random imported networks: speed-ups by number of axes."""
    by_axes = [
        [
            *(f"{of[0]['axes']}D", of[0]["batch"], len(of)),
            sum(row["execution"] == "chain" for row in of),
            *(times(f([row["speed-up"] for row in of])) for f in (min, median, max)),
            max(row["relative L2 error"] / row["float32 error on the CPU"] for row in of),
        ]
        for of in _by(sorted(rows, key=lambda row: row["axes"]), "axes", "batch")
    ]
    slower = [row["network"] for row in rows if row["speed-up"] < 1]
    widths = [row["hidden channels"] for row in rows]
    coarser = [
        f"{row['network']} ({row['relative L2 error']:.1e}, float32 {row['float32 error on the CPU']:.1e})"
        for row in rows
        if row["relative L2 error"] > 2 * row["float32 error on the CPU"]
    ]
    return [
        "## Random imported networks",
        "",
        *measured_on(rows[0]),
        f"{len(rows)} networks of neuraloperator 2.0 with random arguments and {min(widths)} to {max(widths)} hidden channels: calls of",
        "the library with PyTorch's defaults, and of the imported network as the service runs it, at fp32. Slower than the library: "
        f"{', '.join(slower) or 'none'}.",
        "",
        *markdown(
            [
                *("axes", "batch", "networks", "run as a chain", "least x", "median x", "most x"),
                "largest error, of float32's on the CPU",
            ],
            by_axes,
        ),
        f"More than twice float32's error: {', '.join(coarser) or 'none'}. Float32 rounds a value by up to 6.0e-08.",
        "",
    ]


def gpu_plans(rows: list[Row]) -> list[str]:
    """The section of plans: how far the chosen one is from the fastest, by kind of network and precision."""
    named = [{**row, "networks": row["network"].split(":")[0]} for row in rows]
    found = []
    named.sort(key=lambda row: [row["networks"], PRECISIONS.index(row["precision"])])
    for of in _by(named, "networks", "precision"):
        slower = sorted(row["ms"] / row["fastest ms"] for row in of)
        tenth = slower[int(0.9 * (len(slower) - 1))]
        counts = (len(of), sum(row["plans"] for row in of))
        found.append(
            [of[0]["networks"], of[0]["precision"], *counts, mean(slower), tenth, slower[-1]]
        )
    return [
        "## Plans of tile programs",
        "",
        *measured_on(rows[0]),
        "Time of a program with the chosen plan over that with the fastest plan tried: the next cheapest ones by the estimated cost,",
        "and random ones that cost up to half more.",
        "",
        *markdown(
            ["networks", "precision", "programs", "plans", "mean", "nine of ten below", "most"],
            found,
        ),
    ]


def gpu_heatmap(rows: list[Row]) -> list[str]:
    """The section of the heat map."""
    slowest = min(rows, key=lambda row: row["speed-up"])
    fastest = max(rows, key=lambda row: row["speed-up"])
    ends = " ".join(
        f"{name}: {times(row['speed-up'])} at {row['layer']}."
        for name, row in (("Least", slowest), ("Most", fastest))
    )
    return [
        "## Over batch and channels",
        "",
        *measured_on(rows[0]),
        f"![Speed-up of our float32 layer over PyTorch eager, over batch and hidden channels]({PICTURE})",
        "",
        f"One `fourier_layer` against PyTorch eager, each at its better of calls and CUDA graph. {ends}",
        "",
    ]


def gpu_fft(rows: list[Row]) -> list[str]:
    """The section of Fourier transforms: times in floors, speed-ups, errors."""
    of_kernels = {
        "half": "half_fft floors",
        "whole planes": "plane_fft floors",
        "mixed radix": "mixed_radix_fft floors",
        "dense": "dense_dft floors",
    }
    tcfft = any("tcFFT floors" in row for row in rows)
    table = [
        [
            *(row["transform"], row["floor ms"], row["floors"], row["torch floors"]),
            None if row["speed-up"] is None else times(row["speed-up"]),
            *(row.get(key) for key in of_kernels.values()),
            *([row.get("tcFFT floors")] if tcfft else []),
            *(row["call us"], row["torch call us"]),
            *(row["relative L2 error"], row["torch error"]),
        ]
        for row in rows
    ]
    through_torch = [row["transform"] for row in rows if row["backend"] == "torch"]
    return [
        "## Fourier transforms on a GPU",
        "",
        *measured_on(rows[0]),
        "`turbofno_ops.fft` ([reference](reference/fft.md)) against torch.fft (cuFFT), about 2^26 values each, as CUDA graphs. Times in",
        'floors: the time to read what is given and to write what is kept once. "Ours" is what `backend="auto"` runs; then each of our',
        "kernels that supports the size. Through torch.fft run: "
        f"{', '.join(through_torch) or 'none'}.",
        "",
        *markdown(
            [
                *("transform", "floor, ms", "ours", "torch.fft", "speed-up", *of_kernels),
                *(["tcFFT"] if tcfft else []),
                *("call, us", "call of torch.fft, us", "error", "error of torch.fft"),
            ],
            table,
        ),
        "Calls: how long the host takes for a call of two lines or planes. In a CUDA graph it has nothing to do.",
        "Errors: relative L2, against float64. cuFFT in float16 takes powers of two only. tcFFT, the published half-precision FFT on",
        "tensor cores, is its authors' program, without the digit reversal of its input, which the host does."
        if tcfft
        else "tensor cores, is not measured here.",
        "",
    ]


def gpu_trust(rows: list[Row]) -> list[str]:
    """The section of the cost of trust signals."""
    return [
        "## Cost of trust signals on a GPU",
        "",
        *measured_on(rows[0]),
        "Milliseconds of a large batch, one after another: the compiled network alone, with its trust signals, which as in the",
        "service run beside the network of the next batch, and with torch.fft for all of their spectra. Share: what the signals",
        "are of the whole.",
        "",
        *markdown(
            ["network", "batch", "signals", "alone", "with signals", "share", "by torch.fft", "share by torch.fft"],
            [
                [
                    *(row["case"], row["batch"], " and ".join(row["signals"]), row["network ms"]),
                    *(row["with signals ms"], f"{row['share']:.1%}"),
                    *(row["with signals by torch.fft ms"], f"{row['share by torch.fft']:.1%}"),
                ]
                for row in rows
            ],
        ),
    ]  # fmt: skip


def gpu_ntt(rows: list[Row]) -> list[str]:
    """The section of number-theoretic transforms: shuffles against shared memory, by radix."""
    radices = sorted({row["radix"] for row in rows})
    times, gains = [], []
    for of in _by(rows, "case"):
        by_radix = [
            {row["exchange"]: row for row in of if row["radix"] == radix} for radix in radices
        ]
        label = [of[0]["prime"], of[0]["points"], of[0]["batch"]]
        times.append([*label, of[0]["floor ms"], *(_floors(one["shuffle"]) for one in by_radix)])
        gains.append(
            [
                *label,
                *(_ratio(one["shared memory"], one["shuffle"]) for one in by_radix),
                _ratio(
                    min((one["shared memory"] for one in by_radix), key=lambda row: row["ms"]),
                    min((one["shuffle"] for one in by_radix), key=lambda row: row["ms"]),
                ),
            ]
        )
    case, named = ("prime", "points", "lines"), [f"radix {radix}" for radix in radices]
    return [
        "## Number-theoretic transforms",
        "",
        *measured_on(rows[0]),
        "`turbofno_ops.ntt` ([reference](reference/ntt.md)): milliseconds of a batch of forward transforms with exchanges by",
        "warp shuffles and, in brackets, multiples of the time to read and write its int64 values once. The radix is the number",
        "of values of a thread. Of every batch the first and the last line are compared with the CPU, all lines between variants.",
        "",
        *markdown([*case, "floor", *named], times),
        "How many times faster than the same radix with exchanges through shared memory; last, the best of each:",
        "",
        *markdown([*case, *named, "best"], gains),
    ]
