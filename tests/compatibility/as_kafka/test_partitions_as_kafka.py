"""Logs, leaders, replicas and producers of partitions, administered as in Apache Kafka, in every version.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.comparison import each_version, same, versions
from support.brokers.two_brokers import Plain, Side, batch, produce_fields
from support.eventually import eventually
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded


@each_version(ApiKey.DESCRIBE_LOG_DIRS)
def test_describe_log_dirs(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"dirs-{version}", 2)
        side.append(name, b"a" * 100)
        side.append(name, b"b" * 100, partition=1)

        def ask(*wanted: tuple[str, tuple[int, ...]]) -> Plain:
            topics = tuple(
                make(
                    ApiKey.DESCRIBE_LOG_DIRS, version, "DescribableLogDirTopic", topic=topic, partitions=which
                )
                for topic, which in wanted
            )
            answer = side.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=topics)
            for directory in answer["results"]:
                for field in ("log_dir", "total_bytes", "usable_bytes", "is_cordoned"):
                    directory.pop(field, None)
            return answer

        return {
            "both": ask((name, (0, 1))),
            "one": ask((name, (1,))),
            "one that is not": ask((name, (5,))),
            "unknown": ask(("nowhere", (0,))),
            "none": ask(),
        }

    same(sides, scenario, version)


@each_version(ApiKey.DELETE_RECORDS)
def test_delete_records(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"trimmed-{version}", 2)
        compacted = side.create(f"trimmed-compact-{version}", cleanup_policy="compact")
        for _ in range(3):
            side.append(name, b"a", b"b")
        key = ApiKey.DELETE_RECORDS

        def ask(topic: str, *offsets: tuple[int, int]) -> Plain:
            partitions = tuple(
                make(key, version, "DeleteRecordsPartition", partition_index=index, offset=offset)
                for index, offset in offsets
            )
            asked = make(key, version, "DeleteRecordsTopic", name=topic, partitions=partitions)
            return side.ask(key, version, topics=(asked,), timeout_ms=10_000)

        return {
            "into a batch": ask(name, (0, 3)),
            "below the start": ask(name, (0, 1)),
            "above the end": ask(name, (0, 7)),
            "nonsense": ask(name, (0, -2)),
            "to the end": ask(name, (0, -1)),
            "of nothing": ask(name, (1, -1), (1, 0)),
            "unknown partition": ask(name, (9, 0)),
            "unknown topic": ask("nowhere", (0, 0)),
            "compacted": ask(compacted, (0, 0)),
        }

    same(sides, scenario, version)


@each_version(ApiKey.OFFSET_FOR_LEADER_EPOCH)
def test_offset_for_leader_epoch(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"epochs-{version}")
        side.append(name, b"a", b"b")
        key = ApiKey.OFFSET_FOR_LEADER_EPOCH

        def ask(topic: str, partition: int, current: int, epoch: int) -> Plain:
            asked = make(
                key,
                version,
                "OffsetForLeaderPartition",
                partition=partition,
                current_leader_epoch=current,
                leader_epoch=epoch,
            )
            topics = (make(key, version, "OffsetForLeaderTopic", topic=topic, partitions=(asked,)),)
            return side.ask(key, version, replica_id=-1, topics=topics)

        return {
            "own": ask(name, 0, -1, 0),
            "own, knowing": ask(name, 0, 0, 0),
            "to come": ask(name, 0, -1, 5),
            "none": ask(name, 0, -1, -1),
            "nonsense": ask(name, 0, -1, -7),
            "from the future": ask(name, 0, 3, 0),
            "unknown partition": ask(name, 4, -1, 0),
            "unknown topic": ask("nowhere", 0, -1, 0),
        }

    same(sides, scenario, version)


@each_version(ApiKey.ELECT_LEADERS)
def test_elect_leaders(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"elected-{version}", 2)
        key = ApiKey.ELECT_LEADERS

        def ask(kind: int, *wanted: tuple[str, tuple[int, ...]]) -> Plain:
            topics = tuple(
                make(key, version, "TopicPartitions", topic=topic, partitions=which)
                for topic, which in wanted
            )
            return side.ask(key, version, election_type=kind, topic_partitions=topics, timeout_ms=10_000)

        told = {
            "preferred": ask(0, (name, (0, 1))),
            "unknown partition": ask(0, (name, (7,))),
            "unknown topic": ask(0, ("nowhere", (0,))),
        }
        if version:
            told["unclean"] = ask(1, (name, (0,)))
        return told

    same(sides, scenario, version)


@each_version(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
def test_reassignments(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"moved-{version}", 2)
        key = ApiKey.ALTER_PARTITION_REASSIGNMENTS

        def ask(topic: str, *moves: tuple[int, tuple[int, ...] | None]) -> Plain:
            partitions = tuple(
                make(key, version, "ReassignablePartition", partition_index=index, replicas=replicas)
                for index, replicas in moves
            )
            asked = make(key, version, "ReassignableTopic", name=topic, partitions=partitions)
            return side.ask(key, version, topics=(asked,), timeout_ms=10_000)

        def ongoing(*which: tuple[str, tuple[int, ...]]) -> Plain:
            topics = tuple(
                make(
                    ApiKey.LIST_PARTITION_REASSIGNMENTS,
                    0,
                    "ListPartitionReassignmentsTopics",
                    name=topic,
                    partition_indexes=indexes,
                )
                for topic, indexes in which
            )
            return side.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=topics or None, timeout_ms=10_000)

        return {
            "to where it is": ask(name, (0, (1,))),
            "to nowhere": ask(name, (0, (7,))),
            "to no broker": ask(name, (0, ())),
            "twice to one": ask(name, (0, (1, 1))),
            "to nonsense": ask(name, (0, (-1,))),
            "called off": ask(name, (0, None)),
            "unknown partition": ask(name, (9, (1,))),
            "unknown topic": ask("nowhere", (0, (1,))),
            "ongoing": ongoing(),
            "ongoing of one": ongoing((name, (0, 9))),
            "ongoing of unknown": ongoing(("nowhere", (0,))),
        }

    same(sides, scenario, version)


def test_init_producer_id(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side, version: int) -> Plain:
        told = {}
        eventually(lambda: _has_producer_ids(side), "the first producer ids are there")
        for version in versions(ApiKey.INIT_PRODUCER_ID):
            known: dict[str, dict[str, int]] = {"plain": {}}
            if version >= 3:
                known |= {
                    "known": {"producer_id": 5, "producer_epoch": 3},
                    "half known": {"producer_id": 5, "producer_epoch": -1},
                    "used up": {"producer_id": 5, "producer_epoch": 32767},
                }
            for what, fields in known.items():
                answer = side.message(
                    ApiKey.INIT_PRODUCER_ID,
                    version,
                    transactional_id=None,
                    transaction_timeout_ms=1000,
                    **fields,
                )
                told[version, what] = (answer.error_code, answer.producer_id >= 0, answer.producer_epoch)
        return told

    same(sides, scenario, 0)


def _has_producer_ids(side: Side) -> bool:
    answer = side.message(ApiKey.INIT_PRODUCER_ID, 0, transactional_id=None, transaction_timeout_ms=1000)
    return answer.error_code == ErrorCode.none


def test_a_batch_for_both(sides: tuple[Side, Side]) -> None:
    """The fixture itself: what is compared below is what was sent."""

    def scenario(side: Side, version: int) -> Plain:
        name = side.create("fixture")
        return side.ask(ApiKey.PRODUCE, version, **produce_fields(version, name, {0: batch(b"x")}))

    same(sides, scenario, 9)
