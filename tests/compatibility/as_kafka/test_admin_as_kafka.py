"""Administration answered as Apache Kafka answers it: every API, every version both serve.

Each scenario is a conversation that is held with both brokers; what they say must be the same. A difference
that is meant is taken out by the scenario, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from nilometer.broker.api.registry import APIS
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.two_brokers import CLOSED, Plain, Side, batch, differences, produce_fields
from support.eventually import eventually
from support.wire.wire_peer import make

pytestmark = pytest.mark.java
Scenario = Callable[[Side, int], Plain]

NOWHERE = UUID(int=0xDEAD << 64 | 0xBEEF)
BAD_NAMES = ("", ".", "..", "a b", "ä", "x" * 250, "a/b")


def versions(key: ApiKey) -> range:
    low, high = APIS[key].versions
    return range(low, high + 1)


def each_version(key: ApiKey) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", versions(key))


def same(sides: tuple[Side, Side], scenario: Scenario, version: int) -> None:
    kafka, nilometer = sides
    found = differences(scenario(kafka, version), scenario(nilometer, version))
    assert not found, "\n".join(found)


# ── Metadata ────────────────────────────────────────────────────────────────────────────────────────


def metadata(side: Side, version: int, *topics: object, create: bool = False, **fields: object) -> Plain:
    answer = side.ask(ApiKey.METADATA, version, topics=topics, allow_auto_topic_creation=create, **fields)
    return answer if answer == CLOSED else {k: v for k, v in answer.items() if k != "brokers"}


def by_name(version: int, name: str) -> object:
    return make(ApiKey.METADATA, version, "MetadataRequestTopic", name=name)


def by_id(version: int, topic_id: UUID | None, name: str | None = None) -> object:
    return make(ApiKey.METADATA, version, "MetadataRequestTopic", name=name, topic_id=topic_id)


@each_version(ApiKey.METADATA)
def test_metadata(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"metadata-{version}", 3)
        told = {
            "known": metadata(side, version, by_name(version, name)),
            "twice": metadata(side, version, by_name(version, name), by_name(version, name)),
        }
        if version >= 4:
            # Before version 4 a client cannot say that it wants nothing created.
            told["unknown"] = metadata(side, version, by_name(version, "nowhere"))
            told["both"] = metadata(side, version, by_name(version, "nowhere"), by_name(version, name))
            told |= {f"bad {bad}": metadata(side, version, by_name(version, bad)) for bad in BAD_NAMES}
        if version >= 8:
            told["operations"] = metadata(
                side, version, by_name(version, name), include_topic_authorized_operations=True
            )
        return told

    same(sides, scenario, version)


@each_version(ApiKey.METADATA)
def test_metadata_of_all_and_of_none(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"all-{version}", 2)
        everything = side.message(ApiKey.METADATA, version, topics=None if version else ())
        named = [topic for topic in everything.topics if topic.name == name]
        nothing = metadata(side, version) if version else "not to be said in version 0"
        return {"all": side.plain(named), "brokers": len(everything.brokers), "none": nothing}

    same(sides, scenario, version)


@pytest.mark.parametrize("version", range(12, versions(ApiKey.METADATA).stop))
def test_metadata_by_id(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"by-id-{version}", 1)
        return {
            "known": metadata(side, version, by_id(version, side.topic_ids[name])),
            "unknown": metadata(side, version, by_id(version, NOWHERE)),
            "with an empty name": metadata(side, version, by_id(version, side.topic_ids[name], "")),
            "unknown, with an empty name": metadata(side, version, by_id(version, NOWHERE, "")),
        }

    same(sides, scenario, version)


@each_version(ApiKey.METADATA)
def test_metadata_creates_topics(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = f"created-{version}"
        first = side.message(
            ApiKey.METADATA, version, topics=(by_name(version, name),), allow_auto_topic_creation=True
        ).topics[0]
        # Kafka says that it is not there yet, Nilometer waits until it is.
        assert first.error_code in (
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.leader_not_available,
        )
        side.wait_leaders(name, 1)
        return {
            "then": metadata(side, version, by_name(version, name), create=True),
            "bad name": metadata(side, version, by_name(version, "a b"), create=True),
        }

    same(sides, scenario, version)


# ── CreateTopics ────────────────────────────────────────────────────────────────────────────────────


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


def create(side: Side, version: int, *topics: object, **fields: object) -> Plain:
    answer = side.message(ApiKey.CREATE_TOPICS, version, topics=topics, timeout_ms=10_000, **fields)
    told = side.plain(answer)
    for topic in told["topics"]:
        topic.pop("topic_id", None)
        # What both know of the settings of a topic; each has some that the other has not.
        configs = {one["name"]: one for one in topic.pop("configs", None) or ()}
        topic["configs"] = {
            name: configs[name] for name in ("retention.ms", "cleanup.policy") if name in configs
        }
    return told


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


# ── DeleteTopics ────────────────────────────────────────────────────────────────────────────────────


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


# ── CreatePartitions ────────────────────────────────────────────────────────────────────────────────


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


# ── settings ────────────────────────────────────────────────────────────────────────────────────────

TOPIC, BROKER = 2, 4
COMPARED = ("retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes", "message.timestamp.type")
SYNONYMS = COMPARED[1:]
"""Kafka's log.retention.ms has no default of its own: there it is log.retention.hours that has one."""


