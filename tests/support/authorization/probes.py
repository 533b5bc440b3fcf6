"""Probes: for each API requests about resources that exist and that do not, by name and by id.

No probe changes what another one sees: what it may change it only validates, or it is of its profile alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from nilometer.cluster.acl import CLUSTER_NAME
from nilometer.wire.api_keys import AnyApiKey, ApiKey, NilometerApiKey
from nilometer.wire.records import BatchBuilder

from ..brokers.two_brokers import Plain, batch
from ..wire.wire_peer import make

K = ApiKey
NO_ID = UUID(int=0xDEAD << 64 | 0xBEEF)
"""An id that no topic has."""

NOT_PROBED: Mapping[AnyApiKey, str] = {
    K.API_VERSIONS: "every client may send it",
    K.GET_TELEMETRY_SUBSCRIPTIONS: "every client may send it, and no metrics are collected",
    K.PUSH_TELEMETRY: "every client may send it, and no metrics are collected",
    K.SASL_HANDSHAKE: "it begins the authentication",
    K.SASL_AUTHENTICATE: "it is the authentication",
    K.ALLOCATE_PRODUCER_IDS: "served to brokers that have proved to be brokers",
    K.ALTER_PARTITION: "served to brokers that have proved to be brokers",
    K.BROKER_HEARTBEAT: "served to brokers that have proved to be brokers",
    NilometerApiKey.FORFEIT_REPLICAS: "served to brokers that have proved to be brokers",
    NilometerApiKey.FORWARD_REQUEST: "served to brokers that have proved to be brokers",
    NilometerApiKey.PROVE_BROKER: "it is the proof",
    NilometerApiKey.DESCRIBE_REPLICAS: "Kafka does not have it; a test of its own",
    NilometerApiKey.DESCRIBE_REBALANCES: "Kafka does not have it; a test of its own",
}
"""The APIs without a probe, and why."""


def _same(answer: Plain) -> Plain:
    return answer


@dataclass(frozen=True, slots=True)
class Probe:
    key: ApiKey
    version: int
    name: str
    fields: Callable[[Names], Mapping[str, object]]
    compared: Callable[[Plain], Plain] = _same
    """Leaves out what differs between any two brokers."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names and ids of one profile's resources, on one broker."""

    prefix: str
    ids: Mapping[str, UUID] = field(default_factory=dict[str, UUID])

    @property
    def known(self) -> str:
        return f"{self.prefix}known"

    @property
    def missing(self) -> str:
        return f"{self.prefix}missing"

    @property
    def both(self) -> tuple[str, str]:
        return self.known, self.missing

    @property
    def both_ids(self) -> tuple[UUID, UUID]:
        return self.ids[self.known], NO_ID


def transactional_batch() -> bytes:
    builder = BatchBuilder()
    builder.append(1_000, None, b"x")
    return builder.build(producer_id=77, producer_epoch=0, base_sequence=0, transactional=True)


def probes() -> list[Probe]:
    return [*_topics(), *_records(), *_offsets(), *_groups(), *_transactions(), *_settings(), *_cluster()]


