"""The page by mouse and keyboard: it shows the service's numbers, and its errors."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from turbofno_client import Client

pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import expect

from tests.draws import generator
from tests.ui.browser import figure, open_at, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from playwright.sync_api import Page, Request, Route

    from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.timeout(120)

NAME_OF_FOCUS = """() => {
    const one = document.activeElement;
    return one.ariaLabel || one.closest("label")?.innerText.split("\\n")[0] || one.innerText;
}"""
NUMBER = r"-?[\d.]+(?:e-?\d+)?"


def sample(server: ServerProcess, model: str, **query: float) -> NDArray[np.float32]:
    answer = httpx.get(f"{server.url}/v1/models/{model}/sample", params=query, timeout=30.0)
    return _array(answer.raise_for_status().content)


def predict(server: ServerProcess, model: str, fields: NDArray[np.float32]) -> NDArray[np.float32]:
    body = io.BytesIO()
    np.save(body, fields)
    headers = {"Content-Type": "application/x-npy"}
    url = f"{server.url}/v1/models/{model}:predict"
    answer = httpx.post(url, content=body.getvalue(), headers=headers, timeout=30.0)
    return _array(answer.raise_for_status().content)


def _array(body: bytes | None) -> NDArray[np.float32]:
    assert body is not None
    array: NDArray[np.float32] = np.load(io.BytesIO(body), allow_pickle=False)
    return array


def readings(text: str) -> dict[str, float]:
    """The values of a readout: "x = 0.5: input 1.2, prediction 3" -> {"x": 0.5, "input": 1.2, "prediction": 3}."""
    return {name: float(value) for name, value in re.findall(rf"([a-z]+)(?: =)? ({NUMBER})", text)}


def test_a_sample_its_prediction_and_the_solver_are_those_of_the_service(
    page: Page, server: ServerProcess
) -> None:
    open_at(page, "burgers-1d")
    page.fill("#seed", "41")
    page.locator("#seed").press("Enter")
    wait_for(page.locator("#state"), "solved:")
    drawn = sample(server, "burgers-1d", seed=41)
    solved = _array(httpx.post(f"{server.url}/v1/models/burgers-1d:solve?seed=41").content)
    predicted = predict(server, "burgers-1d", drawn)
    plot = figure(page, "Prediction").locator(".plot")
    plot.focus()
    plot.press("Home")
    for _ in range(7):
        plot.press("Shift+ArrowRight")
    plot.press("ArrowLeft")
    told = readings(wait_for(page.locator("#announce"), "x = "))
    assert told["x"] == pytest.approx(69 / 1024, rel=5e-3)
    for name, field in (("input", drawn), ("prediction", predicted), ("solver", solved)):
        assert told[name] == pytest.approx(field[0, 69], rel=5e-3), name
    share = np.linalg.norm(predicted - solved) / np.linalg.norm(solved)
    said = wait_for(figure(page, "Error").locator(".note"), "relative L2 error")
    assert float(re.findall(NUMBER, said)[-1]) == pytest.approx(100 * share, rel=6e-3)


def uploaded_block(page: Page, folder: Path) -> NDArray[np.float32]:
    """Upload a field of three dimensions whose values all differ, and wait for its prediction."""
    open_at(page, "tiny-3d")
    field = np.arange(16.0 * 12 * 10, dtype=np.float32).reshape(1, 16, 12, 10)
    np.save(folder / "field.npy", field)
    page.get_by_label("Upload").check()
    page.get_by_label("File (.npy)").set_input_files(folder / "field.npy")
    wait_for(page.locator("#state"), "^Predicted in")
    return field


def test_a_field_of_three_dimensions_is_shown_plane_by_plane(
    page: Page, server: ServerProcess, tmp_path: Path
) -> None:
    field = uploaded_block(page, tmp_path)
    answer = predict(server, "tiny-3d", field)
    plot = figure(page, "Input").locator(".plot")

    def told() -> dict[str, float]:
        plot.focus()
        plot.press("Home")
        plot.press("ArrowRight")
        return readings(page.locator("#readout").text_content() or "")

    middle = told()
    assert middle["z"] == pytest.approx(5 / 10)
    assert middle["input"] == pytest.approx(field[0, 1, 6, 5], rel=5e-3)
    page.get_by_label("Place").press("End")
    assert "z = 0.9" in (figure(page, "Input").locator(".unit").text_content() or "")
    assert told()["input"] == pytest.approx(field[0, 1, 6, 9], rel=5e-3)
    page.get_by_label("Plane across").select_option("x")
    last = told()
    assert (last["x"], last["y"]) == (
        pytest.approx(15 / 16, rel=5e-3),
        pytest.approx(1 / 12, rel=5e-3),
    )
    assert last["input"] == pytest.approx(field[0, 15, 1, 5], rel=5e-3)
    assert last["u"] == pytest.approx(answer[0, 15, 1, 5], rel=6e-3)
    ticks = figure(page, "Input").locator(".ticks span").all_text_contents()
    assert [float(tick) for tick in ticks] == [
        0.0,
        pytest.approx(959.5, rel=5e-3),
        pytest.approx(1919, rel=5e-3),
    ]
    open_at(page, "tiny-1d")
    expect(page.locator("#plane")).to_be_hidden()


def test_a_slider_by_keyboard_leaves_the_training_distribution(page: Page) -> None:
    open_at(page, "burgers-1d")
    slider = page.get_by_label("Amplitude")
    with page.expect_request(re.compile("/sample")) as sent:
        slider.press("ArrowRight")
    assert "amplitude=1.05" in sent.value.url
    wait_for(page.locator("#sample-hint"), "^Not the distribution")
    wait_for(page.locator("#state"), "solved:")
    with page.expect_request(re.compile("/sample")) as sent:
        page.get_by_role("button", name="Another").click()
    assert "seed=7&" not in sent.value.url


def test_the_sample_that_is_drawn_is_the_one_in_its_box(page: Page) -> None:
    open_at(page, "tiny-1d")
    for typed, drawn in (("99999999", "1048575"), ("-3", "0"), ("2.7", "2")):
        page.fill("#seed", typed)
        page.locator("#seed").press("Enter")
        expect(page.locator("#seed")).to_have_value(drawn)


def test_a_pointer_reads_the_point_that_is_drawn_under_it(
    page: Page, server: ServerProcess, tmp_path: Path
) -> None:
    field = uploaded_block(page, tmp_path)

    def told(x: float, y: float) -> str:
        box = figure(page, "Input").locator(".plot").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + x * box["width"], box["y"] + (1 - y) * box["height"])
        return page.locator("#readout").text_content() or ""

    # An image of 16 by 12 cells.
    for x, y, at in ((0.056, 0.92, (0, 11)), (0.07, 0.08, (1, 0)), (0.93, 0.5, (14, 6))):
        assert readings(told(x, y))["input"] == pytest.approx(field[0, *at, 5], rel=5e-3)
    # A line ends where its last point is: at 15/16 of a period.
    open_at(page, "tiny-1d")
    assert readings(told(0.99, 0.5))["x"] == pytest.approx(15 / 16, abs=1e-3)
    line = figure(page, "Input").locator("path.line").get_attribute("d") or ""
    assert re.findall(r"[ML]([\d.]+),", line) == [f"{100 * i / 16:.2f}" for i in range(16)]
    mark = figure(page, "Input").locator(".mark.v").evaluate("one => one.style.left")
    assert mark == "93.75%"


def test_coordinates_have_the_units_of_the_grid(page: Page) -> None:
    def answer(route: Route) -> None:
        response = route.fetch()
        about = response.json()
        about["grid"] |= {"units": "mm"}
        route.fulfill(response=response, json=about)

    page.route(re.compile("/v1/models/tiny-3d$"), answer)
    open_at(page, "tiny-3d")
    figure(page, "Input").locator(".plot").focus()
    wait_for(page.locator("#readout"), r"^x = 0\.5 mm, y = 0\.5 mm, z = 0\.5 mm: input ")
    names = figure(page, "Input").locator(".axis span:nth-child(2)").all_text_contents()
    assert names == ["y, mm", "x, mm"]


def test_a_drawn_field_is_sent_as_npy_and_predicted(page: Page) -> None:
    open_at(page, "navier-stokes-2d")
    page.get_by_label("Draw").check()
    page.get_by_role("button", name="Clear").click()
    wait_for(page.locator("#state"), "solved:")
    box = figure(page, "Input").locator(".plot").bounding_box()
    assert box is not None
    sent: list[Request] = []
    page.on("request", lambda one: sent.append(one) if one.url.endswith(":predict") else None)
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.2 * box["height"], steps=4)
    with page.expect_response(re.compile(":predict")):
        page.mouse.up()
    (request,) = sent
    assert request.headers["content-type"] == "application/x-npy"
    field = _array(request.post_data_buffer)
    assert field.shape == (1, 64, 64)
    # Painted only from x = 0.3 to 0.6 at y = 0.8.
    painted = np.argwhere(field[0] > 1.0) / 63
    assert painted[:, 0].min() == pytest.approx(0.26, abs=0.06)
    assert painted[:, 0].max() == pytest.approx(0.64, abs=0.06)
    assert painted[:, 1].mean() == pytest.approx(0.8, abs=0.03)
    assert abs(field[0, :, :30]).max() < 0.1
    wait_for(page.locator("#state"), "solved:")


def test_an_uploaded_field_is_predicted_and_the_solvers_refusal_is_shown(
    page: Page, server: ServerProcess, tmp_path: Path
) -> None:
    open_at(page, "navier-stokes-2d")
    x, y = np.meshgrid(np.arange(40) / 40, np.arange(48) / 48, indexing="ij")
    field = np.asfortranarray(np.sin(2 * np.pi * (x + 2 * y)) + 0.3 * np.cos(2 * np.pi * y))
    np.save(tmp_path / "field.npy", field)
    page.get_by_label("Upload").check()
    page.get_by_label("File (.npy)").set_input_files(tmp_path / "field.npy")
    alert = page.get_by_role("alert")
    wait_for(alert, "same number of points on each axis")
    predicted = predict(server, "navier-stokes-2d", field[None].astype("f4"))[0]
    plot = figure(page, "Prediction").locator(".plot")
    plot.focus()
    for key in ("Home", "Shift+ArrowRight", "ArrowRight", "ArrowUp"):
        plot.press(key)
    told = readings(wait_for(page.locator("#readout"), "prediction"))
    # One point above the middle of 48.
    at = (11, round(0.5 * 47) + 1)
    assert told["input"] == pytest.approx(field[at], rel=6e-3, abs=1e-3)
    assert told["prediction"] == pytest.approx(predicted[at], rel=6e-3, abs=1e-3)


def test_errors_are_shown_in_the_words_of_the_server_or_the_page(
    page: Page, server: ServerProcess, tmp_path: Path
) -> None:
    open_at(page, "burgers-1d")
    page.get_by_label("Upload").check()
    small = np.zeros((1, 16), "f4")
    np.save(tmp_path / "small.npy", small)
    page.get_by_label("File (.npy)").set_input_files(tmp_path / "small.npy")
    refused = httpx.post(f"{server.url}/v1/models/burgers-1d:predict", json={"inputs": {"input": small.tolist()}})  # fmt: skip
    assert refused.status_code == 422
    wait_for(page.get_by_role("alert"), re.escape(refused.json()["detail"]))
    assert figure(page, "Prediction").get_attribute("data-kind") == "empty"
    for name, content, words in (
        ("text.npy", b"not an array", "no .npy file"),
        ("long.npy", b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 20, "header is damaged"),
    ):
        (tmp_path / name).write_bytes(content)
        page.get_by_label("File (.npy)").set_input_files(tmp_path / name)
        wait_for(page.get_by_role("alert"), words)
    np.save(tmp_path / "cube.npy", np.zeros((3, 4, 5)))
    page.get_by_label("File (.npy)").set_input_files(tmp_path / "cube.npy")
    wait_for(page.get_by_role("alert"), r"shape \[3, 4, 5\], burgers-1d takes \[1, x\]")
    page.get_by_label("Random").check()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_rollout_plays_pauses_scrubs_and_stops(page: Page, server: ServerProcess) -> None:
    open_at(page, "navier-stokes-2d")
    page.fill("#steps", "30")
    page.get_by_role("button", name="Play").click()
    state = page.locator("#rollout-state")
    wait_for(state, "^Step [2-9] of 30")
    page.get_by_role("button", name="Pause").click()
    held = state.text_content()
    page.wait_for_timeout(250)
    assert state.text_content() == held
    scrub = page.get_by_label("Frame")
    scrub.press("Home")
    # While it pauses, no more may come than were shown.
    scrub.press("ArrowRight")
    wait_for(state, "^Step 2 of 30, 2 time units")
    drawn = sample(server, "navier-stokes-2d", seed=7)
    with Client(server.url) as client:
        (frame,) = client.rollout("navier-stokes-2d", drawn, 2, frames="last")
    page.get_by_role("button", name="Solve to this step").click()
    wait_for(page.locator("#play"), "^Resume")
    said = wait_for(figure(page, "Error", "#rollout-fields").locator(".note"), "relative L2")
    url = f"{server.url}/v1/models/navier-stokes-2d:solve?seed=7&steps=2"
    solved = _array(httpx.post(url, timeout=30.0).content)
    share = np.linalg.norm(frame.fields - solved) / np.linalg.norm(solved)
    assert float(re.findall(NUMBER, said)[-1]) == pytest.approx(100 * share, rel=6e-3)
    plot = figure(page, "Rollout", "#rollout-fields").locator(".plot")
    plot.focus()
    plot.press("End")
    told = readings(wait_for(page.locator("#announce"), "rollout"))
    assert told["rollout"] == pytest.approx(frame.fields[0, 63, 32], rel=6e-3, abs=1e-3)
    page.get_by_role("button", name="Resume").click()
    wait_for(state, "^Step 30 of 30")
    wait_for(page.locator("#play"), "Play again")
    # Nothing is left to resume after this step.
    scrub.press("Home")
    wait_for(page.locator("#play"), "Resume")
    scrub.press("End")
    wait_for(page.locator("#play"), "Play again")
    page.fill("#steps", "1000")
    page.get_by_role("button", name="Play again").click()
    # Clicked by the page itself, at once: on a busy machine all steps may be there before a click from outside arrives.
    page.wait_for_function(
        """() => {
            const shown = document.getElementById("rollout-state").textContent.includes("of 1000");
            if (shown) document.getElementById("stop").click();
            return shown;
        }"""
    )
    wait_for(state, "; stopped")
    for _ in range(50):
        metrics = httpx.get(f"{server.url}/metrics").text
        if re.search(r'turbofno_rollouts_ended_total\{[^}]*outcome="left"[^}]*\} [1-9]', metrics):
            return
        page.wait_for_timeout(100)
    raise AssertionError("the server goes on with a rollout that was stopped")


def test_a_rollout_that_blows_up_says_so(page: Page, tmp_path: Path) -> None:
    open_at(page, "navier-stokes-2d")
    np.save(tmp_path / "wild.npy", 50 * generator().standard_normal((64, 64)))
    page.get_by_label("Solve too").uncheck()
    page.get_by_label("Upload").check()
    page.get_by_label("File (.npy)").set_input_files(tmp_path / "wild.npy")
    wait_for(page.locator("#state"), "Predicted in")
    page.get_by_role("button", name="Play").click()
    wait_for(page.get_by_role("alert"), "The rollout ended at step 1: ")


def test_a_rollout_whose_stream_is_cut_while_it_pauses_can_only_be_played_again(
    page: Page, server: ServerProcess
) -> None:
    open_at(page, "navier-stokes-2d")
    with Client(server.url) as client:
        body = io.BytesIO()
        np.save(body, client.sample("navier-stokes-2d", seed=7))
    headers = {"Content-Type": "application/x-npy", "Accept": "application/vnd.turbofno.frames"}
    url = f"{server.url}/v1/models/navier-stokes-2d:rollout?steps=3"
    records = httpx.post(url, content=body.getvalue(), headers=headers, timeout=30.0).content
    page.evaluate(
        """(records) => {
            const ask = window.fetch;
            const start = (stream) => {
                window.stream = stream;
                stream.enqueue(new Uint8Array(records));
            };
            window.fetch = async (url, options) =>
                url.includes(":rollout") ? new Response(new ReadableStream({ start })) : ask(url, options);
        }""",
        # Without the event at the end.
        list(records[: records.rindex(b'{"event":"end"') - 8]),
    )
    page.get_by_role("button", name="Play").click()
    wait_for(page.locator("#rollout-state"), "^Step 3 of 3")
    page.get_by_role("button", name="Pause").click()
    wait_for(page.locator("#play"), "^Resume$")
    page.evaluate("() => window.stream.close()")
    wait_for(page.get_by_role("alert"), "cut off")
    wait_for(page.locator("#play"), "^Play again$")
    # Frames that have come are left to show.
    page.get_by_label("Frame").press("Home")
    wait_for(page.locator("#play"), "^Resume$")
    page.get_by_label("Frame").press("End")
    page.get_by_role("button", name="Play again").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    wait_for(page.locator("#rollout-state"), "^Step 3 of 3")


def test_by_keyboard_alone_in_the_order_of_the_page(page: Page) -> None:
    open_at(page, "burgers-1d")
    page.get_by_label("Draw").check()
    page.locator("h1").click()
    names = []
    for _ in range(20):
        page.keyboard.press("Tab")
        names.append(page.evaluate(NAME_OF_FOCUS).strip().partition(":")[0])
    assert names == [
        *("Model", "API key", "Use", "Theme", "Model card", "Draw"),
        *(
            "Value to paint",
            "Width of the brush",
            "Clear",
            "Subtract the mean",
            "Predict",
            "Solve too",
        ),
        *("Input", "Save input as .npy", "Prediction", "Save prediction as .npy"),
        *("Solver", "Save solver as .npy", "Error", "Save error as .npy"),
    ]
    plot = figure(page, "Input").locator(".plot")
    plot.focus()
    with page.expect_request(re.compile(":predict")) as sent:
        page.keyboard.press("Space")
    field = _array(sent.value.post_data_buffer)
    assert abs(field.mean()) > 0.01
    assert field[0, 512] == pytest.approx(field.max()) == pytest.approx(2.62, abs=0.01)
    with page.expect_request(re.compile(":predict")) as sent:
        page.get_by_role("button", name="Subtract the mean").press("Enter")
    centred = _array(sent.value.post_data_buffer)
    np.testing.assert_allclose(centred, field - field.mean(), atol=1e-5)


def test_a_model_without_a_solver_has_no_comparison(page: Page) -> None:
    open_at(page, "tiny-1d")
    wait_for(page.locator("#sample-hint"), "no sampler for this model")
    expect(figure(page, "Solver")).to_be_hidden()
    expect(page.locator("#rollout")).to_be_hidden()
    expect(page.get_by_label("Solve too")).to_be_hidden()


def test_the_latency_split_the_batch_and_the_live_charts(page: Page, server: ServerProcess) -> None:
    open_at(page, "burgers-1d")
    rows = dict(
        re.findall(r"(decode|queue|compute|encode|network and browser|all)\s+([\d.]+) ms",
                   page.locator("#request").inner_text())
    )  # fmt: skip
    parts = [float(value) for name, value in rows.items() if name != "all"]
    assert len(parts) == 5
    assert sum(parts) == pytest.approx(float(rows["all"]), rel=0.02)
    assert re.search(r"Fields in its batch\s+1\b", page.locator("#request").inner_text())
    charts = page.locator(".chart")
    wait_for(charts.nth(0).locator(".now"), r"\d")
    field = sample(server, "burgers-1d", seed=1)
    for _ in range(4):
        predict(server, "burgers-1d", np.repeat(field[None], 16, axis=0))
    wait_for(charts.nth(0).locator(".now"), r"^[1-9]")
    wait_for(charts.nth(3).locator(".now"), r"^([2-9]|1\d)")
    page.get_by_label("Update every 2 s").uncheck()


def test_light_dark_and_narrow(page: Page) -> None:
    open_at(page, "burgers-1d")

    def brightness() -> float:
        colour = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3

    assert brightness() > 200
    page.emulate_media(color_scheme="dark")
    assert brightness() < 60
    page.get_by_label("Theme").select_option("light")
    assert brightness() > 200
    page.reload()
    assert brightness() > 200
    page.get_by_label("Theme").select_option("")
    assert brightness() < 60
    page.set_viewport_size({"width": 360, "height": 700})
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= 360


def test_reads_and_writes_npy_like_numpy(page: Page, tmp_path: Path) -> None:
    page.goto("/ui/")
    draw = generator()
    for array in (
        draw.standard_normal((3, 5)),
        np.asfortranarray(draw.standard_normal((2, 3, 4)).astype(">f4")),
        np.array([0.0, 1.5, -2e-7, 65504.0, np.inf], "f2"),
    ):
        np.save(tmp_path / "a.npy", array)
        shape, data, written = page.evaluate(
            """async (bytes) => {
                const { readNpy, writeNpy } = await import("/ui/npy.js");
                const field = readNpy(new Uint8Array(bytes).buffer);
                return [field.shape, Array.from(field.data, String), Array.from(writeNpy(field))];
            }""",
            list((tmp_path / "a.npy").read_bytes()),
        )
        expected = array.astype("f4")
        assert tuple(shape) == array.shape
        values = [float(one.replace("Infinity", "inf")) for one in data]
        np.testing.assert_array_equal(np.float32(values).reshape(shape), expected)
        np.testing.assert_array_equal(_array(bytes(written)), expected)
