# %% [markdown]
"""Tutorial: design a heat spreader with a surrogate over REST, and check the design with the PDE solver.

A chip heats a square plate evenly; its four edges are kept cold. Half of the plate may be a good conductor (12), the rest
is a poor one (3). Where should the good one go, so that the plate is cool? With u the temperature and a the conductivity
this is Darcy's equation, -div(a grad u) = 1, u = 0 on the edges: the model darcy-2d. All numbers are non-dimensional.

    make serve                                                          # in one terminal
    python docs/tutorial/heat_spreader.py        # in another, under two minutes

Pictures and numbers are written to the current folder. Editors that support `# %%` cells run them one by one.
"""

# %%
from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from turbofno.models.zoo.pde import darcy
from turbofno_client import Client

URL = os.environ.get("TUTORIAL_URL", "http://127.0.0.1:8080")
OUT = Path(os.environ.get("TUTORIAL_OUT", "."))
QUICK = "TUTORIAL_QUICK" in os.environ  # the test runs it small

Array = NDArray[np.float64]
client = Client(URL, timeout=120.0)
client.wait_ready()
card = client.model("darcy-2d")
N = card["grid"]["training"][0]
rng = np.random.default_rng(0)
print(card["description"], "Grid:", card["grid"]["training"])

# %% [markdown]
# ## Designs
#
# A design is a smooth random field of 8 x 8 cosine waves with a threshold: above it the plate conducts well. Its
# distribution is close to that of the training data (`card["pde"]["input_distribution"]`). Because it is a function of
# the place, the solver can use the same design on a finer grid.

# %%
WAVES = 8
number = np.arange(WAVES)
amplitude = 1 / (np.pi**2 * (number[:, None] ** 2 + number**2) + 9)
amplitude[0, 0] = 0


def waves(n: int) -> Array:
    """The cosines at n points, [WAVES, n]."""
    wave: Array = np.sqrt(2.0) * np.cos(np.pi * np.outer(number, np.linspace(0, 1, n)))
    return wave


def height(coefficients: Array, n: int = N) -> Array:
    """[..., WAVES, WAVES] -> the field [..., n, n]."""
    return np.asarray(waves(n).T @ (coefficients * amplitude) @ waves(n))


def cut(field: Array, share: float) -> Array:
    """The threshold that `share` of each field exceeds, [..., 1, 1]."""
    return np.asarray(np.quantile(field, 1 - share, axis=(-2, -1), keepdims=True))


def plate(coefficients: Array, share: float = 0.5, n: int = N) -> Array:
    """Conductivity [..., n, n]: 12 on `share` of the plate, 3 elsewhere."""
    field = height(coefficients, n)
    return np.where(field >= cut(field, share), 12.0, 3.0)


def predicted(designs: Array) -> Array:
    """Temperatures [n, N, N] of conductivities [n, N, N], by the service."""
    return client.predict("darcy-2d", designs[:, None])[:, 0].astype(np.float64)


def solved(coefficients: Array, share: float = 0.5) -> Array:
    """Temperatures [n, N, N] by the solver, on a grid two and a half times as fine."""
    fine = 5 * (N - 1) // 2 + 1
    temperature = darcy.solve(torch.from_numpy(plate(coefficients, share, fine)))
    return np.asarray(
        torch.nn.functional.interpolate(
            temperature[:, None], size=(N, N), mode="bicubic", align_corners=True
        )[:, 0]
    )


def mean(temperature: Array) -> Array:
    """Mean temperature of each plate, which the design should minimise."""
    return np.asarray(temperature.mean(axis=(-2, -1)))


def distance(one: Array, truth: Array) -> Array:
    """Relative L2 of each plate."""
    axes = (-2, -1)
    return np.asarray(np.linalg.norm(one - truth, axis=axes) / np.linalg.norm(truth, axis=axes))


# %% [markdown]
# ## Speed: one caller, many callers
#
# Every design is a request of its own, as from many users. While the device computes one, the service gathers the
# others and runs them as one batch. That helps a GPU; a single field already keeps a CPU busy. One caller with many
# fields sends them in one request, as further below.


# %%
def batches() -> tuple[float, float]:
    """Number of batches of darcy-2d that the service has run, and of fields in them."""
    lines = httpx.get(f"{URL}/metrics").text.splitlines()
    values = {
        end: sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith(f"turbofno_batch_size_{end}" + "{") and 'model="darcy-2d"' in line
        )
        for end in ("count", "sum")
    }
    return values["count"], values["sum"]


