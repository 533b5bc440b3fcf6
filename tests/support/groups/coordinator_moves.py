"""Kills a group's coordinator and finds the next one; commits and reads offsets."""

from __future__ import annotations

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..brokers.nilometer_cluster import NilometerCluster
from ..brokers.two_brokers import Side
from .group_requests import Member, commit_fields, fetch_fields, wait_for_coordinator

OFFSETS_TOPIC = "__consumer_offsets"
TOPIC = "read"
"""The topic that the groups read; it has two partitions."""


def coordinator(cluster: NilometerCluster, group: str, *, other_than: int | None = None) -> tuple[int, Side]:
    broker_id = cluster.wait_leader(OFFSETS_TOPIC, 0, other_than=other_than)
    side = Side(f"broker {broker_id}", cluster.brokers[broker_id].bootstrap)
    wait_for_coordinator(side, group)
    return broker_id, side


def kill_coordinator(cluster: NilometerCluster, group: str) -> Side:
    """Kill the group's coordinator; return the next one."""
    broker_id = cluster.wait_leader(OFFSETS_TOPIC, 0)
    cluster.kill(broker_id)
    return coordinator(cluster, group, other_than=broker_id)[1]


def committed(side: Side, group: str) -> dict[int, int]:
    answer = side.message(ApiKey.OFFSET_FETCH, 7, **fetch_fields(7, {group: {TOPIC: (0, 1)}}, stable=True))
    assert answer.error_code == ErrorCode.none, answer
    return {one.partition_index: one.committed_offset for one in answer.topics[0].partitions}


def commit(side: Side, group: str, offsets: dict[int, int], member: Member | None = None) -> None:
    whose = {} if member is None else {"member_id": member.id, "generation": member.generation}
    answer = side.message(ApiKey.OFFSET_COMMIT, 8, **commit_fields(8, group, TOPIC, offsets, **whose))
    errors = {one.error_code for topic in answer.topics for one in topic.partitions}
    assert errors == {ErrorCode.none}, errors


def state_of(side: Side, group: str) -> str:
    answer = side.message(ApiKey.DESCRIBE_GROUPS, 5, groups=(group,), include_authorized_operations=False)
    return answer.groups[0].group_state