def _topics() -> Iterator[Probe]:
    def metadata(name: str, version: int, names: Callable[[Names], Any], **more: object) -> Probe:
        def fields(of: Names) -> Mapping[str, object]:
            return {"topics": names(of), "allow_auto_topic_creation": False, **more}

        return Probe(K.METADATA, version, name, fields, _of_profile)

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
        topics = tuple(
            make(
                K.CREATE_TOPICS,
                7,
                "CreatableTopic",
                name=name,
                num_partitions=1,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            for name in of.both
        )
        return {"topics": topics, "timeout_ms": 10_000, "validate_only": True}

    yield Probe(K.CREATE_TOPICS, 7, "validated", created, _without_configs)

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


def _records() -> Iterator[Probe]:
    def produced(version: int, topics: Callable[[Names], Any], records: bytes, **more: object) -> Probe:
        def fields(of: Names) -> Mapping[str, object]:
            part = make(K.PRODUCE, version, "PartitionProduceData", index=0, records=records)
            data = tuple(
                make(K.PRODUCE, version, "TopicProduceData", partition_data=(part,), **topic)
                for topic in topics(of)
            )
            given = {"acks": -1, "timeout_ms": 10_000, "transactional_id": None, "topic_data": data}
            return {**given, **{name: value(of) for name, value in more.items() if callable(value)}}

        what = "of a transaction" if more else f"version {version}"
        return Probe(K.PRODUCE, version, what, fields)

    def by_name(of: Names) -> Any:
        return [{"name": name} for name in of.both]

    def by_id(of: Names) -> Any:
        return [{"topic_id": each} for each in of.both_ids]

    yield produced(9, by_name, batch(b"x"))
    yield produced(13, by_id, batch(b"x"))
    yield produced(9, by_name, transactional_batch(), transactional_id=lambda of: of.missing)

    def fetched(version: int) -> Probe:
        def fields(of: Names) -> Mapping[str, object]:
            part = make(
                K.FETCH, version, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=10
            )
            given = by_name(of) if version < 13 else by_id(of)
            names = [{"topic": each["name"]} if "name" in each else each for each in given]
            topics = tuple(make(K.FETCH, version, "FetchTopic", partitions=(part,), **each) for each in names)
            return {
                "max_wait_ms": 0,
                "min_bytes": 0,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": -1,
                "topics": topics,
                "forgotten_topics_data": (),
            }

        return Probe(K.FETCH, version, f"version {version}", fields, _without_aborted)

    yield fetched(12)
    yield fetched(16)

    def end_offsets(of: Names) -> Mapping[str, object]:
        key = K.LIST_OFFSETS
        part = make(key, 7, "ListOffsetsPartition", partition_index=0, timestamp=-2)
        topics = tuple(make(key, 7, "ListOffsetsTopic", name=name, partitions=(part,)) for name in of.both)
        return {"replica_id": -1, "isolation_level": 0, "topics": topics}

    yield Probe(K.LIST_OFFSETS, 7, "earliest", end_offsets)

    def epochs(of: Names) -> Mapping[str, object]:
        key = K.OFFSET_FOR_LEADER_EPOCH
        part = make(key, 4, "OffsetForLeaderPartition", partition=0, leader_epoch=0)
        topics = tuple(
            make(key, 4, "OffsetForLeaderTopic", topic=name, partitions=(part,)) for name in of.both
        )
        return {"replica_id": -1, "topics": topics}

    yield Probe(K.OFFSET_FOR_LEADER_EPOCH, 4, "of a consumer", epochs)

    def deleted(of: Names) -> Mapping[str, object]:
        part = make(K.DELETE_RECORDS, 2, "DeleteRecordsPartition", partition_index=0, offset=0)
        topics = tuple(
            make(K.DELETE_RECORDS, 2, "DeleteRecordsTopic", name=name, partitions=(part,)) for name in of.both
        )
        return {"topics": topics, "timeout_ms": 10_000}

    yield Probe(K.DELETE_RECORDS, 2, "none", deleted)

    def producers(of: Names) -> Mapping[str, object]:
        key = K.DESCRIBE_PRODUCERS
        topics = tuple(make(key, 0, "TopicRequest", name=name, partition_indexes=(0,)) for name in of.both)
        return {"topics": topics}

    yield Probe(K.DESCRIBE_PRODUCERS, 0, "by name", producers)


def offset_commit(of: Names, version: int, group: str) -> Mapping[str, object]:
    key = K.OFFSET_COMMIT
    part = make(
        key,
        version,
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=1,
        committed_metadata="",
    )
    places: list[dict[str, object]] = (
        [{"name": name} for name in of.both] if version < 10 else [{"topic_id": each} for each in of.both_ids]
    )
    topics = tuple(
        make(key, version, "OffsetCommitRequestTopic", partitions=(part,), **place) for place in places
    )
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": topics,
    }


def _offsets() -> Iterator[Probe]:
    for version in (8, 10):
        yield Probe(
            K.OFFSET_COMMIT,
            version,
            f"version {version}",
            lambda of, version=version: offset_commit(of, version, of.known),
        )

    def fetch(of: Names, version: int, *, everything: bool = False) -> Mapping[str, object]:
        key = K.OFFSET_FETCH
        places: list[dict[str, object]] = (
            [{"name": name} for name in of.both]
            if version < 10
            else [{"topic_id": each} for each in of.both_ids]
        )
        kind = "OffsetFetchRequestTopic" if version < 8 else "OffsetFetchRequestTopics"
        topics = tuple(make(key, version, kind, partition_indexes=(0,), **place) for place in places)
        asked = None if everything else topics
        if version < 8:
            return {"group_id": of.known, "topics": asked, "require_stable": False}
        groups = tuple(
            make(key, version, "OffsetFetchRequestGroup", group_id=group, topics=asked) for group in of.both
        )
        return {"groups": groups, "require_stable": False}

    yield Probe(K.OFFSET_FETCH, 9, "by name", lambda of: fetch(of, 9))
    yield Probe(K.OFFSET_FETCH, 9, "everything", lambda of: fetch(of, 9, everything=True))
    yield Probe(K.OFFSET_FETCH, 10, "by id", lambda of: fetch(of, 10))
    yield Probe(K.OFFSET_FETCH, 7, "of one group", lambda of: fetch(of, 7))

    def delete(of: Names) -> Mapping[str, object]:
        key = K.OFFSET_DELETE
        part = make(key, 0, "OffsetDeleteRequestPartition", partition_index=0)
        topics = tuple(
            make(key, 0, "OffsetDeleteRequestTopic", name=name, partitions=(part,)) for name in of.both
        )
        return {"group_id": f"{of.known}-emptied", "topics": topics}

    yield Probe(K.OFFSET_DELETE, 0, "of a group", delete)