def fields_per_second(designs: Array, callers: int) -> tuple[float, float]:
    """Send each design by itself from `callers` threads: fields a second, and fields in a batch."""
    count, total = batches()
    began = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(lambda design: predicted(design[None]), designs))
    seconds = time.perf_counter() - began
    count_after, total_after = batches()
    return len(designs) / seconds, (total_after - total) / (count_after - count)


some = plate(rng.normal(size=(16 if QUICK else 96, WAVES, WAVES)))
fields_per_second(some[:8], 4)  # warm up
throughput = {callers: fields_per_second(some, callers) for callers in (1, 16)}
for callers, (speed, size) in throughput.items():
    print(f"{callers:2} callers: {speed:5.0f} fields/s, {size:.1f} fields a batch")

# %% [markdown]
# ## A sweep with uncertainty
#
# How cool is a plate of random structure with 30 % to 70 % of conductor? Many random plates for each share give the
# spread. The model was trained on shares around one half, so at each share the solver checks a few plates.

# %%
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7)
PLATES, CHECKED = (8, 1) if QUICK else (48, 2)
began = time.perf_counter()
sweep = {}
for share in SHARES:
    coefficients = rng.normal(size=(PLATES, WAVES, WAVES))
    temperature = predicted(plate(coefficients, share))
    truth = solved(coefficients[:CHECKED], share)
    sweep[share] = {
        "coefficients": coefficients,
        "mean": mean(temperature),
        "solver": mean(truth),
        "error": distance(temperature[:CHECKED], truth),
    }
    low, middle, high = np.quantile(sweep[share]["mean"], (0.1, 0.5, 0.9))
    print(
        f"share {share:.0%}: mean temperature {middle:.5f} ({low:.5f} to {high:.5f}), "
        f"surrogate off by {sweep[share]['error'].mean():.1%}"
    )
print(f"sweep with checks: {time.perf_counter() - began:.0f} s")

figure = Figure(figsize=(11, 4), layout="constrained")
left, right = figure.subplots(1, 2)
percent = [100 * share for share in SHARES]
spread = np.array([np.quantile(one["mean"], (0.1, 0.5, 0.9)) for one in sweep.values()])
left.plot(percent, spread[:, 1], color="C0", label=f"surrogate, median of {PLATES} plates")
left.fill_between(percent, spread[:, 0], spread[:, 2], color="C0", alpha=0.25, label="10 % to 90 %")
for at, one in zip(percent, sweep.values(), strict=True):
    left.plot(np.full(CHECKED, at), one["mean"][:CHECKED], "o", color="C0", mfc="none")
    left.plot(np.full(CHECKED, at), one["solver"], "x", color="C3")
    right.plot(np.full(CHECKED, at), 100 * one["error"], "x", color="C3")
left.plot([], [], "o", color="C0", mfc="none", label="checked plates, surrogate")
left.plot([], [], "x", color="C3", label="the same plates, solver")
left.set(xlabel="share of conductor [%]", ylabel="mean temperature", title="sweep")
left.legend(fontsize="small")
right.set(xlabel="share of conductor [%]", ylabel="relative L2 [%]", ylim=(0, None))
right.set_title("surrogate against solver, checked plates")
figure.savefig(OUT / "sweep.png", dpi=90)

# %% [markdown]
# ## Optimise without gradients: the cross-entropy method
#
# Draw plates, keep the best, draw the next ones around them. A generation is one request.

# %%
GENERATIONS, DRAWN, KEPT = (3, 12, 4) if QUICK else (12, 32, 6)
centre, width = np.zeros((WAVES, WAVES)), np.ones((WAVES, WAVES))
evolution: list[float] = []
evolved, best = centre, np.inf
for _ in range(GENERATIONS):
    drawn = centre + width * rng.normal(size=(DRAWN, WAVES, WAVES))
    values = mean(predicted(plate(drawn)))
    elite = drawn[values.argsort()[:KEPT]]
    centre, width = elite.mean(axis=0), elite.std(axis=0) + 0.05
    if values.min() < best:
        best, evolved = float(values.min()), drawn[values.argmin()]
    evolution.append(best)

# %% [markdown]
# ## Optimise with gradients
#
# `vjp` gives the derivative of the mean temperature with respect to every point of the plate, in one call. To use it,
# the threshold between the two materials is blurred (a sigmoid of the height), and Adam descends. Half of the plate stays
# conductor, because the threshold moves along. The sharp plate is evaluated.

