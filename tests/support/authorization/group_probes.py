"""Probes of the APIs of groups and their offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nilometer.wire.api_keys import ApiKey

from ..wire.wire_peer import make
from .probe import Names, Probe, of_profile

K = ApiKey


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


def offset_probes() -> Iterator[Probe]:
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


def group_probes() -> Iterator[Probe]:
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
    yield Probe(K.LIST_GROUPS, 5, "all", lambda _: {"states_filter": (), "types_filter": ()}, of_profile)
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
    yield Probe(
        K.SHARE_GROUP_HEARTBEAT,
        1,
        "unknown",
        lambda of: {
            "group_id": of.missing,
            "member_id": "unknown",
            "member_epoch": 5,
            "rack_id": None,
            "subscribed_topic_names": of.both,
        },
    )
    yield Probe(K.SHARE_GROUP_DESCRIBE, 1, "by name", lambda of: {"group_ids": of.both, **bits})
    yield from streams_probes()


def streams_probes() -> Iterator[Probe]:
    key, bits = K.STREAMS_GROUP_HEARTBEAT, {"include_authorized_operations": True}

    def heartbeat(of: Names, epoch: int) -> Mapping[str, object]:
        subtopology = make(
            key, 1, "Subtopology", subtopology_id="0", source_topics=of.both, source_topic_regex=("never.*",)
        )
        return {
            "group_id": of.known,
            "member_id": "unknown",
            "member_epoch": epoch,
            "rebalance_timeout_ms": -1,
            "topology": make(key, 1, "Topology", epoch=0, subtopologies=(subtopology,)),
            "active_tasks": None,
            "standby_tasks": None,
            "warmup_tasks": None,
            "client_tags": None,
            "task_offsets": None,
            "task_end_offsets": None,
        }

    yield Probe(key, 1, "with a topology", lambda of: heartbeat(of, 0))
    yield Probe(key, 1, "unknown", lambda of: {**heartbeat(of, 5), "topology": None, "group_id": of.missing})
    yield Probe(K.STREAMS_GROUP_DESCRIBE, 1, "by name", lambda of: {"group_ids": of.both, **bits})
    yield Probe(
        K.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        0,
        "unknown",
        lambda of: {"group_id": of.known, "member_id": "unknown", "topology_epoch": 0},
    )
