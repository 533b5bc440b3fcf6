"""Sends requests of classic group members to one broker: JoinGroup, SyncGroup, LeaveGroup; for comparisons.

A member has its own connection, since the response to JoinGroup waits for the other members. Generated ids
are replaced by names, so that two brokers' responses can be compared.
"""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..brokers.two_brokers import Plain, Side
from ..eventually import eventually
from ..wire.wire_peer import WirePeer, make


def subscription(*topics: str) -> bytes:
    """Encode a consumer's subscription: Kafka's coordinator decodes it, so arbitrary bytes would not do."""
    named = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + named + struct.pack(">i", -1)


PROTOCOLS = (("range", subscription("subscribed")), ("sticky", subscription("subscribed", "also")))
NEW_JOIN, NEW_SYNC = 9, 5


def join_fields(
    version: int,
    group: str,
    member_id: str = "",
    *,
    protocols: tuple[tuple[str, bytes], ...] = PROTOCOLS,
    protocol_type: str = "consumer",
    session_timeout_ms: int = 10_000,
    rebalance_timeout_ms: int = 10_000,
    instance_id: str | None = None,
) -> dict[str, object]:
    key = ApiKey.JOIN_GROUP
    return {
        "group_id": group,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": protocol_type,
        "session_timeout_ms": session_timeout_ms,
        "rebalance_timeout_ms": rebalance_timeout_ms,
        "protocols": tuple(
            make(key, version, "JoinGroupRequestProtocol", name=name, metadata=metadata)
            for name, metadata in protocols
        ),
    }


def sync_fields(
    version: int,
    group: str,
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
    instance_id: str | None = None,
) -> dict[str, object]:
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": protocol_type,
        "protocol_name": protocol_name,
        "assignments": tuple(
            make(ApiKey.SYNC_GROUP, version, "SyncGroupRequestAssignment", member_id=one, assignment=data)
            for one, data in (assignments or {}).items()
        ),
    }


def wait_for_coordinator(side: Side, group: str) -> None:
    """Wait until the group's coordinator is found and has loaded its groups."""
    not_yet = (
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
    )

    def is_ready() -> bool:
        found = side.message(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(group,))
        if found.coordinators[0].error_code != ErrorCode.none:
            return False
        described = side.message(
            ApiKey.DESCRIBE_GROUPS, 5, groups=(group,), include_authorized_operations=False
        )
        return described.groups[0].error_code not in not_yet

    eventually(is_ready, f"{side.name} coordinates {group}")


class Member:
    """A member of a classic group; ``name`` replaces its id in responses."""

    def __init__(self, side: Side, group: str, name: str, instance_id: str | None = None) -> None:
        self.side = side
        self.group = group
        self.name = name
        self.instance_id = instance_id
        self.id = ""
        self.generation = -1
        self.peer = WirePeer(side.bootstrap)

    def close(self) -> None:
        self.peer.close()

    def ask_to_join(self, version: int = NEW_JOIN, **fields: Any) -> None:
        """Send JoinGroup, after getting a member id if the version requires one; do not wait."""
        if version >= 4 and not self.id and self.instance_id is None:
            answer = self.peer.ask(ApiKey.JOIN_GROUP, version, **join_fields(version, self.group, **fields))
            assert answer.error_code == ErrorCode.member_id_required, answer
            self._take_id(answer.member_id)
        self.peer.tell(
            ApiKey.JOIN_GROUP,
            version,
            **join_fields(version, self.group, self.id, instance_id=self.instance_id, **fields),
        )

    def hear_joined(self, version: int = NEW_JOIN) -> Plain:
        answer = self.peer.hear(ApiKey.JOIN_GROUP, version)
        if answer.member_id and answer.member_id != self.id:
            self._take_id(answer.member_id)
        self.generation = answer.generation_id
        return self.side.plain(answer)

    def join(self, version: int = NEW_JOIN, **fields: Any) -> Plain:
        self.ask_to_join(version, **fields)
        return self.hear_joined(version)

    def ask_to_sync(self, assignments: dict[str, bytes] | None = None, version: int = NEW_SYNC) -> None:
        self.peer.tell(
            ApiKey.SYNC_GROUP,
            version,
            **sync_fields(
                version, self.group, self.id, self.generation, assignments, instance_id=self.instance_id
            ),
        )

    def hear_synced(self, version: int = NEW_SYNC) -> Plain:
        answer = self.peer.hear(ApiKey.SYNC_GROUP, version)
        told = self.side.plain(answer)
        told["assignment"] = bytes(answer.assignment)
        return told

    def sync(self, assignments: dict[str, bytes] | None = None, version: int = NEW_SYNC) -> Plain:
        self.ask_to_sync(assignments, version)
        return self.hear_synced(version)

    def heartbeat(self, version: int = 4) -> Plain:
        return self.side.plain(self.heartbeat_message(version))

    def heartbeat_message(self, version: int = 4) -> Any:
        return self.peer.ask(
            ApiKey.HEARTBEAT,
            version,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
        )

    def leave(self, version: int = 5) -> Plain:
        key = ApiKey.LEAVE_GROUP
        identity: dict[str, object] = {"member_id": self.id}
        if version >= 3:
            identity = {
                "members": (
                    make(
                        key,
                        version,
                        "MemberIdentity",
                        member_id=self.id,
                        group_instance_id=self.instance_id,
                    ),
                )
            }
        return self.side.plain(self.peer.ask(key, version, group_id=self.group, **identity))

    def _take_id(self, member_id: str) -> None:
        self.id = member_id
        self.side.aliases[member_id] = self.name


def commit_fields(
    version: int,
    group: str,
    topic: str | UUID,
    offsets: dict[int, int],
    *,
    member_id: str = "",
    generation: int = -1,
    metadata: str | None = "",
    instance_id: str | None = None,
) -> dict[str, object]:
    key = ApiKey.OFFSET_COMMIT
    partitions = tuple(
        make(
            key,
            version,
            "OffsetCommitRequestPartition",
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=0,
            committed_metadata=metadata,
        )
        for partition, offset in offsets.items()
    )
    name = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "topics": (make(key, version, "OffsetCommitRequestTopic", partitions=partitions, **name),),
    }


def fetch_fields(
    version: int, groups: dict[str, dict[str | UUID, tuple[int, ...]] | None], *, stable: bool = False
) -> dict[str, object]:
    """Return the fields of an OffsetFetch request for ``groups``: group id to partitions by topic.

    None requests all committed offsets of a group. Before version 8 there must be one group.
    """
    key = ApiKey.OFFSET_FETCH

    def topics(kind: str, wanted: dict[str | UUID, tuple[int, ...]] | None) -> tuple[object, ...] | None:
        if wanted is None:
            return None
        return tuple(
            make(
                key,
                version,
                kind,
                partition_indexes=indexes,
                **({"name": topic} if isinstance(topic, str) else {"topic_id": topic}),
            )
            for topic, indexes in wanted.items()
        )

    if version < 8:
        ((group, wanted),) = groups.items()
        return {
            "group_id": group,
            "topics": topics("OffsetFetchRequestTopic", wanted),
            "require_stable": stable,
        }
    return {
        "groups": tuple(
            make(
                key,
                version,
                "OffsetFetchRequestGroup",
                group_id=group,
                member_epoch=-1,
                topics=topics("OffsetFetchRequestTopics", wanted),
            )
            for group, wanted in groups.items()
        ),
        "require_stable": stable,
    }