# %%
STEPS = 6 if QUICK else 40
BLUR, RATE = 0.02, 0.1
middle_sweep = sweep[0.5]
descended = middle_sweep["coefficients"][middle_sweep["mean"].argmin()]
slope, square = np.zeros_like(descended), np.zeros_like(descended)
descent: list[float] = []
average = np.full((1, N, N), 1 / N**2)  # the derivative of the mean with respect to each point
for step in range(1, STEPS + 1):
    field = height(descended)
    part = 1 / (1 + np.exp(-(field - cut(field, 0.5)) / BLUR))
    blurred = client.vjp("darcy-2d", (3 + 9 * part)[None], average)[0]
    edge = part * (1 - part)
    down = 9 / BLUR * edge * blurred
    down -= edge * (down.sum() / edge.sum())
    gradient = amplitude * (waves(N) @ down @ waves(N).T)
    slope = 0.9 * slope + 0.1 * gradient
    square = 0.99 * square + 0.01 * gradient**2
    stride = np.sqrt(square / (1 - 0.99**step)) + 1e-12
    descended = descended - RATE * slope / (1 - 0.9**step) / stride
    descent.append(float(mean(predicted(plate(descended)[None]))[0]))

# %% [markdown]
# ## Check with the solver
#
# An optimiser exploits the surrogate's errors. So the solver computes the designs found, and a random one for
# comparison, on a finer grid.

# %%
typical = middle_sweep["coefficients"][middle_sweep["mean"].argsort()[PLATES // 2]]
designs = {"random": typical, "cross-entropy": evolved, "gradient": descended}
stacked = np.stack(list(designs.values()))
by_surrogate, by_solver = predicted(plate(stacked)), solved(stacked)
asked = {"random": 1, "cross-entropy": GENERATIONS * DRAWN, "gradient": 2 * STEPS}
results = {
    name: {
        "asked": asked[name],
        "surrogate": float(mean(by_surrogate)[index]),
        "solver": float(mean(by_solver)[index]),
        "relative_l2": float(distance(by_surrogate, by_solver)[index]),
    }
    for index, name in enumerate(designs)
}
for name, found in results.items():
    gain = 1 - found["solver"] / results["random"]["solver"]
    print(
        f"{name:14} mean temperature {found['surrogate']:.5f} by the surrogate, {found['solver']:.5f} "
        f"by the solver: {gain:.0%} cooler than random; surrogate off by {found['relative_l2']:.1%}"
    )

# %%
figure = Figure(figsize=(15, 6.4), layout="constrained")
panels, side = figure.subfigures(1, 2, width_ratios=(3, 1.4), squeeze=False)[0]
axes = panels.subplots(2, 3)
for column, (name, coefficients) in enumerate(designs.items()):
    material = axes[0, column].imshow(
        plate(coefficients).T, origin="lower", extent=(0, 1, 0, 1), cmap="cividis"
    )
    heat = axes[1, column].imshow(
        by_solver[column].T, origin="lower", extent=(0, 1, 0, 1), cmap="inferno", vmin=0,
        vmax=by_solver.max(),
    )  # fmt: skip
    axes[0, column].set_title(name)
    axes[1, column].set_title(f"mean {results[name]['solver']:.5f}")
for axis in axes.flat:
    axis.set(xlabel="x", ylabel="y")
panels.colorbar(material, ax=axes[0], ticks=(3, 12), label="conductivity")
panels.colorbar(heat, ax=axes[1], label="temperature (solver)")
axis = side.subplots()
axis.plot(DRAWN * np.arange(1, GENERATIONS + 1), evolution, ".-", label="cross-entropy")
axis.plot(2 * np.arange(1, STEPS + 1), descent, ".-", label="gradient")
ends = ("cross-entropy", "gradient")
axis.plot(
    [asked[name] for name in ends], [results[name]["solver"] for name in ends], "x", color="C3",
    label="their ends, by the solver",
)  # fmt: skip
axis.set(xscale="log", xlabel="fields asked of the service", ylabel="mean temperature")
axis.set_title("best so far, by the surrogate")
axis.legend(fontsize="small")
figure.savefig(OUT / "designs.png", dpi=90)

# %%
record = {
    "designs": results,
    "sweep": {
        f"{share:g}": {
            "quantiles_10_50_90": np.quantile(one["mean"], (0.1, 0.5, 0.9)).tolist(),
            "relative_l2_checked": one["error"].tolist(),
        }
        for share, one in sweep.items()
    },
    "callers": {
        str(callers): {"fields_per_second": speed, "fields_a_batch": size}
        for callers, (speed, size) in throughput.items()
    },
}
(OUT / "heat_spreader.json").write_text(json.dumps(record, indent=1) + "\n")
client.close()
