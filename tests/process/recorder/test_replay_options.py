"""What `nilometer recorder replay` is asked for: where it stops, what it shows, what it writes down."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nilometer.cli.recorder import recorder
from nilometer.simulation.recording import read_recording
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.values import produce, side_of

TOPIC = "recorded"
MOVES = ("--break-on", f"high watermark of {TOPIC}-0 moves")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of a broker to which four batches were written."""
    folder = tmp_path_factory.mktemp("recorded")
    with NilometerBroker(folder / "logs", {"nilometer.recorder": "on"}) as broker:
        side = side_of(broker)
        side.create(TOPIC)
        for number in range(4):
            assert produce(side, TOPIC, *(b"record",) * (number + 1)) is ErrorCode.none
        broker.stop()
    (path,) = (folder / "logs-recordings").iterdir()
    return path


def document(*arguments: str | Path) -> dict[str, Any]:
    result = CliRunner().invoke(recorder, ["replay", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def debugged(*arguments: str | Path, lines: Sequence[str]) -> str:
    """What it says whose debugger gets these lines."""
    command = [sys.executable, "-m", "nilometer.cli", "recorder", "replay", *map(str, arguments), "--debug"]
    typed = "".join(f"{line}\n" for line in lines)
    return subprocess.run(command, input=typed, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("nth", "text"), [(1, "HW 0 → 1"), (3, "HW 3 → 6"), (4, "HW 6 → 10")])
def test_it_stops_where_something_happens_for_the_nth_time(path: Path, nth: int, text: str) -> None:
    stopped = document(path, *MOVES, "--nth", str(nth))["stopped"]
    assert text in stopped["changes"][0]["text"]


def test_what_does_not_happen_so_often_stops_nothing(path: Path) -> None:
    result = CliRunner().invoke(recorder, ["replay", str(path), *MOVES, "--nth", "5", "--quiet"])
    assert (result.exit_code, "end before that" in result.output) == (1, True)
    result = CliRunner().invoke(recorder, ["replay", str(path), "--nth", "5"])
    assert result.exit_code == 2


def test_the_debugger_goes_on_to_the_next_time(path: Path) -> None:
    said = debugged(path, *MOVES, "--nth", "2", "--quiet", lines=["continue"] * 3)
    assert [line.rpartition("HW ")[2] for line in said.splitlines() if "HW " in line] == [
        "1 → 3",
        "3 → 6",
        "6 → 10",
    ]


def test_a_file_for_the_console_ends_once_and_behind_what_the_debugger_has_seen(
    path: Path, tmp_path: Path
) -> None:
    for name, lines in (("continued", ["continue"] * 4), ("quit", ["continue", "q"])):
        night = tmp_path / name
        debugged(path, *MOVES, "--quiet", "--record", night, lines=lines)
        with night.open("rb") as file:
            recording = read_recording(file)
        assert recording.end is not None and recording.end.events == len(recording.events)
        assert recording.events[-1].text == "The recordings end here."
        texts = [event.text for event in recording.events]
        assert any("HW 1 → 3" in text for text in texts)
        assert any("HW 6 → 10" in text for text in texts) == (name == "continued")


def test_a_file_that_is_given_twice_is_replayed_once(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.recording"
    link.hardlink_to(path)
    (broker,) = document(path, path.parent, path.parent / "." / path.name, link)["brokers"]
    assert broker["is_at_end"]
