"""What `nilometer produce` takes as records, and what it says of a topic that does not exist."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Nilometer


@pytest.fixture
def topic(nilometer: Nilometer, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-")
    nilometer("topic", "create", name, "--partitions", "3")
    return name


def records(nilometer: Nilometer, topic: str) -> list[dict[str, Any]]:
    done = nilometer("consume", topic, "--from-beginning", "--until-end", "--json")
    assert done.code == 0, done.err
    return sorted(map(json.loads, done.lines), key=lambda one: (one["partition"], one["offset"]))


def test_a_missing_topic_is_created_with_a_word_or_not_at_all(nilometer: Nilometer, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("a\n")
    refused = nilometer("produce", "surprise", str(file), "--no-create")
    assert refused.code == 1 and "topic surprise does not exist" in refused.err
    assert '"surprise"' not in nilometer("topic", "list", "--json").out
    empty = tmp_path / "empty"
    empty.write_text("")
    assert nilometer("produce", "surprise", str(empty)).err == ""
    assert '"surprise"' not in nilometer("topic", "list", "--json").out, "no record, no topic"
    created = nilometer("produce", "surprise", str(file), "--json")
    assert (created.code, created.err) == (0, "Created topic surprise with 1 partition.\n")
    assert created.document["created"] is True
    again = nilometer("produce", "surprise", str(file), "--json", "--no-create")
    assert (again.code, again.err, again.document["created"]) == (0, "", False)


def test_a_topic_is_copied_by_json_lines(nilometer: Nilometer, topic: str, tmp_path: Path) -> None:
    binary = base64.b64encode(b"\xff\x00").decode()
    lines: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "partition": 0, "timestamp": 1700000000001},
        {"key": None, "value": None, "partition": 0, "timestamp": 1700000000002},
        {"key_base64": binary, "value_base64": binary, "partition": 1, "timestamp": 1700000000003},
        {"value": "", "headers": {"a": "1", "b": None}, "partition": 2, "timestamp": 1700000000004},
        {"value": {"n": [1, 2.5]}, "headers": [{"name": "c", "value_base64": binary}], "partition": 2},
    ]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = nilometer("produce", topic, str(file), "--json-lines", "--json")
    assert (done.code, done.document["partitions"]) == (0, {"0": 2, "1": 1, "2": 2})
    original = records(nilometer, topic)
    assert [one.get("value") for one in original] == ["v", None, None, "", '{"n": [1, 2.5]}']
    assert [one["timestamp"] for one in original[:4]] == [1700000000001 + n for n in range(4)]
    assert original[2]["value_base64"] == original[2]["key_base64"] == binary
    assert original[3]["headers"] == [{"name": "a", "value": "1"}, {"name": "b", "value": None}]
    copy = tmp_path / "copy.jsonl"
    copy.write_text(nilometer("consume", topic, "--from-beginning", "--until-end", "--json").out)
    nilometer("topic", "create", f"{topic}-2", "--partitions", "3")
    assert nilometer("produce", f"{topic}-2", str(copy), "--json-lines").code == 0
    for one in (*original, *(copied := records(nilometer, f"{topic}-2"))):
        del one["topic"]
    assert copied == original


def test_a_line_that_is_no_record_ends_the_input(nilometer: Nilometer, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"value": "good"}\n{"value": 1, "colour": 2}\n{"value": "never"}\n')
    done = nilometer("produce", topic, str(file), "--json-lines")
    assert done.code == 1
    assert f"line 2 of {file}: 'colour' is none of the fields key, " in done.err
    assert "(1 record before it written)" in done.err
    assert [one["value"] for one in records(nilometer, topic)] == ["good"]
    file.write_text('{"value": "a", "partition": 3}\n')
    done = nilometer("produce", topic, str(file), "--json-lines")
    assert done.code == 1 and f"line 1 of {file}: " in done.err and "there is no partition 3" in done.err
    file.write_bytes(b"x" * 2_000_000)
    done = nilometer("produce", topic, str(file))
    assert done.code == 1 and f"line 1 of {file}: MESSAGE_TOO_LARGE" in done.err


def test_whole_files_and_tombstones(nilometer: Nilometer, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("two\nlines\n")
    (tmp_path / "b").write_text("")
    both = (str(tmp_path / "a"), str(tmp_path / "b"))
    assert nilometer("produce", topic, *both, "--whole-file", "--key", "k", "--partition", "1").code == 0
    assert nilometer("produce", topic, "--tombstone", "--key", "k", "--partition", "1").code == 0
    found = [(one["key"], one["value"]) for one in records(nilometer, topic)]
    assert found == [("k", "two\nlines\n"), ("k", ""), ("k", None)]


def test_options_that_contradict_each_other(nilometer: Nilometer, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("x\n")
    for options in (
        ("--tombstone",),
        ("--tombstone", "--key", "k", str(file)),
        ("--json-lines", "--whole-file"),
        ("--json-lines", "--key", "k"),
        ("--key-separator", ""),
        ("--key-separator", ":", "--key", "k"),
        ("--whole-file", "--null-marker", "x"),
        (str(tmp_path / "missing"),),
        (str(tmp_path),),
    ):
        done = nilometer("produce", topic, *options)
        assert done.code == 2, (options, done)
    assert records(nilometer, topic) == []