def _groups() -> Iterator[Probe]:
    for kind, what in ((0, "groups"), (1, "transactional ids")):
        yield Probe(
            K.FIND_COORDINATOR,
            4,
            what,
            lambda of, kind=kind: {"key_type": kind, "coordinator_keys": of.both},
        )
    yield Probe(K.FIND_COORDINATOR, 3, "one group", lambda of: {"key_type": 0, "key": of.known})
    yield Probe(
        K.JOIN_GROUP,
        9,
        "with an invalid timeout",
        lambda of: {
            "group_id": of.known,
            "session_timeout_ms": 1,
            "rebalance_timeout_ms": 1,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": (make(K.JOIN_GROUP, 9, "JoinGroupRequestProtocol", name="range", metadata=b""),),
            "reason": None,
        },
    )
    member = {"generation_id": 1, "member_id": "unknown", "group_instance_id": None}
    protocol = {"protocol_type": "consumer", "protocol_name": "range", "assignments": ()}
    yield Probe(K.SYNC_GROUP, 5, "unknown", lambda of: {"group_id": of.known, **member, **protocol})
    yield Probe(K.HEARTBEAT, 4, "unknown", lambda of: {"group_id": of.known, **member})
    identity = make(K.LEAVE_GROUP, 5, "MemberIdentity", member_id="unknown")
    yield Probe(K.LEAVE_GROUP, 5, "unknown", lambda of: {"group_id": of.known, "members": (identity,)})
    yield Probe(K.LEAVE_GROUP, 2, "unknown", lambda of: {"group_id": of.known, "member_id": "unknown"})
    bits = {"include_authorized_operations": True}
    yield Probe(K.DESCRIBE_GROUPS, 6, "by name", lambda of: {"groups": of.both, **bits})
    yield Probe(K.LIST_GROUPS, 5, "all", lambda _: {"states_filter": (), "types_filter": ()}, _of_profile)
    yield Probe(K.DELETE_GROUPS, 2, "one", lambda of: {"groups_names": (f"{of.known}-deletable", of.missing)})
    yield Probe(
        K.CONSUMER_GROUP_HEARTBEAT,
        1,
        "unknown",
        lambda of: {
            "group_id": of.missing,
            "member_id": "unknown",
            "member_epoch": 5,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": -1,
            "subscribed_topic_names": of.both,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": (),
        },
    )
    yield Probe(K.CONSUMER_GROUP_DESCRIBE, 1, "by name", lambda of: {"group_ids": of.both, **bits})


