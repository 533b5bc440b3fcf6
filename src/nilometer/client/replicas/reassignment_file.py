"""Reads and writes the JSON of reassignments, in the format of ``kafka-reassign-partitions``. Pure.

``{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", …]}]}``

The broker chooses the log directory of a replica: ``log_dirs`` of a file are ignored (Kafka's tool writes
them into the file for rolling back).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from nilometer.client.network.cluster_metadata import TopicPartition

VERSION = 1
ANY_LOG_DIR = "any"

Targets = dict[TopicPartition, tuple[int, ...]]


class BadReassignment(ValueError):
    """The file is not a valid reassignment; the message names the place and the reason."""


class _Partition(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...] | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    partitions: tuple[_Partition, ...]
    version: int = VERSION


def parse_reassignment(text: str | bytes) -> Targets:
    """Return the target replicas of each partition. Raises BadReassignment."""
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadReassignment(f"not a reassignment in JSON: {error}") from None
    if document.version != VERSION:
        raise BadReassignment(f"version {document.version} of the format is not known, only {VERSION}")
    targets: Targets = {}
    for one in document.partitions:
        key = TopicPartition(one.topic, one.partition)
        if key in targets:
            raise BadReassignment(f"{key} appears twice")
        _check(key, one)
        targets[key] = one.replicas
    if not targets:
        raise BadReassignment("it names no partition")
    return targets


def _check(key: TopicPartition, one: _Partition) -> None:
    if not one.topic or one.partition < 0:
        raise BadReassignment(f"{key} is not a valid topic partition")
    if not one.replicas:
        raise BadReassignment(f"{key} has an empty replica list")
    if len(set(one.replicas)) != len(one.replicas) or min(one.replicas) < 0:
        raise BadReassignment(
            f"{key} has replicas {list(one.replicas)}: name each broker once, with an id of 0 or more"
        )
    if one.log_dirs is not None and len(one.log_dirs) != len(one.replicas):
        raise BadReassignment(f"{key} has {len(one.replicas)} replicas but {len(one.log_dirs)} log_dirs")


def format_reassignment(targets: Mapping[TopicPartition, Sequence[int]]) -> str:
    return json.dumps(
        {
            "version": VERSION,
            "partitions": [
                {
                    "topic": key.topic,
                    "partition": key.partition,
                    "replicas": list(replicas),
                    "log_dirs": [ANY_LOG_DIR] * len(replicas),
                }
                for key, replicas in sorted(targets.items())
            ],
        }
    )
