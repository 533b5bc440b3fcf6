"""What is lost for good is named, and asked for on a terminal or told with --yes; names that do not exist are
errors."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import click
import pytest

from support.command_line import Nilometer, Outcome
from support.command_shell import PATIENCE_S, CommandShell
from support.documentation.command_reference import leaf_commands

ASKING = {
    "topic delete",
    "topic delete-records",
    "group delete",
    "group delete-offsets",
    "transaction abort",
    "acl remove",
    "user remove",
    "token expire",
    "cluster quorum remove",
    "storage recover",
    "log delete-strays",
    "metadata reopen",
    "elect-leaders",
    "pipeline capture",
    "spark pipelines",
}
"""The commands that can destroy what cannot be brought back."""


def on_a_terminal(shell: CommandShell, answer: str, *arguments: str) -> Outcome:
    """Run a command whose standard input is a terminal, and type ``answer``."""
    controller, terminal = pty.openpty()
    try:
        os.write(controller, f"{answer}\n".encode())
        done = subprocess.run(
            shell.command(*arguments),
            env=shell.environment,
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(controller)
        os.close(terminal)
    assert "Traceback" not in done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def has_topic(shell: CommandShell, name: str) -> bool:
    return name in {one["name"] for one in shell.json("topic", "list", "--internal")["topics"]}


def commit(shell: CommandShell, topic: str, group: str) -> None:
    shell.run("consume", topic, "--group", group, "--from-beginning", "--until-end")


def test_the_commands_that_ask() -> None:
    found = {
        name.removeprefix("nilometer ")
        for name, command in leaf_commands()
        if any(isinstance(one, click.Option) and "--yes" in one.opts for one in command.params)
    }
    assert found == ASKING


def test_a_topic_is_named_before_it_is_deleted(shell: CommandShell) -> None:
    shell.run("topic", "create", "precious", "--partitions", "3")
    refused = shell.run("topic", "delete", "precious", code=2).decode()
    assert "topic precious with the records of 3 partitions" in refused and "give --yes" in refused
    declined = on_a_terminal(shell, "n", "topic", "delete", "precious")
    assert declined.code == 1 and "Delete these topics?" in declined.err
    assert "Nothing was changed." in declined.err
    assert has_topic(shell, "precious")
    done = on_a_terminal(shell, "y", "topic", "delete", "precious")
    assert (done.code, done.out) == (0, "Deleted topic precious.\n")
    assert not has_topic(shell, "precious")


def test_an_internal_topic_needs_another_word(shell: CommandShell) -> None:
    shell.run("topic", "create", "read")
    shell.run("produce", "read", input=b"x\n")
    commit(shell, "read", "kept")
    refused = shell.run("topic", "delete", "__consumer_offsets", "--yes", code=2).decode()
    assert "__consumer_offsets" in refused and "--internal" in refused
    assert has_topic(shell, "__consumer_offsets")
    assert b"the records of" in shell.run("topic", "delete", "__consumer_offsets", "--internal", code=2)
    assert shell.json("group", "describe", "kept")["groups"][0]["offsets"][0]["committed"] == 1


def test_groups_and_their_offsets(shell: CommandShell) -> None:
    shell.run("topic", "create", "counted")
    shell.run("produce", "counted", input=b"x\ny\n")
    commit(shell, "counted", "one")
    commit(shell, "counted", "two")
    refused = shell.run("group", "delete-offsets", "one", "--topic", "counted", code=2).decode()
    assert "offset 2 of counted-0 in group one" in refused
    for topic in ("nosuch", "counted:7", "counted:0,7"):
        said = shell.run("group", "delete-offsets", "one", "--topic", topic, "--yes", code=1).decode()
        assert "has no committed offset of" in said and "Nothing was deleted" in said
    assert b"Deleted the offsets of counted-0" in shell.run(
        "group", "delete-offsets", "one", "--topic", "counted", "--yes"
    )
    refused = shell.run("group", "delete", "one", "two", code=2).decode()
    assert "group one with its offsets" in refused and "group two with its offsets" in refused
    assert shell.json("group", "delete", "two", "--yes") == {"two": None}


def test_records(shell: CommandShell) -> None:
    shell.run("topic", "create", "dated", "--partitions", "2")
    refused = shell.run("topic", "delete-records", "dated", "--before", "1:0", code=2).decode()
    assert "records of dated-1 below offset 0" in refused and "dated-0" not in refused
    refused = shell.run("topic", "delete-records", "dated", "--all", code=2).decode()
    assert "all records of dated-0" in refused and "all records of dated-1" in refused


def test_tables_of_declared_pipelines(nilometer: Nilometer, tmp_path: Path) -> None:
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text("name: project\n")
    refused = nilometer("spark", "pipelines", "--spec", str(spec), "--full-refresh-all", "run")
    assert refused.code == 2, refused
    assert f"the tables and checkpoints of {spec}" in refused.err and "give --yes" in refused.err


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("topic alter there --delete-config nosuch", 1, "topic there has no setting nosuch"),
        ("topic alter there --delete-config nosuch --config retention.ms=1", 1, "nothing was changed"),
        ("topic config there --delete nosuch", 1, "topic there has no setting nosuch"),
        ("broker config 1 --delete nosuch", 1, "broker 1 has no setting nosuch"),
        ("broker config --all-brokers --delete nosuch", 1, "has no setting nosuch"),
        ("group list --state bogus", 2, "--state: bogus is none of Empty, Stable"),
        ("group list --state empty,bogus", 2, "--state: bogus is none of"),
        ("down --data-dir WRONG", 1, "there is no cluster in WRONG"),
        ("log dump EMPTY", 2, "EMPTY has no log, index, checkpoint or snapshot file"),
        ("archive list --from EMPTY --topic nosuch", 1, "the store has nothing of topic nosuch"),
        ("replicas --topic there --partition 99", 1, "no partition 99"),
        ("replicas --topic nosuch", 1, "no topic nosuch"),
        ("pipeline demo logs --folder EMPTY/..", 2, "pipelines is of no demo, and would be removed"),
        ("simulate --seed 1 --minutes 0.1 --only 99", 2, "--only: no fault has the number 99"),
    ],
)
def test_a_name_that_does_not_exist_changes_nothing(
    nilometer: Nilometer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "pipelines").mkdir()
    nilometer("topic", "create", "there", "--if-not-exists", "--partitions", "1")
    done = nilometer(*line.split())
    assert done.code == code, done
    assert said in done.err, done
    settings = nilometer("topic", "config", "there", "--json").document["configs"]
    assert settings == {}
    assert (tmp_path / "pipelines").exists()