def _transactions() -> Iterator[Probe]:
    producer = {"producer_id": 4_000_000, "producer_epoch": 0}
    yield Probe(
        K.INIT_PRODUCER_ID,
        5,
        "idempotent",
        lambda _: {
            "transactional_id": None,
            "transaction_timeout_ms": 1000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        lambda answer: answer["error_code"],
    )
    yield Probe(
        K.INIT_PRODUCER_ID,
        5,
        "transactional",
        lambda of: {
            "transactional_id": of.known,
            "transaction_timeout_ms": 0,
            "producer_id": -1,
            "producer_epoch": -1,
        },
    )

    def added(of: Names) -> Mapping[str, object]:
        key = K.ADD_PARTITIONS_TO_TXN
        topics = tuple(
            make(key, 3, "AddPartitionsToTxnTopic", name=name, partitions=(0,)) for name in of.both
        )
        return {
            "v3_and_below_transactional_id": of.known,
            "v3_and_below_producer_id": 4_000_000,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": topics,
        }

    def verified(of: Names) -> Mapping[str, object]:
        key = K.ADD_PARTITIONS_TO_TXN
        topics = (make(key, 5, "AddPartitionsToTxnTopic", name=of.known, partitions=(0,)),)
        kind = "AddPartitionsToTxnTransaction"
        asked = make(key, 5, kind, transactional_id=of.known, verify_only=True, topics=topics, **producer)
        return {"transactions": (asked,)}

    yield Probe(K.ADD_PARTITIONS_TO_TXN, 3, "of a producer", added)
    yield Probe(K.ADD_PARTITIONS_TO_TXN, 5, "of a broker", verified)
    yield Probe(
        K.ADD_OFFSETS_TO_TXN,
        4,
        "unknown",
        lambda of: {"transactional_id": of.known, "group_id": of.known, **producer},
    )
    yield Probe(
        K.END_TXN, 5, "unknown", lambda of: {"transactional_id": of.known, "committed": True, **producer}
    )

    def committed(of: Names) -> Mapping[str, object]:
        key = K.TXN_OFFSET_COMMIT
        kind = "TxnOffsetCommitRequestPartition"
        part = make(key, 4, kind, partition_index=0, committed_offset=1, committed_metadata="")
        topics = tuple(
            make(key, 4, "TxnOffsetCommitRequestTopic", name=n, partitions=(part,)) for n in of.both
        )
        return {"transactional_id": of.known, "group_id": of.known, "topics": topics, **producer}

    yield Probe(K.TXN_OFFSET_COMMIT, 4, "unknown", committed)

    def marked(of: Names) -> Mapping[str, object]:
        key = K.WRITE_TXN_MARKERS
        topic = make(key, 1, "WritableTxnMarkerTopic", name=of.missing, partition_indexes=(0,))
        marker = make(
            key,
            1,
            "WritableTxnMarker",
            transaction_result=False,
            topics=(topic,),
            coordinator_epoch=0,
            **producer,
        )
        return {"markers": (marker,)}

    yield Probe(K.WRITE_TXN_MARKERS, 1, "missing", marked)
    yield Probe(K.DESCRIBE_TRANSACTIONS, 0, "by name", lambda of: {"transactional_ids": of.both})
    yield Probe(
        K.LIST_TRANSACTIONS,
        1,
        "all",
        lambda _: {"state_filters": (), "producer_id_filters": (), "duration_filter": -1},
        _of_profile,
    )


def _settings() -> Iterator[Probe]:
    def resources(of: Names, version: int) -> Mapping[str, object]:
        key, keys = K.DESCRIBE_CONFIGS, ("retention.ms", "consumer.session.timeout.ms", "node.id")
        places = [(2, of.known), (2, of.missing), (4, "1"), (8, "1"), (32, f"{of.known}-group")]
        asked = tuple(
            make(
                key,
                version,
                "DescribeConfigsResource",
                resource_type=kind,
                resource_name=name,
                configuration_keys=keys,
            )
            for kind, name in places
        )
        return {"resources": asked}

    yield Probe(K.DESCRIBE_CONFIGS, 4, "of each type", lambda of: resources(of, 4), _without_loggers)

    def altered(
        of: Names, key: ApiKey, version: int, places: list[tuple[int, str, str]]
    ) -> Mapping[str, object]:
        asked: list[Any] = []
        for kind, name, setting in places:
            more = {"config_operation": 0} if key is K.INCREMENTAL_ALTER_CONFIGS else {}
            config = make(key, version, "AlterableConfig", name=setting, value="50000", **more)
            asked.append(
                make(
                    key,
                    version,
                    "AlterConfigsResource",
                    resource_type=kind,
                    resource_name=name,
                    configs=(config,),
                )
            )
        return {"resources": tuple(asked), "validate_only": True}

    def of_each(of: Names) -> list[tuple[int, str, str]]:
        group = (32, f"{of.known}-group", "consumer.session.timeout.ms")
        return [(2, of.known, "retention.ms"), (2, of.missing, "retention.ms"), group]

    yield Probe(K.ALTER_CONFIGS, 2, "validated", lambda of: altered(of, K.ALTER_CONFIGS, 2, of_each(of)))
    yield Probe(
        K.INCREMENTAL_ALTER_CONFIGS,
        1,
        "validated",
        lambda of: altered(of, K.INCREMENTAL_ALTER_CONFIGS, 1, of_each(of)),
    )
    broker = [(4, "", "log.cleaner.backoff.ms")]
    yield Probe(
        K.INCREMENTAL_ALTER_CONFIGS,
        1,
        "of brokers",
        lambda of: altered(of, K.INCREMENTAL_ALTER_CONFIGS, 1, broker),
        _is_denied,
    )
    yield Probe(K.LIST_CONFIG_RESOURCES, 1, "of topics", lambda _: {"resource_types": (2,)}, _of_profile)


def _cluster() -> Iterator[Probe]:
    bits = {
        "include_cluster_authorized_operations": True,
        "endpoint_type": 1,
        "include_fenced_brokers": False,
    }
    yield Probe(K.DESCRIBE_CLUSTER, 2, "with operations", lambda _: bits)
    yield Probe(K.DESCRIBE_LOG_DIRS, 4, "of nothing", lambda _: {"topics": ()}, _only_error)
    quorum = make(
        K.DESCRIBE_QUORUM,
        2,
        "TopicData",
        topic_name="__cluster_metadata",
        partitions=(make(K.DESCRIBE_QUORUM, 2, "PartitionData", partition_index=0),),
    )
    yield Probe(K.DESCRIBE_QUORUM, 2, "of the metadata", lambda _: {"topics": (quorum,)}, _only_error)
    yield Probe(K.UNREGISTER_BROKER, 0, "unknown", lambda _: {"broker_id": 77})
    update = make(
        K.UPDATE_FEATURES, 1, "FeatureUpdateKey", feature="none", max_version_level=1, upgrade_type=1
    )
    yield Probe(
        K.UPDATE_FEATURES,
        1,
        "unknown",
        lambda _: {"timeout_ms": 10_000, "feature_updates": (update,), "validate_only": True},
        _only_error,
    )
    yield Probe(K.DESCRIBE_CLIENT_QUOTAS, 1, "all", lambda _: {"components": (), "strict": False})
    user = make(K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, "UserName", name="alice")
    yield Probe(K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, "unknown", lambda _: {"users": (user,)})
    gone = make(K.ALTER_USER_SCRAM_CREDENTIALS, 0, "ScramCredentialDeletion", name="alice", mechanism=1)
    yield Probe(
        K.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        "unknown",
        lambda _: {"deletions": (gone,), "upsertions": ()},
    )

    def wanted(principal: str) -> dict[str, object]:
        return {
            "resource_type_filter": 2,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": principal,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }

    def created(of: Names) -> Mapping[str, object]:
        places = [(2, of.known), (4, CLUSTER_NAME), (4, "other"), (2, "")]
        acls = tuple(
            make(
                K.CREATE_ACLS,
                3,
                "AclCreation",
                resource_type=kind,
                resource_name=name,
                resource_pattern_type=3,
                principal=f"User:{of.prefix}",
                host="*",
                operation=3,
                permission_type=3,
            )
            for kind, name in places
        )
        return {"creations": acls}

    yield Probe(K.CREATE_ACLS, 3, "of another user", created)
    yield Probe(K.DESCRIBE_ACLS, 3, "of no user", lambda _: wanted("User:none"))

    def removed(of: Names) -> Mapping[str, object]:
        filters = tuple(
            make(K.DELETE_ACLS, 3, "DeleteAclsFilter", **wanted(user)) for user in (of.prefix, "none")
        )
        return {"filters": filters}

    yield Probe(K.DELETE_ACLS, 3, "of no user", removed)


# ── what is compared ────────────────────────────────────────────────────────────────────────────────
def _of_profile(answer: Plain) -> Plain:
    """Keep the topics and groups that probes use: the sides have other ones too."""
    kept = dict(answer)
    for place, name in (
        ("topics", "name"),
        ("groups", "group_id"),
        ("transaction_states", "transactional_id"),
        ("config_resources", "resource_name"),
    ):
        if place in kept:
            kept[place] = [
                each
                for each in kept[place]
                if each[name] is None or (each[name].startswith("p") and "deletable" not in each[name])
                if not each[name] or not each[name].endswith("auto")
            ]
    return kept


def _only_error(answer: Plain) -> Plain:
    return answer["error_code"] if isinstance(answer, dict) else answer


def _is_denied(answer: Plain) -> Plain:
    """The settings themselves are those of this broker."""
    return [each["error_code"] == "cluster_authorization_failed" for each in answer["responses"]]


def _without_configs(answer: Plain) -> Plain:
    """A topic's default settings are those of the broker; how many are shown depends on the rights."""
    return [{**each, "configs": bool(each["configs"])} for each in answer["topics"]]


def _without_aborted(answer: Plain) -> Plain:
    """To a reader of uncommitted records no list of aborted transactions is an empty one."""
    for topic in answer["responses"]:
        for partition in topic["partitions"]:
            partition["aborted_transactions"] = partition["aborted_transactions"] or []
    return answer


def _without_loggers(answer: Plain) -> Plain:
    """Each broker has its own loggers; of their resource the error is compared."""
    if not isinstance(answer, dict):
        return answer
    return [
        {name: each[name] for name in ("resource_type", "resource_name", "error_code")}
        for each in answer["results"]
    ]
