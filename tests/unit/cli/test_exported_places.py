"""The folders that ``nilometer export`` reads: none, if only remote storage or an archive is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nilometer.cli.pipelines import folder_commands
from nilometer.pipeline.export.topic_export import Exported


@pytest.fixture
def places_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> list[str] | str:
        found = list[str]()

        def export(given: dict[str, str], *_others: object) -> Exported:
            found.extend(json.loads(given["paths"]))
            return Exported(0, 0, 0, {})

        monkeypatch.setattr(folder_commands, "_run_export", export)
        done = CliRunner().invoke(
            folder_commands.export_command, ["--topic", "t", "--to", str(tmp_path / "out"), *arguments]
        )
        return found if done.exit_code == 0 else done.output

    return run


@pytest.mark.parametrize("option", ["tier=s3://b/tier", "archive=/backup", "Tier=file:///t"])
def test_without_a_folder_what_is_elsewhere_is_exported(places_of, option: str) -> None:
    assert places_of("--option", option) == []
    assert places_of("--option", option, "--log-dirs", "/d1,/d2") == ["/d1", "/d2"]
    assert "no cluster in" in places_of("--option", option, "--data-dir", "data")


def test_without_a_folder_and_without_another_place_nothing_is_exported(places_of) -> None:
    assert "no cluster in" in places_of("--option", "isolation.level=read_committed")


def test_the_local_cluster_is_exported_with_what_is_elsewhere(places_of) -> None:
    Path(".nilometer/data").mkdir(parents=True)
    assert "no cluster in" in places_of("--option", "tier=s3://b/tier")
