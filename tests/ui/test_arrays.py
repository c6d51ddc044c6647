"""The arrays of the page: channels, colours, downloads, and commands that reproduce them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from turbofno_client import Client

pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import expect

from tests.ui.browser import figure, open_at, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from playwright.sync_api import Page

    from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.timeout(120)


def saved(page: Page, button: str, folder: Path) -> NDArray[np.float32]:
    with page.expect_download() as download:
        page.get_by_role("button", name=button, exact=True).click()
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return np.load(file)


def run(command: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def copied(page: Page, button: str) -> str:
    page.get_by_role("button", name=button).click()
    return page.locator("#command").text_content() or ""


def test_all_channels_are_shown(page: Page, server: ServerProcess, tmp_path: Path) -> None:
    open_at(page, "tiny-1d")
    plot = figure(page, "Prediction v").locator(".plot")
    plot.focus()
    plot.press("Home")
    told = wait_for(page.locator("#readout"), "prediction v")
    field, answer = (saved(page, f"Save {name} as .npy", tmp_path) for name in ("input", "prediction"))  # fmt: skip
    with Client(server.url) as client:
        np.testing.assert_array_equal(answer, client.predict("tiny-1d", field))
    values = dict(re.findall(r"(input|prediction [uv]) (-?[\d.e-]+)", told))
    assert float(values["prediction u"]) == pytest.approx(answer[0, 0], rel=5e-3)
    assert float(values["prediction v"]) == pytest.approx(answer[1, 0], rel=5e-3)


def test_every_array_can_be_saved(page: Page, server: ServerProcess, tmp_path: Path) -> None:
    open_at(page, "navier-stokes-2d")
    names = ("input", "prediction", "solver", "error")
    field, answer, solved, error = (saved(page, f"Save {name} as .npy", tmp_path) for name in names)
    assert {path.name for path in tmp_path.iterdir()} == {f"navier-stokes-2d-{name}.npy" for name in names}  # fmt: skip
    with Client(server.url) as client:
        np.testing.assert_array_equal(field, client.sample("navier-stokes-2d", seed=7))
        np.testing.assert_array_equal(solved, client.solve("navier-stokes-2d", seed=7))
        np.testing.assert_allclose(answer, client.predict("navier-stokes-2d", field), atol=1e-5)
        np.testing.assert_allclose(error, answer - solved, atol=1e-6)
        page.fill("#steps", "3")
        page.get_by_role("button", name="Play").click()
        wait_for(page.locator("#rollout-state"), "^Step 3 of 3")
        frames = saved(page, "Save all frames", tmp_path)
        last = saved(page, "Save rollout as .npy", tmp_path)
        expected = [one.fields for one in client.rollout("navier-stokes-2d", field, 3)]
    np.testing.assert_allclose(frames, expected, atol=1e-4)
    np.testing.assert_array_equal(last, frames[-1])


def test_commands_of_a_sample_give_the_prediction(
    page: Page, server: ServerProcess, tmp_path: Path
) -> None:
    open_at(page, "burgers-1d")
    page.get_by_label("Amplitude").press("ArrowRight")
    wait_for(page.locator("#sample-hint"), "^Not the distribution")
    wait_for(page.locator("#state"), "solved:")
    answer = saved(page, "Save prediction as .npy", tmp_path)
    run(copied(page, "Copy as curl"), tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "prediction.npy"), answer, atol=1e-6)
    program = copied(page, "Copy as Python")
    names: dict[str, NDArray[np.float32]] = {}
    exec(program, names)
    np.testing.assert_allclose(names["prediction"], answer, atol=1e-6)
    assert server.url in program


def test_commands_of_a_file_and_a_drawing_read_it(page: Page, tmp_path: Path) -> None:
    open_at(page, "burgers-1d")
    page.get_by_label("Solve too").uncheck()
    name = "it's mine.npy"
    np.save(tmp_path / name, np.sin(2 * np.pi * np.arange(256) / 256))
    page.get_by_label("Upload").check()
    page.get_by_label("File (.npy)").set_input_files(tmp_path / name)
    wait_for(page.locator("#state"), "^Predicted in")
    answer = saved(page, "Save prediction as .npy", tmp_path)
    run(copied(page, "Copy as curl"), tmp_path)
    # The file is [x], so the response is too.
    np.testing.assert_allclose(np.load(tmp_path / "prediction.npy"), answer[0], atol=1e-6)
    program = copied(page, "Copy as Python")
    run(f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}", tmp_path)
    page.get_by_label("Draw").check()
    figure(page, "Input").locator(".plot").focus()
    with page.expect_response(re.compile(":predict")):
        page.keyboard.press("Space")
    wait_for(page.locator("#state"), "^Predicted in")
    saved(page, "Save input as .npy", tmp_path)
    drawn = saved(page, "Save prediction as .npy", tmp_path)
    run(copied(page, "Copy as curl"), tmp_path)
    wait_for(page.locator("#copied"), "Save the input first, as burgers-1d-input.npy")
    np.testing.assert_allclose(np.load(tmp_path / "prediction.npy"), drawn, atol=1e-6)


def test_commands_take_the_key_from_the_environment(page: Page) -> None:
    page.goto("/ui/")
    curl, python = page.evaluate(
        """async () => {
            const { asCurl, asPython } = await import("/ui/commands.js");
            const asked = { model: "m", sampled: "", file: "a.npy", guarded: true };
            return [asCurl("http://host", asked), asPython("http://host", asked)];
        }"""
    )
    assert 'Authorization: Bearer $TURBOFNO_API_KEY"' in curl
    assert 'api_key=os.environ["TURBOFNO_API_KEY"]' in python
    compile(python, "copied", "exec")


def test_colour_maps_of_fields_with_both_signs_are_centred_at_zero(
    page: Page, tmp_path: Path
) -> None:
    open_at(page, "navier-stokes-2d")

    def ticks(title: str) -> list[float]:
        texts = figure(page, title).locator(".ticks span").all_text_contents()
        return [float(text) for text in texts]

    for title in ("Input", "Prediction", "Solver"):
        low, middle, high = ticks(title)
        assert (low, middle) == (-high, 0.0), title
    middle_colour = (
        figure(page, "Input")
        .locator(".bar canvas")
        .evaluate("one => [...one.getContext('2d').getImageData(0, 128, 1, 1).data]")
    )
    assert max(middle_colour[:3]) - min(middle_colour[:3]) < 12
    assert min(middle_colour[:3]) > 200


def test_a_scale_that_widens_stays_centred_at_zero(page: Page) -> None:
    page.goto("/ui/")
    scales = page.evaluate(
        """async () => {
            const { scaleFor } = await import("/ui/colour.js");
            let scale = null;
            return [[1, 3], [-2, 2], [0, 1]].map((all) => (scale = scaleFor([{ grid: [1, 2], all }], undefined, scale)));
        }"""
    )
    assert [(one["kind"], one["minimum"], one["maximum"]) for one in scales] == [
        ("sequential", 1, 3),
        ("diverging", -3, 3),
        ("diverging", -3, 3),
    ]


def test_four_fields_fit_in_a_row_of_1400_pixels(page: Page) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    open_at(page, "navier-stokes-2d")
    boxes = [figure(page, title).bounding_box() for title in ("Input", "Prediction", "Solver", "Error")]  # fmt: skip
    assert len({round(box["y"]) for box in boxes if box}) == 1
    section = page.locator("#fields").bounding_box()
    assert section is not None
    ticks = page.locator("#fields .ticks span")
    for i in range(ticks.count()):
        box = ticks.nth(i).bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= section["x"] + section["width"] + 1


def test_live_charts_have_a_time_axis(page: Page) -> None:
    open_at(page, "tiny-1d")
    times = page.locator(".chart .times")
    expect(times).to_have_text(["2 min ago1 min agonow"] * 4)
    drawn = page.evaluate(
        """async () => {
            const { Chart } = await import("/ui/chart.js");
            const chart = new Chart("t", "u", [["a", ""]]);
            for (const at of [0, 1000, 1002, 1060, 1120]) chart.add({ a: 1 }, at);
            return chart.element.querySelector(".line").getAttribute("d");
        }"""
    )
    # By time of reading: old readings are dropped, and a pause is a gap.
    assert re.sub(r",[\d.]+", "", drawn) == "M0.00L1.67M50.00M100.00"


def test_throughput_counts_fields_gradients_and_steps(page: Page) -> None:
    open_at(page, "tiny-1d")
    throughput = page.evaluate(
        """async () => {
            const { between, parse } = await import("/ui/metrics.js");
            const text = `turbofno_fields_total{model="a"} 2\nturbofno_gradients_total{model="a"} 4
turbofno_rollout_steps_total{model="b"} 8`;
            return between({ at: 0, samples: parse("") }, { at: 2000, samples: parse(text) }).throughput;
        }"""
    )
    assert throughput == 7


def test_the_card_is_rendered_and_runs_nothing(page: Page) -> None:
    open_at(page, "burgers-1d")
    page.get_by_text("Model card").click()
    card = page.locator("#card-text")
    expect(card.locator("h3")).to_have_text("burgers-1d: Burgers' equation in one dimension")
    expect(card.locator("table").first.locator("tbody tr")).to_have_count(3)
    expect(card.get_by_role("img").first).to_have_attribute("aria-label", re.compile("held-out"))
    page.wait_for_function("() => document.querySelector('#card-text canvas').width > 400")
    html = page.evaluate(
        """async () => {
            const { markdown } = await import("/ui/card.js");
            const place = document.createElement("div");
            const text = "# <b>A</b>\\n<img src=x onerror=alert(1)>\\n[x](javascript:alert) `a|b` **c**\\n- one\\n  two\\n```\\n*raw*\\n```\\n|a|b|\\n|-|-|\\n|1|2|";
            place.append(...markdown(text, (name) => name));
            return place.innerHTML;
        }"""
    )
    assert html == (
        "<h3>&lt;b&gt;A&lt;/b&gt;</h3><p>&lt;img src=x onerror=alert(1)&gt; x <code>a|b</code> "
        '<strong>c</strong></p><ul><li>one two</li></ul><pre tabindex="0">*raw*</pre><table><thead><tr>'
        "<th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>"
    )
