"""Where `nilometer consume` begins and ends, and how it tells a null from an empty value."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

import nilometer as package
from support.command_line import Nilometer
from support.command_shell import CommandShell


@pytest.fixture
def numbers(nilometer: Nilometer, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A topic with the values 0 to 9 in partition 0, and 10 to 12 in partition 1."""
    topic = request.node.name.replace("_", "-")
    nilometer("topic", "create", topic, "--partitions", "2")
    for partition, values in enumerate((range(10), range(10, 13))):
        file = tmp_path / f"{partition}.txt"
        file.write_text("".join(f"{value}\n" for value in values))
        done = nilometer("produce", topic, str(file), "--partition", str(partition))
        assert done.code == 0, done.err
    return topic


def values(nilometer: Nilometer, topic: str, *options: str) -> list[int]:
    done = nilometer("consume", topic, "--until-end", *options)
    assert done.code == 0, done.err
    return sorted(map(int, done.lines))


def test_an_offset_that_the_log_does_not_have_is_an_error_that_names_the_range(
    nilometer: Nilometer, numbers: str
) -> None:
    for options in (("--partition", "0", "--offset", "99999"), ("--offset", "0:99999")):
        done = nilometer("consume", numbers, *options, "--until-end")
        assert (done.code, done.out) == (1, "")
        assert f"OFFSET_OUT_OF_RANGE: offset 99999 is not in {numbers}-0" in done.err
        assert "the log has the offsets 0 to 9" in done.err
    done = nilometer("consume", numbers, "--offset", "5", "--until-end")
    assert done.code == 1 and f"offset 5 is not in {numbers}-1: the log has the offsets 0 to 2" in done.err
    before = ("--before", "0:4", "--before", "1:3")
    assert nilometer("topic", "delete-records", numbers, *before, "--yes").code == 0
    done = nilometer("consume", numbers, "--offset", "0:3", "--until-end")
    assert done.code == 1 and "the log has the offsets 4 to 9" in done.err
    done = nilometer("consume", numbers, "--offset", "1:2", "--until-end")
    assert done.code == 1 and "the log is empty, and its next record gets offset 3" in done.err
    assert values(nilometer, numbers, "--offset", "0:10", "--offset", "1:3") == []


def test_each_partition_has_its_place(nilometer: Nilometer, numbers: str) -> None:
    assert values(nilometer, numbers, "--offset", "0:8") == [8, 9]
    assert values(nilometer, numbers, "--offset", "0:8", "--offset", "1:-1") == [8, 9, 12]
    assert values(nilometer, numbers, "--offset", "0:8", "--offset", "earliest") == [8, 9, 10, 11, 12]
    assert values(nilometer, numbers, "--offset", "1:earliest", "--partition", "1") == [10, 11, 12]
    for options in (
        ("--offset", "0:8", "--partition", "1"),
        ("--offset", "0:8", "--partition", "0", "--partition", "1"),
        ("--offset", "0:8", "--offset", "0:9"),
        ("--offset", "1", "--offset", "2"),
        ("--offset", "0:"),
        ("--offset", "1:2:3"),
        ("--offset", "9" * 5000),
        ("--offset", "0:1", "--from-beginning"),
        ("--tail", "1", "--from-beginning"),
        ("--tail", "1", "--count", "1"),
        ("--tail", "0"),
        ("--tail", "1", "--group", "g"),
    ):
        assert nilometer("consume", numbers, *options).code == 2, options


def test_the_tail_is_of_all_partitions(nilometer: Nilometer, numbers: str) -> None:
    assert nilometer("consume", numbers, "--tail", "5").lines == ["8", "9", "10", "11", "12"]
    assert nilometer("consume", numbers, "--tail", "2", "--partition", "0").lines == ["8", "9"]
    assert values(nilometer, numbers, "--tail", "100") == list(range(13))


def test_the_tail_looks_behind_markers_of_transactions(nilometer: Nilometer, bootstrap: str) -> None:
    """Every second offset is a marker: the last four offsets have two records."""

    async def write() -> None:
        async with package.connect(bootstrap) as kafka:
            await kafka.admin.create_topic("marked", 1)
            for number in range(20):
                async with kafka.transaction("tail") as transaction:
                    await transaction.send("marked", b"%d" % number)

    asyncio.run(write())
    tail = ("consume", "marked", "--tail", "4", "--isolation-level")
    assert nilometer(*tail, "read_committed").lines == ["16", "17", "18", "19"]
    assert nilometer(*tail, "read_uncommitted").lines == ["16", "17", "18", "19"]


def test_following_goes_on_after_the_tail(nilometer: Nilometer, shell: CommandShell, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("1\n2\n3\n")
    (tmp_path / "new").write_text("4\n5\n")
    nilometer("topic", "create", "growing", "--partitions", "1")
    nilometer("produce", "growing", str(tmp_path / "old"))
    with shell.start("consume", "growing", "--tail", "2", "--follow", stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert [follower.stdout.readline() for _ in range(2)] == [b"2\n", b"3\n"]
        nilometer("produce", "growing", str(tmp_path / "new"))
        assert [follower.stdout.readline() for _ in range(2)] == [b"4\n", b"5\n"]
        follower.terminate()
    assert follower.returncode == 0


def test_null_and_empty_are_told_apart(nilometer: Nilometer, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("a:\nb:NIL\nNIL:c\n")
    nilometer("topic", "create", "nulls", "--partitions", "1")
    assert nilometer("produce", "nulls", str(file), "--key-separator", ":", "--null-marker", "NIL").code == 0
    read = ("consume", "nulls", "--from-beginning", "--until-end")
    assert nilometer(*read).out == "\nnull\nc\n"
    assert nilometer(*read, "--null-marker", "").out == "\n\nc\n"
    shown = nilometer(*read, "--format", "{key}={value};", "--null-marker", "NIL").out
    assert shown == "a=;b=NIL;NIL=c;"
    documents = [json.loads(line) for line in nilometer(*read, "--json").lines]
    assert [(one["key"], one["value"]) for one in documents] == [("a", ""), ("b", None), (None, "c")]


def test_a_topic_that_does_not_exist_is_an_error_at_once(nilometer: Nilometer) -> None:
    for options in (("--from-beginning",), ("--tail", "1"), ("--group", "g", "--until-end")):
        done = nilometer("consume", "no-such-topic", *options)
        assert done.code == 1
        assert "UNKNOWN_TOPIC_OR_PARTITION: topic no-such-topic does not exist" in done.err
        assert "`nilometer topic list`" in done.err
    done = nilometer("consume", "no/topic", "--from-beginning")
    assert done.code == 1 and "INVALID_TOPIC_EXCEPTION" in done.err
