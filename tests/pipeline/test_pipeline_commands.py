"""``nilometer pipeline``: what is said when something is missing, before Spark has cost ten seconds."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from nilometer.cli.pipeline_commands import pipeline
from nilometer.pipeline import java
from nilometer.pipeline.errors import DataLoss, OptionError, PipelineProblem, readable
from nilometer.pipeline.spark_session import connector_coordinate, connector_settings
from support.ports import free_ports


def run(*arguments: str):
    return CliRunner().invoke(pipeline, arguments)


def test_list_names_the_pipelines_and_the_files_to_copy():
    listed = json.loads(run("list", "--json").output)["pipelines"]
    assert [one["name"] for one in listed] == ["logs"]
    assert listed[0]["module"] == "nilometer.pipeline.shipped.logs"
    assert "logs" in run("list").output


def test_a_broker_that_does_not_answer_is_named(tmp_path):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    result = run("run", "logs", "--topic", "t", "--output", str(tmp_path), "--bootstrap-server", address)
    assert result.exit_code == 1
    assert f"no broker answers at {address}" in result.output
    assert "nilometer up" in result.output


def test_a_topic_that_is_not_there_is_named_with_what_to_do(topics, tmp_path):
    given = ("--topic", "nowhere", "--output", str(tmp_path), "--bootstrap-server", topics.bootstrap)
    result = run("run", "logs", *given)
    assert result.exit_code == 1
    assert "topic nowhere does not exist" in result.output
    assert "nilometer topic create nowhere" in result.output


def test_a_wrong_option_of_the_source_is_named(topics, tmp_path):
    given = ("--topic", "t", "--output", str(tmp_path), "--bootstrap-server", topics.bootstrap)
    result = run("run", "logs", *given, "--option", "startOffsets=earliest")
    assert result.exit_code == 1
    assert "option startOffsets" in result.output
    assert run("run", "logs", *given, "--option", "nonsense").exit_code == 2


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
        with pytest.raises(PipelineProblem, match="Java 17"):
            java.require_java()


def test_a_problems_words_are_found_again_in_what_spark_makes_of_it():
    in_spark = RuntimeError(
        "Job aborted: Traceback (most recent call last):\n  File x\n"
        "nilometer.pipeline.errors.DataLoss: offsets 1 to 2 of t-0 are gone\n SQLSTATE: 38000"
    )
    assert readable(in_spark) == "offsets 1 to 2 of t-0 are gone"
    assert readable(OptionError("subscribe", "", "names no topic")) == "option subscribe = '': names no topic"
    assert "failOnDataLoss=false" in readable(DataLoss("gone"))
    assert readable(RuntimeError("something else")) is None


def test_the_connector_comes_from_maven_by_the_installed_version_or_from_a_folder(tmp_path):
    import pyspark

    assert connector_coordinate() == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert connector_settings(None) == {"spark.jars.packages": connector_coordinate()}
    jars = [tmp_path / "a.jar", tmp_path / "b.jar"]
    for jar in (*jars, tmp_path / "readme"):
        jar.touch()
    assert connector_settings(str(tmp_path)) == {"spark.jars": ",".join(map(str, jars))}
