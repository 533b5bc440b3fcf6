"""Reassignments as files: what Kafka's own tool writes is read, and what cannot be meant is refused."""

from __future__ import annotations

import json

import pytest

from nilometer.client.admin.reassignments import (
    BadReassignment,
    format_reassignment,
    parse_log_dirs,
    parse_reassignment,
)
from nilometer.client.network.cluster_metadata import TopicPartition

KAFKAS = (
    '{"version":1,"partitions":[{"topic":"foo","partition":1,"replicas":[5,6],"log_dirs":["any","any"]},'
    '{"topic":"bar","partition":0,"replicas":[4]}]}'
)


def test_kafkas_own_files_are_read() -> None:
    assert parse_reassignment(KAFKAS) == {TopicPartition("foo", 1): (5, 6), TopicPartition("bar", 0): (4,)}


def test_files_come_back_as_they_went() -> None:
    targets = parse_reassignment(KAFKAS)
    text = format_reassignment(targets)
    assert parse_reassignment(text) == targets
    first, second = json.loads(text)["partitions"]
    assert first == {"topic": "bar", "partition": 0, "replicas": [4], "log_dirs": ["any"]}
    assert second["log_dirs"] == ["any", "any"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a reassignment in JSON"),
        ("[" * 100_000, "not a reassignment in JSON"),
        ('{"version":1}', "partitions"),
        ('{"version":2,"partitions":[]}', "version 2"),
        ('{"version":1,"partitions":[]}', "names no partition"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[]}]}', "empty replica list"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[1,1]}]}', "each broker once"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":[-1]}]}', "an id of 0 or more"),
        ('{"partitions":[{"topic":"t","partition":-1,"replicas":[1]}]}', "not a valid topic partition"),
        ('{"partitions":[{"topic":"t","partition":0,"replicas":["1"]}]}', "replicas"),
        (
            '{"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":["any","any"]}]}',
            "1 replicas but 2 log_dirs",
        ),
        (
            '{"partitions":[{"topic":"t","partition":0,"replicas":[1]},'
            '{"topic":"t","partition":0,"replicas":[2]}]}',
            "t-0 appears twice",
        ),
    ],
    ids=range(12),
)
def test_what_cannot_be_meant_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadReassignment, match=reason):
        parse_reassignment(text)


def test_log_directories_are_named_by_broker() -> None:
    text = """{"version": 1, "partitions": [
        {"topic": "foo", "partition": 1, "replicas": [5, 6], "log_dirs": ["any", "/a"]},
        {"topic": "foo", "partition": 2, "replicas": [6, 5], "log_dirs": ["/a", "/b"]},
        {"topic": "bar", "partition": 0, "replicas": [6]}
    ]}"""
    first, second = TopicPartition("foo", 1), TopicPartition("foo", 2)
    assert parse_log_dirs(text) == {6: {first: "/a", second: "/a"}, 5: {second: "/b"}}
    assert parse_log_dirs(format_reassignment({first: (5, 6)})) == {}
    with pytest.raises(BadReassignment):
        parse_log_dirs("{}")
