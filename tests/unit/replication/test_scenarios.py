"""Every scenario prints what it is known to print.

The expected texts lie in ``scenarios/``. After an intended change, write them again with
``NILOMETER_REGENERATE=1 pytest tests/unit/replication`` and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from nilometer.cli.replication_models import model_check, scenario
from nilometer.replication.follower import TruncationRule
from nilometer.simulation.recording import Kind, read_recording
from nilometer.simulation.scenarios import SCENARIOS, recorded

EXPECTED = Path(__file__).parent / "scenarios"


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(scenario, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def agrees(name: str, text: str) -> None:
    file = EXPECTED / f"{name}.txt"
    if os.environ.get("NILOMETER_REGENERATE"):
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_prints_its_text(name: str) -> None:
    agrees(name, printed("run", name))


def test_r_12_the_old_rule_loses_a_record_and_leader_epochs_keep_it() -> None:
    old = printed("run", "data-loss", "--rule", "truncate-to-high-watermark")
    agrees("data-loss-truncate-to-high-watermark", old)
    assert old.rstrip().endswith("m2, which was acknowledged, is lost.")
    assert printed("run", "data-loss").rstrip().endswith("m2, which was acknowledged, is still there.")


def test_r_13_the_high_watermark_goes_from_3_to_4_to_5() -> None:
    lines = printed("run", "three-replica-high-watermark").splitlines()
    start = next(index for index, line in enumerate(lines) if "LEOs 5, 3, 5" in line)
    leader = [line.split("HW ")[1].split()[0] for line in lines[start:] if line.startswith("    A  leader")]
    lagging = [
        line.split("HW ")[1].split()[0] for line in lines[start:] if line.startswith("    B  follower")
    ]
    assert leader == ["3", "4", "4", "5", "5", "5"]
    assert lagging == ["3", "3", "3", "4", "4", "5"]


def test_a_scenario_is_recorded_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scenario.jsonl"
    text = printed("run", "data-loss", "--rule", "truncate-to-high-watermark", "--record", str(path))
    assert text == (EXPECTED / "data-loss-truncate-to-high-watermark.txt").read_text()
    with path.open("rb") as lines:
        found = read_recording(lines)
    assert found == recorded(SCENARIOS["data-loss"], TruncationRule.TO_HIGH_WATERMARK)
    cuts = [(event.broker, event.text) for event in found.events if event.kind is Kind.TRUNCATION]
    assert [broker for broker, _ in cuts] == [2, 1], "A at its restart, then B"
    assert found.events[-1].kind is Kind.FINDING


@pytest.mark.parametrize("name", SCENARIOS)
def test_leader_epochs_lose_nothing_that_was_acknowledged(name: str) -> None:
    events = recorded(SCENARIOS[name], TruncationRule.BY_LEADER_EPOCH).events
    assert [event.text for event in events if event.kind is Kind.FINDING] == []


def test_list_names_every_scenario() -> None:
    assert [line.split()[0] for line in printed("list").splitlines()] == list(SCENARIOS)


def test_model_check_prints_the_shortest_path_to_a_loss() -> None:
    old_rule = ["--rule", "truncate-to-high-watermark", "--only-loss", "--values", "1", "--crashes", "2"]
    result = CliRunner().invoke(model_check, old_rule)
    assert result.exit_code == 1
    agrees("model-check-truncate-to-high-watermark", result.output)
    result = CliRunner().invoke(model_check, ["--values", "1", "--leader-epochs", "2"])
    assert result.exit_code == 0
    assert "every reachable state" in result.output
