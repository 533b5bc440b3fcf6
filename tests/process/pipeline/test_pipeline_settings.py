"""Settings of pipelines, pipelines in files of one's own, and checks of an output folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from nilometer.cli.pipelines.pipeline_commands import pipeline
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.formats.tally import Tally
from nilometer.pipeline.run.catalogue import (
    SHIPPED,
    SettingError,
    duration,
    given_settings,
    load_own,
    make_settings,
    write_copy,
)
from nilometer.pipeline.run.run_record import RunFolder
from nilometer.pipeline.run.runner import accepted, check_output, checkpoint_topics
from nilometer.pipeline.shipped import activity, metrics, notifications


def run(*arguments: str | Path):
    return CliRunner().invoke(pipeline, list(map(str, arguments)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30 minutes", 1800), ("45m", 2700), ("1.5 h", 5400), ("90", 90), ("2 Days", 172_800), ("0.5s", 0.5)],
)
def test_durations_are_read(text, seconds):
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-1s", "0", "1e9d", "99999 days"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match=r"duration|not more than 0"):
        duration(text)


def test_pairs_win_over_files_and_only_the_pipelines_own_table_counts():
    toml = '[activity]\npause = "10m"\nassets = "x$"\n[metrics]\nwindow = "5m"\n'
    given = given_settings("activity", [("a.toml", toml)], {"pause": "45m", "lateness": "90"})
    assert given == {"pause": "45m", "assets": "x$", "lateness": 90}
    made = make_settings(activity.Settings, given)
    assert (made.pause, made.assets) == (timedelta(minutes=45), "x$")
    assert made.lateness == timedelta(seconds=90)
    assert made.funnel == activity.FUNNEL


def test_rows_are_tables_or_lists():
    toml = """