def describe(side: Side, version: int, kind: int, name: str, *keys: str, **fields: object) -> Plain:
    resource = make(
        ApiKey.DESCRIBE_CONFIGS,
        version,
        "DescribeConfigsResource",
        resource_type=kind,
        resource_name=name,
        configuration_keys=keys or None,
    )
    answer = side.ask(ApiKey.DESCRIBE_CONFIGS, version, resources=(resource,), **fields)
    if answer != CLOSED:
        for result in answer["results"]:
            for config in result["configs"]:
                # Words of its own, and the order of what is looked up: the one in force is first.
                config.pop("documentation", None)
    return answer


@each_version(ApiKey.DESCRIBE_CONFIGS)
def test_describe_configs(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"described-{version}", retention_ms="1234", cleanup_policy="compact,delete")
        return {
            "some": describe(side, version, TOPIC, name, *COMPARED),
            "synonyms": describe(side, version, TOPIC, name, *SYNONYMS, include_synonyms=True),
            "documented": describe(side, version, TOPIC, name, *COMPARED, include_documentation=True),
            "no such key": describe(side, version, TOPIC, name, "no.such.key"),
            "unknown topic": describe(side, version, TOPIC, "nowhere"),
            "bad topic": describe(side, version, TOPIC, "a b"),
            "no topic": describe(side, version, TOPIC, ""),
            "other broker": describe(side, version, BROKER, "7", "num.partitions"),
            "no broker": describe(side, version, BROKER, "x", "num.partitions"),
            "kind": describe(side, version, 77, "x"),
            "defaults of brokers": describe(side, version, BROKER, "", "num.partitions"),
            "broker": describe(side, version, BROKER, "1", "num.partitions", "message.max.bytes"),
        }

    same(sides, scenario, version)


SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(
    side: Side, version: int, kind: int, name: str, *changes: tuple[str, int, str | None], **fields: object
) -> Plain:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    configs = tuple(
        make(key, version, "AlterableConfig", name=what, config_operation=how, value=value)
        for what, how, value in changes
    )
    resource = make(
        key, version, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs
    )
    return side.ask(key, version, resources=(resource,), **fields)


