"""Probes of the APIs that describe and change topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nilometer.wire.api_keys import ApiKey

from ..wire.new_topics import new_topic
from ..wire.wire_peer import make
from .probe import NO_ID, Names, Probe, of_profile, without_configs

K = ApiKey


def topic_probes() -> Iterator[Probe]:
    def metadata(name: str, version: int, names: Callable[[Names], Any], **more: object) -> Probe:
        def fields(of: Names) -> Mapping[str, object]:
            return {"topics": names(of), "allow_auto_topic_creation": False, **more}

        return Probe(K.METADATA, version, name, fields, of_profile)

    def named(version: int) -> Callable[[Names], Any]:
        return lambda of: tuple(make(K.METADATA, version, "MetadataRequestTopic", name=n) for n in of.both)

    def by_id(of: Names) -> Any:
        return tuple(make(K.METADATA, 13, "MetadataRequestTopic", topic_id=i, name=None) for i in of.both_ids)

    bits = {"include_topic_authorized_operations": True}
    yield metadata("by name", 13, named(13), **bits)
    yield metadata("by id", 13, by_id, **bits)
    yield metadata("of the cluster", 10, named(10), **bits, include_cluster_authorized_operations=True)
    yield metadata("of old clients", 4, named(4))
    yield metadata("all", 13, lambda _: None, **bits)

    def badly_named(version: int) -> Callable[[Names], Any]:
        return lambda of: tuple(
            make(K.METADATA, version, "MetadataRequestTopic", name=f"{of.prefix}{bad}")
            for bad in ("a b", "x" * 250)
        )

    for version in (0, 3, 13):  # the first versions cannot say that nothing is to be created
        yield metadata("badly named", version, badly_named(version), allow_auto_topic_creation=True)

    def names_and_ids(of: Names) -> Any:
        names = [make(K.METADATA, 13, "MetadataRequestTopic", name=name, topic_id=None) for name in of.both]
        return (*names, *by_id(of))

    yield metadata("by name and by id", 13, names_and_ids, **bits)
    yield Probe(
        K.METADATA,
        13,
        "to be created",
        lambda of: {
            "topics": (make(K.METADATA, 13, "MetadataRequestTopic", name=f"{of.prefix}auto", topic_id=None),),
            "allow_auto_topic_creation": True,
            "include_topic_authorized_operations": False,
        },
        lambda answer: [each["error_code"] == "topic_authorization_failed" for each in answer["topics"]],
    )

    def described(of: Names) -> Mapping[str, object]:
        key = K.DESCRIBE_TOPIC_PARTITIONS
        topics = tuple(make(key, 0, "TopicRequest", name=name) for name in of.both)
        return {"topics": topics, "response_partition_limit": 100, "cursor": None}

    yield Probe(K.DESCRIBE_TOPIC_PARTITIONS, 0, "by name", described)

    def created(of: Names) -> Mapping[str, object]:
        topics = tuple(new_topic(name) for name in of.both)
        return {"topics": topics, "timeout_ms": 10_000, "validate_only": True}

    yield Probe(K.CREATE_TOPICS, 7, "validated", created, without_configs)

    def grown(of: Names) -> Mapping[str, object]:
        topics = tuple(
            make(K.CREATE_PARTITIONS, 3, "CreatePartitionsTopic", name=name, count=2, assignments=None)
            for name in of.both
        )
        return {"topics": topics, "timeout_ms": 10_000, "validate_only": True}

    yield Probe(K.CREATE_PARTITIONS, 3, "validated", grown)

    def deleted(of: Names, *, by_id: bool) -> Mapping[str, object]:
        deletable = f"{of.prefix}known-deletable-{'id' if by_id else 'name'}"
        places = (
            [{"name": None, "topic_id": of.ids[deletable]}, {"name": None, "topic_id": NO_ID}]
            if by_id
            else [{"name": deletable, "topic_id": None}, {"name": of.missing, "topic_id": None}]
        )
        topics = tuple(make(K.DELETE_TOPICS, 6, "DeleteTopicState", **place) for place in places)
        return {"topics": topics, "timeout_ms": 10_000}

    yield Probe(K.DELETE_TOPICS, 6, "by name", lambda of: deleted(of, by_id=False))
    yield Probe(K.DELETE_TOPICS, 6, "by id", lambda of: deleted(of, by_id=True))

    def elected(of: Names) -> Mapping[str, object]:
        topics = tuple(
            make(K.ELECT_LEADERS, 2, "TopicPartitions", topic=name, partitions=(0,)) for name in of.both
        )
        return {"election_type": 0, "topic_partitions": topics, "timeout_ms": 10_000}

    yield Probe(K.ELECT_LEADERS, 2, "preferred", elected)

    def reassigned(of: Names) -> Mapping[str, object]:
        key = K.ALTER_PARTITION_REASSIGNMENTS
        part = make(key, 1, "ReassignablePartition", partition_index=0, replicas=None)
        topics = tuple(make(key, 1, "ReassignableTopic", name=name, partitions=(part,)) for name in of.both)
        return {"topics": topics, "timeout_ms": 10_000}

    yield Probe(K.ALTER_PARTITION_REASSIGNMENTS, 1, "cancelled", reassigned)

    def listed(of: Names) -> Mapping[str, object]:
        key = K.LIST_PARTITION_REASSIGNMENTS
        topics = tuple(
            make(key, 0, "ListPartitionReassignmentsTopics", name=name, partition_indexes=(0,))
            for name in of.both
        )
        return {"topics": topics, "timeout_ms": 10_000}

    yield Probe(K.LIST_PARTITION_REASSIGNMENTS, 0, "by name", listed)