[[activity.funnel]]
name = "cart"
pattern = "^/cart"
[[activity.funnel]]
name = "paid"
pattern = "^/paid"
"""
    given = given_settings("activity", [("a.toml", toml)], {})
    made = make_settings(activity.Settings, given)
    assert made.funnel == (activity.Step("cart", "^/cart"), activity.Step("paid", "^/paid"))
    rules = {"rules": '[["hot", "degrees", "greatest", 40.5]]'}
    assert make_settings(metrics.Settings, given_settings("metrics", [], rules)).rules == (
        metrics.Rule("hot", "degrees", "greatest", 40.5),
    )
    texts = {"rules": [["many", "login", "count", 2, {"en": "{count}"}]]}
    assert make_settings(notifications.Settings, texts).rules[0].texts == {"en": "{count}"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"pasue": "1m"},
            "there is no setting pasue. There are lateness, ahead, late_topic, pause, funnel, assets",
        ),
        ({"pause": "soon"}, "setting pause: 'soon' is no duration"),
        ({"pause": "0.0000001s"}, "is no duration from a microsecond"),
        ({"funnel": []}, "setting funnel: it is a list of at least one row"),
        ({"funnel": [{"name": "x"}]}, "a row has the columns name, pattern"),
        ({"funnel": [["x"]]}, "setting funnel"),
        ({"assets": 5}, "setting assets"),
    ],
)
def test_a_wrong_setting_is_named(given, says):
    with pytest.raises(SettingError, match=says):
        make_settings(activity.Settings, given)
    with pytest.raises(SettingError, match=r"a.toml is not TOML"):
        given_settings("activity", [("a.toml", "[")], {})
    with pytest.raises(SettingError, match="must be a table"):
        given_settings("activity", [("a.toml", "activity = 5")], {})


def test_every_shipped_pipelines_defaults_survive_their_own_conversion():
    for shipped in SHIPPED.values():
        module = shipped.load()
        settings_type = getattr(module, "Settings", None)
        if settings_type is not None:
            assert make_settings(settings_type, {}) == settings_type()


def test_a_wrong_setting_is_said_before_spark_starts(tmp_path):
    result = run("run", "activity", "--set", "pasue=1m", "--home", tmp_path)
    assert result.exit_code == 1
    assert "there is no setting pasue" in result.output
    (tmp_path / "f.toml").write_text("[[format]]\n")
    result = run("run", "logs", "--formats", tmp_path / "f.toml", "--home", tmp_path)
    assert result.exit_code == 1
    assert "f.toml" in result.output
    assert run("run", "logs", "--finish", "--home", tmp_path).exit_code == 2
    said = run("run", "activity", "--finish", "--home", tmp_path)
    assert "--finish needs --available-now" in said.output


def test_functions_get_the_arguments_that_they_have():
    def start(records, output, *, formats=None):
        return None

    assert accepted(start, formats=1, settings=2) == {"formats": 1}
    assert accepted(start, formats=None) == {}


# --- pipelines in files


def test_a_copy_of_a_shipped_pipeline_can_be_loaded_and_says_what_it_reads(tmp_path):
    for name, shipped in SHIPPED.items():
        path, test = write_copy(f"my_{name}", name, tmp_path)
        loaded, module = load_own(path)
        assert (loaded.name, loaded.inputs, loaded.writes, loaded.table) == (
            f"my_{name}", shipped.inputs, shipped.writes, shipped.table,
        )  # fmt: skip
        assert callable(module.start)
        assert loaded.path == str(path)
        compile(test.read_text(), str(test), "exec")
    with pytest.raises(PipelineError, match="exists already"):
        write_copy("my_logs", "logs", tmp_path)
    with pytest.raises(PipelineError, match="letters, digits and _"):
        write_copy("my-logs", "logs", tmp_path)


def test_the_command_writes_a_copy_and_says_how_to_run_it(tmp_path):
    result = run("new", "shop", "--from", "activity", "--folder", tmp_path / "jobs")
    assert result.exit_code == 0, result.output
    assert f"nilometer pipeline run {tmp_path / 'jobs' / 'shop.py'}" in result.output
    assert "nilometer pipeline run ./shop.py" in (tmp_path / "jobs" / "shop.py").read_text()
    assert (tmp_path / "jobs" / "test_shop.py").exists()


@pytest.mark.parametrize("origin", SHIPPED)
def test_a_copy_has_its_own_name_and_says_what_it_reads_and_writes(tmp_path, origin):
    path, _ = write_copy("mine", origin, tmp_path)
    text = path.read_text()
    names = dict(re.findall(r"^(INPUTS|WRITES|TABLE) = (.*)$", text, re.MULTILINE))
    given = {
        "INPUTS": SHIPPED[origin].inputs,
        "WRITES": SHIPPED[origin].writes,
        "TABLE": SHIPPED[origin].table,
    }
    assert names == {name: repr(one) for name, one in given.items() if one is not None}
    assert re.findall(r"start_batches\(\s*\"(\w+)\"", text) == ["mine"]


def test_functions_of_a_file_reach_workers_that_cannot_import_it(tmp_path):
    """What Spark does with them: pickled here, and called in another process."""
    (tmp_path / "mine.py").write_text(
        "def helper(x):\n    return x + 1\n\n"
        "def start(records, output, **more):\n    return helper(records)\n"
        "\ndef results(spark, output, top=10):\n    return {}\n"
    )
    program = (
        "import sys; from pathlib import Path; from pyspark import cloudpickle\n"
        "from nilometer.pipeline.run.catalogue import load_own\n"
        "sys.stdout.buffer.write(cloudpickle.dumps(load_own(Path(sys.argv[1]))[1].start))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "mine.py")]
    pickled = subprocess.run(command, capture_output=True, check=True).stdout
    called = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())(41, ''))"
    done = subprocess.run([sys.executable, "-c", called], input=pickled, capture_output=True, check=False)
    assert done.stdout.strip() == b"42", done.stderr


def test_what_is_no_pipeline_is_said(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    (tmp_path / "empty.py").write_text("x = 1")
    for given, code, says in (
        ("nonsense", 2, "'nonsense' is no pipeline: there are 'logs'"),
        (tmp_path / "none.py", 1, "is no file"),
        (tmp_path / "broken.py", 1, "cannot be loaded: ModuleNotFoundError"),
        (tmp_path / "empty.py", 1, "has no function start and no results"),
    ):
        result = run("run", given, "--home", tmp_path)
        assert result.exit_code == code, result.output
        assert says in result.output


# --- the output of another topic


def write_offsets(output: Path, batch: int, *topics: str) -> None:
    folder = output / "checkpoint" / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    position = json.dumps({**{topic: {"0": 5} for topic in topics}, "#": {"id": 1}})
    (folder / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{position}')


def test_a_second_topic_under_one_name_is_told_whose_checkpoint_that_is(tmp_path):
    write_offsets(tmp_path, 9, "old")
    write_offsets(tmp_path, 10, "access")
    assert checkpoint_topics(tmp_path) == {"access"}
    check_output(str(tmp_path), ["access"])
    with pytest.raises(PipelineError, match=r"of topic access, and this run reads web.*--name NAME"):
        check_output(str(tmp_path), ["web"])
    check_output(str(tmp_path / "new"), ["web"])


# --- the counts of a run


def test_the_lines_of_a_run_are_counted_once_by_batch_and_folder(tmp_path):
    def progress(batch: int, lines: int) -> dict:
        tally = Tally()
        tally.add("a.log", "access", lines)
        tally.add("a.log", "unparsed")
        return {"batch_id": batch, "tally": tally.to_json(), "rows": lines + 1}

    folder = RunFolder(tmp_path, "logs")
    record = folder.begin(["logs"], "first", pipeline="logs", settings={"lateness": "1m"})
    for batch, lines in ((0, 5), (1, 7), (1, 7)):  # a batch that was run again
        folder.on_progress(record, progress(batch, lines))
    other = folder.begin(["logs"], "second")
    folder.on_progress(other, progress(0, 100))
    tally = folder.tally("first")
    assert (tally.recognised, tally.unrecognised) == (12, 2)
    assert folder.tally("second").recognised == 100
    assert folder.tally("third") is None
    assert [one["batch_id"] for one in folder.batches("first")] == [0, 1]
    folder.on_progress(record, progress(0, 2))  # the tables were removed: numbers begin at 0 again
    assert folder.tally("first").recognised == 2
    assert folder.read().pid == os.getpid()
