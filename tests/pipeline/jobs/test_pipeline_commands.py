"""``nilometer pipeline``: what is said when something is missing, before Spark has cost ten seconds."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

import nilometer
from nilometer.cli.pipelines.pipeline_choice import named_topics
from nilometer.cli.pipelines.pipeline_commands import pipeline
from nilometer.cli.pipelines.pipeline_run_command import print_tables
from nilometer.cli.pipelines.spark_commands import spark as spark_group
from nilometer.pipeline.errors import DataLoss, OptionError, PipelineError, readable
from nilometer.pipeline.run.catalogue import SHIPPED
from nilometer.pipeline.run.run_record import RunFolder
from nilometer.pipeline.run.samples import SAMPLES
from nilometer.pipeline.source.cluster import cluster_reader
from nilometer.pipeline.spark import java
from nilometer.pipeline.spark.spark_session import connector_coordinate, connector_settings
from support.ports import free_ports

SOURCES = Path(nilometer.__file__).parents[1]


def run(*arguments: str):
    return CliRunner().invoke(pipeline, arguments)


def test_list_names_the_pipelines_and_the_files_to_copy():
    listed = json.loads(run("list", "--json").output)["pipelines"]
    assert [one["name"] for one in listed] == [
        "logs", "activity", "metrics", "changelog", "join", "notifications", "burst",
        "table",
    ]  # fmt: skip
    for one in listed:
        assert Path(f"{SOURCES}/{one['module'].replace('.', '/')}.py").is_file()
        assert one["name"] in run("list").output
    assert set(SAMPLES) == {one["name"] for one in listed}


def test_each_pipelines_file_imports_nothing_but_pyspark_formats_and_what_python_has():
    for one in SHIPPED.values():
        text = Path(f"{SOURCES}/{one.module.replace('.', '/')}.py").read_text()
        imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith("from ")}
        imported |= {
            line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith("import ")
        }
        assert imported - sys.stdlib_module_names - {"__future__", "nilometer"} == {"pyspark"}, one.name
        ours = {line.split()[1] for line in text.splitlines() if line.startswith("from nilometer")}
        allowed = {f"nilometer.pipeline.{name}" for name in ("recognition", "events", "batches", "csv_table")}
        of_changes = ("nilometer.pipeline.changes.",)
        of_rows = (
            "nilometer.pipeline.mapped_rows",
            "nilometer.pipeline.errors",
            "nilometer.schema_registry.",
        )
        of_tables = ("nilometer.pipeline.tables.", *of_rows, *of_changes)
        more = {"table": of_tables, "changelog": of_changes}.get(one.name, ())
        assert all(name in allowed or name.startswith(more) for name in ours), one.name


def test_a_broker_that_does_not_answer_is_named(tmp_path):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    result = run("run", "logs", "--topic", "t", "--output", str(tmp_path), "--bootstrap-server", address)
    assert result.exit_code == 1
    assert f"no broker answers at {address}" in result.output
    assert "nilometer up" in result.output


def test_a_topic_that_is_not_there_is_named_with_what_to_do(topics, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_reader, "TOPIC_WAIT_MS", 100)
    given = ("--topic", "nowhere", "--output", str(tmp_path), "--bootstrap-server", topics.bootstrap)
    result = run("run", "logs", *given)
    assert result.exit_code == 1
    assert "topic nowhere does not exist" in result.output
    assert "nilometer topic create nowhere" in result.output


def test_a_wrong_option_of_the_source_is_named(topics, tmp_path):
    given = ("--topic", "t", "--output", str(tmp_path), "--bootstrap-server", topics.bootstrap)
    result = run("run", "logs", *given, "--option", "startOffsets=earliest")
    assert result.exit_code == 1
    assert "option startOffsets = 'earliest': there is no such option (did you mean startingOffsets?)" in (
        result.output
    )
    assert run("run", "logs", *given, "--option", "nonsense").exit_code == 2


def test_a_table_that_is_not_there_is_named(tmp_path):
    missing = tmp_path / "customers.csv"
    result = run("run", "join", "--table", str(missing), "--home", str(tmp_path))
    assert result.exit_code == 1
    assert f"--table: the file {missing} does not exist" in result.output


def test_missing_java_is_said_with_how_to_get_it(topics, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    result = run("run", "logs", "--topic", "t", "--output", str(tmp_path))
    assert result.exit_code == 1
    assert "Java 17" in result.output
    assert "JAVA_HOME" in result.output


@pytest.mark.parametrize(
    ("said", "is_enough"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "1.8.0_402"', False),
        ('openjdk version "11.0.22" 2024-01-16', False),
        ("no such thing", False),
    ],
)
def test_the_version_of_java_is_judged_by_what_it_says(tmp_path, monkeypatch, said, is_enough):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if is_enough:
        assert java.require_java() == str(program)
    else:
        with pytest.raises(PipelineError, match="Java 17"):
            java.require_java()


def test_a_problems_words_are_found_again_in_what_spark_makes_of_it():
    in_spark = RuntimeError(
        "Job aborted: Traceback (most recent call last):\n  File x\n"
        "nilometer.pipeline.errors.DataLoss: offsets 1 to 2 of t-0 are gone\n SQLSTATE: 38000"
    )
    assert readable(in_spark) == "offsets 1 to 2 of t-0 are gone"
    assert readable(OptionError("subscribe", "", "names no topic")) == "option subscribe = '': names no topic"
    assert "failOnDataLoss=false" in str(readable(DataLoss("gone")))
    assert readable(RuntimeError("something else")) is None


def test_the_connector_comes_from_maven_by_the_installed_version_or_from_a_folder(tmp_path):
    import pyspark

    assert connector_coordinate() == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert connector_settings(None) == {"spark.jars.packages": connector_coordinate()}
    jars = [tmp_path / "a.jar", tmp_path / "b.jar"]
    for jar in (*jars, tmp_path / "readme"):
        jar.touch()
    assert connector_settings(str(tmp_path)) == {"spark.jars": ",".join(map(str, jars))}


# --- runs


def test_inputs_are_named_where_there_are_several():
    join, logs = SHIPPED["join"], SHIPPED["logs"]
    assert list(named_topics(join, ()).values()) == ["orders", "payments"]
    assert list(named_topics(join, ("payments=p",)).values()) == ["orders", "p"]
    assert named_topics(logs, ("mine",)) == {"logs": "mine"}
    for shipped, given, says in ((join, "mine", "INPUT=TOPIC"), (join, "refunds=r", "orders, payments")):
        result = run("run", shipped.name, "--table", "t.csv", "--topic", given)
        assert result.exit_code == 2
        assert says in result.output


def test_what_a_pipeline_needs_or_has_no_use_for_is_said(tmp_path):
    needed = run("run", "join", "--home", str(tmp_path))
    assert needed.exit_code == 2
    assert "customer,name,country" in needed.output
    useless = run("run", "logs", "--to", "alerts", "--home", str(tmp_path))
    assert useless.exit_code == 2
    assert "--to" in useless.output


def test_status_knows_runs_that_ended_and_those_that_died(tmp_path):
    assert "No pipeline has run" in run("status", "--home", str(tmp_path)).output
    folder = RunFolder(tmp_path, "logs")
    record = folder.begin(["lines"], "out")
    progress = {"batch_id": 3, "rows": 1_500, "input_rows_per_second": 10.0, "rows_per_second": 2_000.0}
    progress |= {
        "lag": 12_345,
        "event_time_watermark": "2024-05-01T10:00:00+00:00",
        "at": "",
        "end_offsets": {},
    }
    folder.on_progress(record, progress)
    said = " ".join(run("status", "--home", str(tmp_path)).output.split())
    assert "running" in said
    assert "12,345" in said
    assert run("status", "activity", "--home", str(tmp_path)).exit_code == 1
    folder.end(record, "failed", "no broker answers")
    assert "no broker answers" in run("status", "--home", str(tmp_path)).output
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    text = (folder.path / "run.json").read_text().replace('"failed"', '"running"')
    (folder.path / "run.json").write_text(text.replace(f'"pid": {os.getpid()}', f'"pid": {ended.stdout}'))
    listed = json.loads(run("status", "--json", "--home", str(tmp_path)).output)["runs"]
    assert [(one["name"], one["state"]) for one in listed] == [("logs", "died")]
    stopped = run("stop", "logs", "--home", str(tmp_path))
    assert stopped.exit_code == 1
    assert "logs is not running" in stopped.output


def test_one_process_at_a_time_runs_a_pipeline(tmp_path):
    folder = RunFolder(tmp_path, "logs")
    record = folder.begin(["lines"], "out")
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[19]
        text = (folder.path / "run.json").read_text()
        text = re.sub(r'"process_started": "[0-9]*"', f'"process_started": "{started}"', text)
        (folder.path / "run.json").write_text(text.replace(f'"pid": {record.pid}', f'"pid": {sleeper.pid}'))
        with pytest.raises(PipelineError, match=f"process {sleeper.pid}"):
            folder.begin(["lines"], "out")
    finally:
        sleeper.kill()
        sleeper.wait()
    folder.begin(["lines"], "out")


@pytest.mark.parametrize("how", [None, signal.SIGINT, signal.SIGTERM])
def test_what_a_session_puts_on_disk_goes_when_its_process_does(how):
    program = (
        "from nilometer.cli.process import exit_on_sigterm\n"
        "from nilometer.pipeline.spark.spark_session import work_folder\n"
        "exit_on_sigterm()\n"
        "print(work_folder(), flush=True)\n"
        "input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    if how is not None:
        process.send_signal(how)
    process.communicate("\n")
    assert not folder.exists()


# --- jobs of one's own


def test_the_connectors_coordinate_fits_the_installed_pyspark():
    result = CliRunner().invoke(spark_group, ["packages"])
    assert result.output.strip() == connector_coordinate()


def test_submit_gives_executors_the_package_and_leaves_the_jobs_arguments_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    given = ["--master", "spark://h:7077", "--conf", "a=b c", "--conf", "spark.pyspark.python=/opt/x/python"]
    given += ["--archives", "own.zip#own", "--name", "--conf", "job.py", "--master", "x", "--conf", "y=z"]
    words = shlex.split(CliRunner().invoke(spark_group, ["submit", "--print", *given]).output)
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    assert words[0] == "env"
    assert settings["PYSPARK_PYTHON"] == "python"
    assert settings["spark.executorEnv.PATH"].startswith("/opt/x:/usr/local/sbin:")
    assert settings["a"] == "b c"
    assert words[-7:] == ["--name", "--conf", "job.py", "--master", "x", "--conf", "y=z"]
    assert "--archives" not in words
    own, _, shipped = settings["spark.archives"].partition(",")
    assert own == "own.zip#own"
    with tarfile.open(shipped.partition("#")[0]) as archive:
        names = archive.getnames()
    data_source = "nilometer/pipeline/source/cluster/cluster_source.py"
    assert {"pyspark_nilometer.py", "pyspark_nilometer_log.py", data_source} <= set(names)
    assert any(name.endswith(".nbc") for name in names)
    local = CliRunner().invoke(spark_group, ["submit", "--print", "--kafka-connector", "job.py"]).output
    assert "spark.archives" not in local
    assert f"--packages {connector_coordinate()} job.py" in local


@pytest.mark.parametrize("master", ["local[1]", "spark://h:7077"])
def test_submit_runs_what_it_prints(tmp_path, monkeypatch, master):
    ran = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execvpe", lambda *given: ran.append(given))
    given = ["--master", master, "--conf", "a=b", "job.py", "1"]
    words = shlex.split(CliRunner().invoke(spark_group, ["submit", "--print", *given]).output)
    assert CliRunner().invoke(spark_group, ["submit", *given]).exit_code == 0
    ((_, command, environment),) = ran
    variables = dict(word.split("=", 1) for word in words[1 : words.index(command[0])])
    assert words[words.index(command[0]) :] == command
    assert variables.items() <= environment.items()
    assert {"PYSPARK_PYTHON"} <= variables.keys()


def test_a_result_without_rows_is_shown_as_such(capsys):
    print_tables(Console(width=80), {"Alerts": [], "Services": [{"service": "web", "lines": 1_200}]})
    said = capsys.readouterr().out
    assert "Alerts\nnone yet" in said
    assert "1,200" in said