@each_version(ApiKey.INCREMENTAL_ALTER_CONFIGS)
def test_alter_configs(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name = side.create(f"altered-{version}")
        steps: dict[str, Plain] = {}

        def step(what: str, *changes: tuple[str, int, str | None], **fields: object) -> None:
            steps[what] = alter(side, version, TOPIC, name, *changes, **fields)
            eventually(
                lambda: describe(side, 4, TOPIC, name, *COMPARED) is not None, "settings can be described"
            )

        step("set", ("retention.ms", SET, "5000"))
        step("append", ("cleanup.policy", APPEND, "compact"))
        step("append again", ("cleanup.policy", APPEND, "compact"))
        step("subtract", ("cleanup.policy", SUBTRACT, "delete"))
        step("delete", ("retention.ms", DELETE, None))
        step("delete what is not set", ("retention.bytes", DELETE, None))
        step("validate", ("retention.ms", SET, "7777"), validate_only=True)
        step("unknown", ("no.such.key", SET, "1"))
        step("delete unknown", ("no.such.key", DELETE, None))
        step("bad value", ("retention.ms", SET, "soon"))
        step("below its range", ("min.insync.replicas", SET, "0"))
        step("no value", ("retention.ms", SET, None))
        step("append to what is no list", ("retention.ms", APPEND, "1"))
        step("bad item", ("cleanup.policy", APPEND, "shred"))
        step("two", ("retention.ms", SET, "1"), ("segment.bytes", SET, "2097152"))
        step("one of two bad", ("retention.ms", SET, "2"), ("segment.bytes", SET, "x"))
        step("twice", ("retention.ms", SET, "3"), ("retention.ms", SET, "4"))
        step("nothing")
        steps["unknown topic"] = alter(side, version, TOPIC, "nowhere", ("retention.ms", SET, "1"))
        steps["bad topic"] = alter(side, version, TOPIC, "a b", ("retention.ms", SET, "1"))
        steps["kind"] = alter(side, version, 77, "x", ("retention.ms", SET, "1"))
        steps["unknown broker"] = alter(side, version, BROKER, "7", ("log.retention.ms", SET, "1"))
        steps["broker, not dynamic"] = alter(side, version, BROKER, "1", ("node.id", SET, "1"))
        steps["in the end"] = describe(side, 4, TOPIC, name, *COMPARED)
        return steps

    same(sides, scenario, version)


def test_settings_of_all_brokers_reach_topics(sides: tuple[Side, Side]) -> None:
    """Set for all, then for one broker, then taken back: what is nearest to the topic wins."""

    def scenario(side: Side, version: int) -> Plain:
        name = side.create("inheriting")
        own = side.create("own-settings", max_message_bytes="1111")
        told: dict[str, Plain] = {}

        def step(what: str, broker: str, how: int, value: str | None, expected: str) -> None:
            told[what] = alter(side, version, BROKER, broker, ("message.max.bytes", how, value))

            def arrived() -> bool:
                answer = describe(side, 4, TOPIC, name, "max.message.bytes")
                return answer["results"][0]["configs"][0]["value"] == expected

            eventually(arrived, f"{side.name} says {expected}")
            for topic in (name, own):
                told[f"{what}, {topic}"] = describe(
                    side, 4, TOPIC, topic, "max.message.bytes", include_synonyms=True
                )
            told[f"{what}, broker"] = describe(
                side, 4, BROKER, "1", "message.max.bytes", include_synonyms=True
            )

        default = describe(side, 4, TOPIC, name, "max.message.bytes")["results"][0]["configs"][0]["value"]
        step("for all", "", SET, "5555", "5555")
        step("for one", "1", SET, "7777", "7777")
        step("one taken back", "1", DELETE, None, "5555")
        step("all taken back", "", DELETE, None, default)
        return told

    same(sides, scenario, 1)


def test_documentation_comes_when_asked_for(nilometer: Side) -> None:
    name = nilometer.create("documented")
    for asked in (True, False):
        resource = make(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            "DescribeConfigsResource",
            resource_type=TOPIC,
            resource_name=name,
            configuration_keys=None,
        )
        answer = nilometer.message(
            ApiKey.DESCRIBE_CONFIGS, 4, resources=(resource,), include_documentation=asked
        )
        configs = answer.results[0].configs
        assert len(configs) > 20
        assert all(bool(config.documentation) is asked for config in configs)


# ── the rest ────────────────────────────────────────────────────────────────────────────────────────


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


def test_describe_topic_partitions(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side, version: int) -> Plain:
        first, second = side.create("pages-a", 3), side.create("pages-b", 2)
        key = ApiKey.DESCRIBE_TOPIC_PARTITIONS

        def ask(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Plain:
            where = cursor and make(key, 0, "Cursor", topic_name=cursor[0], partition_index=cursor[1])
            return side.ask(
                key,
                0,
                topics=tuple(make(key, 0, "TopicRequest", name=name) for name in names),
                response_partition_limit=limit,
                cursor=where,
            )

        return {
            "both": ask(second, first),
            "unknown": ask("nowhere", first),
            "bad": ask("a b"),
            "one": ask(first, second, limit=1),
            "three": ask(first, second, limit=3),
            "four": ask(first, second, limit=4),
            "zero": ask(first, second, limit=0),
            "second page": ask(first, second, limit=3, cursor=(first, 2)),
            "behind the end": ask(first, second, cursor=(first, 3)),
            "far behind the end": ask(first, second, cursor=(first, 30)),
            "second topic": ask(first, second, cursor=(second, 1)),
            "topic that is not": ask(first, second, cursor=("pages-aa", 0)),
            "negative": ask(first, second, cursor=(first, -1)),
        }

    same(sides, scenario, 0)


@each_version(ApiKey.DESCRIBE_CLUSTER)
def test_describe_cluster(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        told = {"plain": side.ask(ApiKey.DESCRIBE_CLUSTER, version)}
        if version >= 1:
            told["of nonsense"] = side.ask(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=7)
            told["of controllers"] = side.ask(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=2)
        if version >= 2:
            told["fenced"] = side.ask(ApiKey.DESCRIBE_CLUSTER, version, include_fenced_brokers=True)
        told["operations"] = side.ask(
            ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True
        )
        return told

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


@each_version(ApiKey.API_VERSIONS)
def test_api_versions(sides: tuple[Side, Side], version: int) -> None:
    def ask(side: Side, software: str, number: str) -> Plain:
        told = side.ask(
            ApiKey.API_VERSIONS, version, client_software_name=software, client_software_version=number
        )
        served = {int(key) for key in APIS}
        keys = [(one["api_key"], one["min_version"]) for one in told["api_keys"] if one["api_key"] in served]
        return {"error": told["error_code"], "keys": keys}

    names = ("nilometer", "1.0") if version < 3 else ("", "1.0")
    kafka, nilometer = (ask(side, *names) for side in sides)
    assert nilometer["error"] == kafka["error"]
    good = [ask(side, "some-client", "1.2.3") for side in sides]
    assert good[0]["error"] == good[1]["error"] == "none"
    theirs, ours = dict(good[0]["keys"]), dict(good[1]["keys"])
    assert {key for key in ours if key not in theirs} <= {int(key) for key in NilometerApiKey}
    assert {key: low for key, low in ours.items() if key in theirs} == {
        k: v for k, v in theirs.items() if k in ours
    }


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_api_versions_that_no_broker_serves(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        side.hang_up()
        header = ApiKey.API_VERSIONS.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True)
        side.peer.tell_bytes(header + b"\x00\x00\x00\x07\xff\xff\x00")
        answer = side.peer.receive()
        side.hang_up()
        return answer[:6]

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
