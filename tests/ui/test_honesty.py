"""The page shows only results of its current input, and shows warnings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import expect

from tests.draws import generator
from tests.ui.browser import figure, open_at, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.timeout(120)


def upload(page: Page, file: Path) -> None:
    page.get_by_label("File (.npy)").set_input_files(file)


def expect_nothing_but(page: Page, *kept: str) -> None:
    """Only these figures have content; there is no request, no verdict, and no enabled action."""
    for title in ("Input", "Prediction", "Solver", "Error"):
        kind = re.compile(r"^(map|flat)$" if title in kept else "^empty$")
        expect(figure(page, title)).to_have_attribute("data-kind", kind)
    expect(page.locator("#request table")).to_have_count(0)
    expect(page.locator("#verdict")).to_be_hidden()
    expect(page.locator("#commands")).to_be_hidden()


def test_a_rejected_file_keeps_nothing_of_the_result_before(page: Page, tmp_path: Path) -> None:
    open_at(page, "navier-stokes-2d")
    field = generator().standard_normal((1, 64, 64)).astype("f4")
    np.save(tmp_path / "good.npy", field)
    np.save(tmp_path / "cube.npy", np.zeros((3, 4, 5, 6)))
    (tmp_path / "text.npy").write_bytes(b"not an array")
    np.save(tmp_path / "coarse.npy", field[:, :4, :4])
    predict, play = (
        page.get_by_role("button", name=name, exact=True) for name in ("Predict", "Play")
    )
    page.get_by_label("Upload").check()
    expect_nothing_but(page)
    expect(predict).to_be_disabled()
    page.get_by_label("Solve too").uncheck()
    for name in ("cube.npy", "text.npy", "coarse.npy"):
        upload(page, tmp_path / "good.npy")
        wait_for(page.locator("#state"), "^Predicted in")
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(predict).to_be_enabled()
        upload(page, tmp_path / name)
        expect(page.get_by_role("alert")).to_be_visible()
        # A field that the server refuses is still shown.
        expect_nothing_but(page, *(["Input"] if name == "coarse.npy" else []))
        wait_for(page.locator("#request"), "was not used|failed")
        expect(predict).to_be_disabled()
        expect(play).to_be_disabled()
        # It is still shown when predicting is tried.
        page.get_by_label("File (.npy)").focus()
        expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Random").check()
    wait_for(page.locator("#state"), "^Predicted in")
    expect(predict).to_be_enabled()


def test_values_that_are_not_finite_are_gaps(page: Page, tmp_path: Path) -> None:
    open_at(page, "tiny-1d")
    wave = np.arange(16, dtype="f4")
    wave[5], wave[9] = np.nan, np.inf
    np.save(tmp_path / "gaps.npy", wave)
    page.get_by_label("Upload").check()
    upload(page, tmp_path / "gaps.npy")
    wait_for(page.get_by_role("alert"), "must be finite")
    line = figure(page, "Input").locator("path.line").get_attribute("d") or ""
    assert re.findall("[ML]", line) == list("MLLLLMLLMLLLLL")
    assert figure(page, "Input").locator(".ticks span").all_text_contents() == ["0", "7.5", "15"]
    alphas = page.evaluate(
        """async () => {
            const { paint, scaleOf } = await import("/ui/colour.js");
            const [canvas, values] = [document.createElement("canvas"), [0, NaN, Infinity]];
            paint(canvas, 3, 1, scaleOf([values]), (column) => values[column]);
            return [3, 7, 11].map((i) => canvas.getContext("2d").getImageData(0, 0, 3, 1).data[i]);
        }"""
    )
    assert alphas == [255, 0, 255]


def test_the_newer_of_two_files_is_shown_though_the_older_is_read_later(
    page: Page, tmp_path: Path
) -> None:
    open_at(page, "burgers-1d")
    for name, value in (("older", 1.0), ("newer", 2.0)):
        wave = value * np.sin(2 * np.pi * np.arange(1024) / 1024)
        np.save(tmp_path / f"{name}.npy", wave.astype("f4"))
    page.get_by_label("Upload").check()
    page.evaluate(
        """() => {
            const read = File.prototype.arrayBuffer;
            const gate = new Promise((open) => (window.release = open));
            File.prototype.arrayBuffer = async function () {
                if (this.name === "older.npy") await gate;
                return read.call(this);
            };
        }"""
    )
    upload(page, tmp_path / "older.npy")
    upload(page, tmp_path / "newer.npy")
    wait_for(page.locator("#state"), "solved:")
    page.evaluate(
        "async () => { window.release(); await new Promise((done) => setTimeout(done)); }"
    )
    expect(figure(page, "Input").locator(".ticks span").last).to_have_text("2")
    wait_for(page.locator("#state"), "solved:")


def test_a_failure_clears_what_was_shown(page: Page) -> None:
    open_at(page, "burgers-1d")

    def fail(route: Route) -> None:
        route.fulfill(status=503, json={"detail": "the device is busy"})

    page.route(re.compile(":predict"), fail)
    page.get_by_role("button", name="Another").click()
    wait_for(page.get_by_role("alert"), "the device is busy")
    expect_nothing_but(page, "Input")
    page.unroute(re.compile(":predict"))
    page.get_by_role("button", name="Predict").click()
    wait_for(page.locator("#state"), "solved:")
    page.route(re.compile("/sample"), fail)
    page.get_by_role("button", name="Another").click()
    wait_for(page.get_by_role("alert"), "the device is busy")
    expect_nothing_but(page)
    page.unroute(re.compile("/sample"))
    page.get_by_role("button", name="Another").click()
    wait_for(page.locator("#state"), "solved:")


def test_nothing_of_a_model_is_shown_or_asked_for_under_the_name_of_the_next(page: Page) -> None:
    predict = page.locator("#predict")
    held: list[Route] = []
    page.route(re.compile("/v1/models$"), lambda route: held.append(route))
    page.goto("/ui/#navier-stokes-2d")
    page.wait_for_function("() => document.querySelector('.chart')")
    # Before the first model is there, too.
    predict.click(force=True)
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#controls")).to_have_attribute("inert", "")
    held.pop().continue_()
    wait_for(page.locator("#state"), "[Pp]redicted")
    page.route(re.compile("/v1/models/tiny-1d$"), lambda route: held.append(route))
    page.locator("#model").select_option("tiny-1d")
    expect(page.locator("#about-title")).to_have_text("tiny-1d")
    expect(page.locator("#controls")).to_have_attribute("inert", "")
    for hidden in ("#rollout", "#description", "#state"):
        expect(page.locator(hidden)).not_to_be_visible()
    expect(page.locator("#facts")).to_have_text("")
    expect_nothing_but(page)
    held.pop().fulfill(status=503, json={"detail": "the device is busy"})
    wait_for(page.get_by_role("alert"), "the device is busy")
    expect(page.locator("#controls")).to_have_attribute("inert", "")
    expect_nothing_but(page)
    page.locator("#model").select_option("tiny-3d")
    wait_for(page.locator("#state"), "^Predicted in")
    expect(page.locator("#controls")).not_to_have_attribute("inert", "")


def test_a_model_in_the_address_that_is_not_served_is_not_replaced_by_another(page: Page) -> None:
    page.goto("/ui/#no%20such")
    wait_for(page.get_by_role("alert"), "no%20such, which is no model that is ready")
    expect(page.locator("#controls")).to_have_attribute("inert", "")
    expect(page.locator("#model")).to_have_value("")
    page.locator("#model").select_option("burgers-1d")
    wait_for(page.locator("#state"), "solved:")
    expect(page.get_by_role("alert")).to_be_hidden()
    page.evaluate("() => (location.hash = 'other')")
    wait_for(page.get_by_role("alert"), "other, which is no model that is ready")
    expect_nothing_but(page)
    page.evaluate("() => (location.hash = '')")
    wait_for(page.locator("#state"), "[Pp]redicted")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_the_link_to_the_fields_keeps_a_drawing(page: Page) -> None:
    open_at(page, "burgers-1d")
    page.get_by_label("Draw").check()
    page.locator(".skip").press("Enter")
    expect(page).to_have_url(re.compile("#main$"))
    page.wait_for_function("() => document.activeElement.id === 'main'")
    page.evaluate("() => new Promise((done) => setTimeout(done, 100))")
    expect(page.get_by_label("Draw")).to_be_checked()


def test_an_error_against_a_solution_of_zero_is_not_relative(page: Page, tmp_path: Path) -> None:
    open_at(page, "burgers-1d")
    np.save(tmp_path / "zero.npy", np.zeros(1024, "f4"))
    page.get_by_label("Upload").check()
    upload(page, tmp_path / "zero.npy")
    wait_for(page.locator("#state"), "solved: no relative error: the solution is zero")
    expect(figure(page, "Error").locator(".note")).to_have_text(
        "no relative error: the solution is zero"
    )


def test_an_answer_with_warnings_has_a_red_badge(page: Page) -> None:
    open_at(page, "burgers-1d")
    wait_for(page.locator("#verdict"), "^No warnings")
    page.locator("#grid").select_option("32")
    badge = page.locator("#verdict .bad")
    expect(badge).to_have_text("Warning")
    wait_for(page.locator("#verdict"), "the input grid 32 is outside")
    red, green, blue = map(
        int, re.findall(r"\d+", badge.evaluate("one => getComputedStyle(one).backgroundColor"))
    )
    assert red > 150 > 80 > max(green, blue)
    page.locator("#grid").select_option("1024")
    wait_for(page.locator("#verdict"), "^No warnings")


def test_a_rollout_with_warnings_has_a_red_badge(page: Page) -> None:
    open_at(page, "navier-stokes-2d")
    page.locator("#grid").select_option("32,32")
    wait_for(page.locator("#state"), "solved:")
    page.fill("#steps", "3")
    page.get_by_role("button", name="Play").click()
    # of the grid, and of the residual on it
    expect(page.locator("#rollout-verdict .bad")).to_have_text(["Warning", "Warning"])
    page.get_by_role("button", name="Another").click()
    expect(page.locator("#rollout-verdict")).to_be_hidden()


def test_signals_and_several_warnings_are_shown(page: Page) -> None:
    told = {"X-Trust-Input-Distance": "2.5", "X-Warning": "the grid; the distance"}

    def answer(route: Route) -> None:
        response = route.fetch()
        # A response with signals has no reason for missing ones.
        answered = {name: text for name, text in response.headers.items() if name != "x-trust"}
        route.fulfill(response=response, headers={**answered, **told})

    page.route(re.compile(":predict"), answer)
    open_at(page, "tiny-1d")
    text = page.locator("#request").inner_text()
    assert re.search(r"Distance of the input\s.*above 1 is unusual.*\s+2\.5", text, re.DOTALL)
    assert page.locator("#verdict p").all_text_contents() == ["Warning the grid", "Warning the distance"]  # fmt: skip


def test_a_model_without_signals_says_so(page: Page) -> None:
    open_at(page, "tiny-1d")
    wait_for(page.locator("#verdict"), "no trust signals, not evaluated")
