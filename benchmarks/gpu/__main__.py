"""The command line: `python -m benchmarks.gpu [PART]..`, parts as in `PARTS`; without names, all of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.device import Machine, copy_bandwidth, described, machine, require_gpu
from benchmarks.timing import RESULTS

Measure = Callable[[], Iterable[dict[str, object]]]

PARTS = (
    *("layers", "models", "gradients", "heatmap", "imported", "drawn", "plans"),
    *("ladder", "fft", "trust", "ntt"),
)
_LADDER_SECONDS = 0.05
"""Most device time of a layer of the ladder, which has over a hundred."""


def _measured(part: str, bandwidth: float, arguments: argparse.Namespace) -> dict[str, Measure]:
    """The measurements of a part, by label."""
    compiled, seconds = not arguments.no_compile, arguments.seconds
    if part == "layers":
        from benchmarks.gpu import layers

        alike = {"compiled": compiled, "seconds": seconds}
        return {x.label: partial(layers.measure, x, bandwidth, **alike) for x in layers.LAYERS}
    if part == "models":
        from benchmarks.gpu import models

        alike = {"compiled": compiled, "seconds": seconds / 2}
        return {x.name: partial(models.measure, x, **alike) for x in models.cases()}
    if part == "gradients":
        from benchmarks.gpu import gradients

        return {x: partial(gradients.measure, x, seconds=seconds) for x in gradients.NAMES}
    if part == "imported":
        from benchmarks.gpu import imported

        alike = {"seconds": seconds, "quick": arguments.quick}
        return {x.label: partial(imported.measure, x, bandwidth, **alike) for x in imported.CASES}
    if part == "fft":
        from benchmarks.gpu import fft

        alike = {"seconds": seconds, "quick": arguments.quick, "tcfft": arguments.tcfft}
        return {x.label: partial(fft.measure, x, bandwidth, **alike) for x in fft.CASES}
    if part == "trust":
        from benchmarks.gpu import trust

        alike = {"seconds": seconds, "quick": arguments.quick}
        return {x.label: partial(trust.measure, x, **alike) for x in trust.CASES}
    if part == "drawn":
        from benchmarks.gpu import drawn

        return {
            label: partial(drawn.measure, label, network, seconds=seconds / 10)
            for label, network in drawn.networks(drawn.COUNT)
        }
    if part == "plans":
        from benchmarks.gpu import plans

        return {x.label: partial(plans.measure, x, seconds=seconds / 10) for x in plans.cases()}
    if part == "ladder":
        return _ladder(bandwidth, arguments)
    if part == "ntt":
        from benchmarks.gpu import ntt

        alike = {"seconds": seconds / 10}
        return {x.label: partial(ntt.measure, x, bandwidth, **alike) for x in ntt.CASES}
    from benchmarks.gpu import heatmap

    return {x.label: partial(heatmap.measure, x, seconds=seconds / 10) for x in heatmap.LAYERS}


def _ladder(bandwidth: float, arguments: argparse.Namespace) -> dict[str, Measure]:
    from benchmarks.gpu import ladder, shared_weight

    seconds, quick = min(arguments.seconds, _LADDER_SECONDS), arguments.quick
    found: dict[str, Measure] = {
        x.label: partial(ladder.measure, x, bandwidth, seconds=seconds)
        for x in ladder.cases(quick=quick)
    }
    own_case = partial(shared_weight.measure, checkout=arguments.published_kernel)
    for x in shared_weight.cases(quick=quick):
        found[x.label] = partial(own_case, x, bandwidth, seconds=seconds)
    return found


def _rows(
    part: str, bandwidth: float, arguments: argparse.Namespace
) -> Iterator[dict[str, object]]:
    for label, measure in _measured(part, bandwidth, arguments).items():
        if arguments.only in label:
            yield from measure()
            torch.cuda.empty_cache()


def _keep(part: str, rows: Iterator[dict[str, object]], where: Machine, *, written: bool) -> None:
    """Print every row as it is measured; then, if `written`, write them to the part's result file."""
    lines = []
    for row in described(rows, where):
        lines.append(json.dumps(row) + "\n")
        shown = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values())
        print("  ".join(shown), flush=True)
    if not written:
        return
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"gpu_{part}.jsonl"
    file.write_text("".join(lines))
    print(f"written to {file.relative_to(RESULTS.parents[1])}")


def main() -> None:
    """Measure the parts; exits with an error if there is no GPU or a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--seconds", type=float, default=0.4, help="device time for each layer")
    parser.add_argument(
        "--quick", action="store_true", help="few repeats, one field each; nothing is written"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="cases whose name contains TEXT; nothing is written",
    )
    parser.add_argument("--commit", help="name of the commit, if the tree is no git checkout")
    parser.add_argument(
        "--published-kernel",
        type=Path,
        metavar="FOLDER",
        help="a built checkout of github.com/shixun404/TurboFNO, for the ladder; without, it is left out",
    )
    parser.add_argument(
        "--tcfft",
        type=Path,
        metavar="FOLDER",
        help="a built checkout of github.com/rox906/tcFFT (benchmarks/gpu/tcfft.py), for fft; without, it is left out",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no part {sorted(unknown)}; there are {', '.join(PARTS)}")
    if arguments.quick:
        arguments.seconds /= 20
    require_gpu()
    # one seed: an unlucky output map of a chain cancels, and multiplies the error of bfloat16 by 20
    torch.manual_seed(0)
    # let cuDNN choose the fastest convolutions for the peer
    torch.backends.cudnn.benchmark = True
    where = machine(arguments.commit)
    bandwidth = copy_bandwidth()
    print(f"{where.gpu}, copy {bandwidth / 1e12:.2f} TB/s, torch {where.torch}, {where.commit}")
    with torch.inference_mode():
        for part in arguments.parts or PARTS:
            written = not (arguments.quick or arguments.only)
            _keep(part, _rows(part, bandwidth, arguments), where, written=written)


if __name__ == "__main__":
    main()
