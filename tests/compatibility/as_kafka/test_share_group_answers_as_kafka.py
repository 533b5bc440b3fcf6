"""Members of share groups (KIP-932) answered as Apache Kafka answers, step by step.

A group with one member leaves an implementation no choice of which partitions it gets. Two things are
left out. The heartbeat interval is shorter here while the share coordinator is asked. A member that sends its
previous epoch, since the last reply was lost, gets its assignment here; from Apache Kafka only if it names
its topics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.comparison import same
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.groups.consumer_group_requests import ConsumerGroup
from support.groups.group_requests import wait_for_coordinator
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded

TOPIC = "shared-932"


class ShareGroup:
    def __init__(self, side: Side, group_id: str) -> None:
        self.side, self.group_id = side, group_id
        if group_id:
            wait_for_coordinator(side, group_id)

    def beat(
        self, member_id: str, epoch: int, topics: Sequence[str] | None = None, rack: str | None = None
    ) -> Mapping[str, Any]:
        reply = self.side.ask(
            ApiKey.SHARE_GROUP_HEARTBEAT,
            1,
            group_id=self.group_id,
            member_id=member_id,
            member_epoch=epoch,
            rack_id=rack,
            subscribed_topic_names=topics,
        )
        return {name: value for name, value in reply.items() if name != "heartbeat_interval"}

    def describe(self) -> Plain:
        return self.side.ask(
            ApiKey.SHARE_GROUP_DESCRIBE, 1, group_ids=(self.group_id,), include_authorized_operations=True
        )

    def enter(self, member_id: str, *topics: str) -> Plain:
        """Join, and wait until the member has its partitions."""
        told = [self.beat(member_id, 0, topics)]

        def has_partitions() -> bool:
            reply = self.beat(member_id, told[-1]["member_epoch"])
            if reply["member_epoch"] == told[-1]["member_epoch"]:
                return False
            told.append(reply)
            return True

        eventually(has_partitions, f"{self.side.name} assigns {topics}")
        return told


def topic(side: Side) -> None:
    """A coordinator learns of topics in its own time: until it would assign this one, nothing begins."""
    if TOPIC in side.topic_ids:
        return
    side.create(TOPIC, 4)
    probe = ShareGroup(side, "has heard of it")

    def is_known() -> bool:
        probe.beat("m", 0, (TOPIC,))
        [group] = probe.describe()["groups"]
        return any(member["assignment"]["topic_partitions"] for member in group["members"])

    eventually(is_known, f"{side.name} assigns {TOPIC}")
    probe.beat("m", -1)


def test_refused_heartbeats(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        topic(side)
        group = ShareGroup(side, "kip-848 refused")
        told = {
            "unknown group": group.beat("m", 1),
            "leaves an unknown group": group.beat("m", -1),
            "no subscription": group.beat("m", 0),
            "empty subscription": group.beat("m", 0, ()),
            "no member id": group.beat("", 0, (TOPIC,)),
            "blank member id": group.beat(" ", 0, (TOPIC,)),
            "long member id": group.beat("m" * 37, 0, (TOPIC,)),
            "empty rack": group.beat("m", 0, (TOPIC,), rack=""),
            "no group id": ShareGroup(side, "").beat("m", 0, (TOPIC,)),
            "no such epoch": group.beat("m", -2),
            "described": group.describe(),
        }
        group.enter("m", TOPIC)
        told |= {
            "unknown member": group.beat("n", 1),
            "unknown member leaves": group.beat("n", -1),
            "epoch ahead": group.beat("m", 9),
            "the previous epoch": {**group.beat("m", 2), "assignment": None},
            "before that": group.beat("m", 1),
        }
        consumers = ConsumerGroup(side, "refused")
        told |= {
            "as a consumer": consumers.enter("c", TOPIC),
            "described as a consumer group": consumers.describe(),
            "described as a classic group": side.ask(
                ApiKey.DESCRIBE_GROUPS, 6, groups=(group.group_id,), include_authorized_operations=False
            ),
            "heartbeat of a classic member": side.ask(
                ApiKey.HEARTBEAT,
                4,
                group_id="refused",
                generation_id=1,
                member_id="m",
                group_instance_id=None,
            ),
            "deleted with members": side.ask(ApiKey.DELETE_GROUPS, 2, groups_names=(group.group_id,)),
        }
        other = ConsumerGroup(side, "consumers-932")
        other.enter("c", TOPIC)
        told["a consumer group"] = ShareGroup(side, other.name).beat("m", 0, (TOPIC,))
        other.beat("c", -1)
        told["an empty consumer group"] = ShareGroup(side, other.name).beat("m", 0, (TOPIC,))
        told["described as a share group"] = ShareGroup(side, other.name).describe()
        group.beat("m", -1)
        return told

    same(sides, scenario)


def test_one_member(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        topic(side)
        group = ShareGroup(side, "one-932")
        told: dict[str, Plain] = {"enters": group.enter("m", TOPIC)}
        told["described"] = group.describe()
        told["beats"] = group.beat("m", 3)
        told["says all"] = group.beat("m", 3, (TOPIC,), rack="r")
        told["starts again"] = group.beat("m", 0, (TOPIC,))
        told["wants another topic"] = group.beat("m", 3, ("missing-932",))
        told["beats on"] = group.beat("m", 4)
        told["is back"] = group.beat("m", 4, (TOPIC,))
        told["described again"] = group.describe()
        told["listed"] = [
            each
            for each in side.ask(ApiKey.LIST_GROUPS, 5, states_filter=(), types_filter=("share",))["groups"]
            if each["group_id"] == "one-932"
        ]
        told["leaves"] = group.beat("m", -1)
        told["is gone"] = group.beat("m", 5)
        told["empty"] = group.describe()
        told["comes again"] = group.beat("m", 0, (TOPIC,))
        group.beat("m", -1)
        told["deleted"] = side.ask(ApiKey.DELETE_GROUPS, 2, groups_names=("one-932",))
        told["described at last"] = group.describe()
        return told

    same(sides, scenario)


def test_offsets(sides: tuple[Side, Side]) -> None:
    """A share group commits none, and has none to fetch."""

    def scenario(side: Side) -> Plain:
        topic(side)
        group = ShareGroup(side, "offsets-932")
        group.enter("m", TOPIC)
        key = ApiKey.OFFSET_COMMIT
        part = make(
            key,
            8,
            "OffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=1,
            committed_metadata="",
        )
        topics = (make(key, 8, "OffsetCommitRequestTopic", name=TOPIC, partitions=(part,)),)
        member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        told = {"committed": side.ask(key, 8, group_id="offsets-932", topics=topics, **member)}
        asked = (make(ApiKey.OFFSET_FETCH, 7, "OffsetFetchRequestTopic", name=TOPIC, partition_indexes=(0,)),)
        told["fetched"] = side.ask(
            ApiKey.OFFSET_FETCH, 7, group_id="offsets-932", topics=asked, require_stable=False
        )
        assert group.beat("m", -1)["error_code"] == ErrorCode.none.name
        return told

    same(sides, scenario)
