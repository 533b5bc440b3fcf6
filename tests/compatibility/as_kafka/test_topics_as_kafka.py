"""Topics created, deleted and given more partitions as Apache Kafka does it, in every version.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from nilometer.wire.api_keys import ApiKey
from support.brokers.comparison import BAD_NAMES, NOWHERE, each_version, same, versions
from support.brokers.topic_requests import by_name, create, metadata
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded


def new_topic(
    version: int,
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assignments: dict[int, list[int]] | None = None,
    **configs: str | None,
) -> object:
    key = ApiKey.CREATE_TOPICS
    return make(
        key,
        version,
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=tuple(
            make(key, version, "CreatableReplicaAssignment", partition_index=index, broker_ids=tuple(brokers))
            for index, brokers in (assignments or {}).items()
        ),
        configs=tuple(
            make(key, version, "CreatableTopicConfig", name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ),
    )


@each_version(ApiKey.CREATE_TOPICS)
def test_create_topics(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = f"made-{version}"
        told = {
            "plain": create(side, version, new_topic(version, name, 2)),
            "again": create(side, version, new_topic(version, name)),
            "configs": create(side, version, new_topic(version, f"{name}-c", retention_ms="1000")),
            "manual": create(side, version, new_topic(version, f"{name}-m", -1, -1, {0: [1], 1: [1]})),
            "validated": create(side, version, new_topic(version, f"{name}-v"), validate_only=True),
            "validated again": create(side, version, new_topic(version, f"{name}-v"), validate_only=True),
            "one of two": create(side, version, new_topic(version, f"{name}-1"), new_topic(version, "a b")),
            "twice": create(side, version, new_topic(version, f"{name}-t"), new_topic(version, f"{name}-t")),
            "dotted": create(side, version, new_topic(version, f"{name}.x")),
            "collision": create(side, version, new_topic(version, f"{name}_x")),
            "none": create(side, version),
        }
        if version >= 4:
            told["defaults"] = create(side, version, new_topic(version, f"{name}-d", -1, -1))
        return told

    same(sides, scenario, version)


BAD_TOPICS: dict[str, dict[str, object]] = {
    "no partitions": {"partitions": 0},
    "negative partitions": {"partitions": -2},
    "no replicas": {"replicas": 0},
    "negative replicas": {"replicas": -2},
    "more replicas than brokers": {"replicas": 3},
    "far too many partitions": {"partitions": 2_000_000},
    "unknown setting": {"no_such_setting": "1"},
    "bad setting": {"retention_ms": "soon"},
    "setting out of range": {"segment_bytes": "1"},
    "setting not of a choice": {"cleanup_policy": "shred"},
    "null setting": {"retention_ms": None},
    "broken bounds": {"compression_type": "rar"},
    "assignment and counts": {"assignments": {0: [1]}},
    "assignment with a gap": {"partitions": -1, "replicas": -1, "assignments": {0: [1], 2: [1]}},
    "assignment from 1": {"partitions": -1, "replicas": -1, "assignments": {1: [1]}},
    "assignment to unknown": {"partitions": -1, "replicas": -1, "assignments": {0: [7]}},
    "assignment to no broker": {"partitions": -1, "replicas": -1, "assignments": {0: []}},
    "assignment twice to one": {"partitions": -1, "replicas": -1, "assignments": {0: [1, 1]}},
    "assignment to nonsense": {"partitions": -1, "replicas": -1, "assignments": {0: [-1]}},
}


@pytest.mark.parametrize("what", BAD_TOPICS)
def test_create_bad_topics(sides: tuple[Side, Side], what: str) -> None:
    def scenario(side: Side, version: int) -> Plain:
        return create(side, version, new_topic(version, "bad", **BAD_TOPICS[what]))  # type: ignore[arg-type]

    same(sides, scenario, versions(ApiKey.CREATE_TOPICS)[-1])


@pytest.mark.parametrize("name", BAD_NAMES)
def test_create_topics_with_bad_names(sides: tuple[Side, Side], name: str) -> None:
    same(sides, lambda side, version: create(side, version, new_topic(version, name)), 7)


def delete(side: Side, version: int, *wanted: str | UUID | None) -> Plain:
    states = tuple(
        make(
            ApiKey.DELETE_TOPICS,
            6,
            "DeleteTopicState",
            name=one if isinstance(one, str) else None,
            topic_id=None if isinstance(one, str) else one,
        )
        for one in wanted
    )
    return side.ask(
        ApiKey.DELETE_TOPICS,
        version,
        topic_names=wanted,
        topics=states if version >= 6 else (),
        timeout_ms=10_000,
    )


@each_version(ApiKey.DELETE_TOPICS)
def test_delete_topics(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        names = [side.create(f"deleted-{version}-{number}") for number in range(3)]
        told = {
            "one": delete(side, version, names[0]),
            "unknown": delete(side, version, f"never-{version}"),
            "known and unknown": delete(side, version, names[1], f"never-{version}"),
            "twice": delete(side, version, names[2], names[2]),
            "none": delete(side, version),
        }
        eventually(lambda: side.leaders(names[0]) == [], "it is gone")
        told["gone"] = delete(side, version, names[0])
        side.create(names[0], 2)
        told["created again"] = metadata(side, 12, by_name(12, names[0]))
        return told

    same(sides, scenario, version)


def test_delete_topics_by_id(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create("deleted-by-id")
        topic_id = side.topic_ids[name]
        both = make(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=name, topic_id=topic_id)
        return {
            "unknown": delete(side, 6, NOWHERE),
            "zero": delete(side, 6, None),
            "name and id": side.ask(ApiKey.DELETE_TOPICS, 6, topics=(both,), timeout_ms=10_000),
            "by id": delete(side, 6, topic_id),
        }

    same(sides, scenario, 6)


def more(version: int, name: str, count: int, assignments: list[list[int]] | None = None) -> object:
    key = ApiKey.CREATE_PARTITIONS
    given = None
    if assignments is not None:
        given = tuple(
            make(key, version, "CreatePartitionsAssignment", broker_ids=tuple(brokers))
            for brokers in assignments
        )
    return make(key, version, "CreatePartitionsTopic", name=name, count=count, assignments=given)


@each_version(ApiKey.CREATE_PARTITIONS)
def test_create_partitions(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"more-{version}", 2)

        def ask(*topics: object, **fields: object) -> Plain:
            return side.ask(ApiKey.CREATE_PARTITIONS, version, topics=topics, timeout_ms=10_000, **fields)

        told = {
            "validated": ask(more(version, name, 3), validate_only=True),
            "three": ask(more(version, name, 3)),
            "same": ask(more(version, name, 3)),
            "fewer": ask(more(version, name, 1)),
            "zero": ask(more(version, name, 0)),
            "negative": ask(more(version, name, -1)),
            "unknown": ask(more(version, "nowhere", 3)),
            "assigned": ask(more(version, name, 4, [[1]])),
            "assigned too few": ask(more(version, name, 6, [[1]])),
            "assigned too many": ask(more(version, name, 5, [[1], [1]])),
            "assigned to unknown": ask(more(version, name, 5, [[9]])),
            "assigned two": ask(more(version, name, 5, [[1, 1]])),
            "assigned no broker": ask(more(version, name, 5, [[]])),
            "twice": ask(more(version, name, 8), more(version, name, 9)),
            "none": ask(),
        }
        side.wait_leaders(name, 4)
        return told

    same(sides, scenario, version)
