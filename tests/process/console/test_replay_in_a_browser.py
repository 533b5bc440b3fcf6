"""Replay in Chromium: a scenario and a recorded simulation, stepped and scrubbed through, without a cluster.

With NILOMETER_SCREENSHOTS=FOLDER in the environment the tests write screenshots there.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from nilometer.cli.main import run
from nilometer.simulation.recording import Kind, read_recording
from support.brokers.cluster_shell import COMMAND
from support.console.console_process import console

OLD_RULE = "/replay/data-loss-truncate-to-high-watermark"
SEED = 6
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "run.jsonl"
    simulate = [str(COMMAND), "simulate", "--seed", str(SEED), "--minutes", "0.1", "--faults", "crash,cut"]
    subprocess.run([*simulate, "--record", str(path)], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def url(recording: Path) -> Iterator[str]:
    """A console without a cluster."""
    with console("--bootstrap-server", "127.0.0.1:1", "--replay", str(recording)) as found:
        yield found


def screenshot(page: Page, name: str) -> None:
    folder = os.environ.get("NILOMETER_SCREENSHOTS")
    if folder:
        page.set_viewport_size({"width": 1180, "height": 1180})
        page.wait_for_timeout(600)  # until the bars have moved
        page.screenshot(path=Path(folder) / f"console-{name}.png", caret="initial")


def replica(page: Page, number: int) -> list[str]:
    """Return role, set, HW and LEO of a replica in the table."""
    texts = page.locator(f"#replica-{number} > *").all_inner_texts()
    return [texts[place].strip() for place in (1, 3, 5, 6)]


def step_to(page: Page, text: str) -> None:
    """Step forward by the key until the current event has this text."""
    for _ in range(200):
        now = page.locator("#now")
        if text in now.inner_text():
            return
        index = now.get_attribute("data-index")
        page.keyboard.press("ArrowRight")
        expect(now).not_to_have_attribute("data-index", index)
    pytest.fail(f"no event has the text {text!r}")


def test_the_loss_of_kip_101_step_by_step(page: Page) -> None:
    page.goto("/replay")
    page.get_by_role("link", name="What leader epochs are for").first.click()
    page.wait_for_url(f"**{OLD_RULE}")
    expect(page.locator("#findings")).to_contain_text("m2 was acknowledged")
    step_to(page, "B topic-0: HW 1 → 2")
    assert replica(page, 1) == ["leader", "ISR", "2", "2"]
    assert replica(page, 2) == ["follower", "ISR", "1", "2"], "A has m2, and the HW of one fetch before"
    expect(page.locator("#moment rect.uncommitted")).to_have_count(1)
    step_to(page, "no records, HW 2")
    expect(page.locator("#in-flight")).to_contain_text("B → A no records, HW 2")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#now")).to_have_class("now dropped")
    expect(page.locator("#in-flight")).to_contain_text("No message")
    step_to(page, "truncates its log from 2 to 1")
    assert replica(page, 2) == ["follower", "ISR", "1", "1"]
    screenshot(page, "replay")
    step_to(page, "B is down")
    expect(page.locator(".track.away .who")).to_contain_text("B")
    step_to(page, "A topic-0: leads in epoch 1")
    step_to(page, "B topic-0: truncates its log from 2 to 1")
    assert replica(page, 1) == ["follower", "OSR", "1", "1"], "m2 is lost"
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#replica-1 > :nth-child(7)")).to_have_text("2")

    page.goto("/replay/data-loss")
    page.keyboard.press("End")
    expect(page.locator("#replica-1 > :nth-child(7)")).to_have_text("2")
    expect(page.locator("#replica-2 > :nth-child(7)")).to_have_text("2")
    assert page.locator("#findings").count() == 0


def test_it_plays_and_pauses_and_goes_to_marks(page: Page) -> None:
    page.goto("/replay/three-replica-high-watermark")
    page.select_option("#speed", "30")
    page.locator("h1").click()
    page.keyboard.press("Space")
    expect(page.locator("#play")).to_have_attribute("aria-pressed", "true")
    last = int(page.locator("#scrub").get_attribute("max") or "")
    expect(page.locator("#now")).to_have_attribute("data-index", str(last))
    expect(page.locator("#play")).to_have_text("Play")
    page.keyboard.press("p")
    expect(page.locator("#now")).to_have_class("now note")
    page.keyboard.press("Home")
    expect(page.locator("#now")).to_have_attribute("data-index", "0")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Replay: play and pause")


def test_a_simulation_is_scrubbed_through(page: Page, recording: Path) -> None:
    with recording.open("rb") as lines:
        events = read_recording(lines).events
    page.goto("/replay/file-1")
    expect(page.locator("h1")).to_have_text(f"Simulation of seed {SEED}")
    loaded = page.evaluate("performance.timeOrigin")
    scrub = page.locator("#scrub")
    for share in (0.9, 0.2, 0.5):
        index = int(share * (len(events) - 1))
        scrub.fill(str(index))
        expect(page.locator("#now")).to_have_attribute("data-index", str(index))
        assert events[index].text in page.locator("#now .event").inner_text()
        expect(page.locator(f"#event-{index}")).to_have_attribute("aria-current", "true")

    scrub.fill("0")
    expect(page.locator("#now")).to_have_attribute("data-index", "0")
    begins = next(index for index, event in enumerate(events) if event.kind is Kind.FAULT)
    scrub.focus()
    for _ in range(200):
        if page.locator("#now.fault").count():
            break
        shown = page.locator("#now").get_attribute("data-index")
        page.keyboard.press("n")
        expect(page.locator("#now")).not_to_have_attribute("data-index", shown)
    expect(page.locator("#now")).to_have_attribute("data-index", str(begins))

    chosen = page.locator("#partition option").nth(1).inner_text()
    page.select_option("#partition", chosen)
    expect(page.locator("figure").first).to_contain_text(chosen)
    page.locator("#now a[rel=next]").click()
    expect(page.locator("#now")).not_to_have_attribute("data-index", str(begins))
    after = events[int(page.locator("#now").get_attribute("data-index") or "")]
    assert chosen in after.partitions or not after.partitions
    assert page.evaluate("performance.timeOrigin") == loaded, "the page was never loaded again"
    address = page.url
    page.reload()
    assert f"at={page.locator('#now').get_attribute('data-index')}" in address
    assert page.locator("#partition").input_value() == chosen


def test_it_is_readable_in_the_dark_and_on_a_phone(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(f"{OLD_RULE}?at=37")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.set_viewport_size({"width": 360, "height": 740})
    for place in ("/replay", f"{OLD_RULE}?at=37", "/replay/file-1?at=50"):
        page.goto(place)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, place


def test_what_is_not_a_recording_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.txt"
    path.write_text("0.000000 broker-1 starts\n")
    assert run(["console", "--replay", str(path)]) == 2
    assert "trace.txt cannot be replayed: line 1 is not the header" in capsys.readouterr().err
    assert run(["simulate", "--seeds", "2", "--record", str(path)]) == 2
    assert "--record goes with one seed" in capsys.readouterr().err
    assert run(["simulate", "--record", str(tmp_path / "no folder" / "x")]) == 1
    assert "no folder" in capsys.readouterr().err
