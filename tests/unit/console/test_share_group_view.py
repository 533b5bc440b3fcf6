"""What the page of a share group shows."""

from __future__ import annotations

import pytest

from nilometer.client.admin.group_descriptions import GroupDescription, MemberDescription, ShareOffset
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.console.views import groups
from nilometer.console.views.groups import (
    NOT_NILOMETER,
    ShareSettingsView,
    lag_by_topic,
    settings_of,
    share_group_view,
)
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.own_apis import DeliveryRange, MemberLocks, SharePartitionState

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
ONE = MemberDescription("one", None, "app", "/127.0.0.1", (A0, A1), ("a", "b"), epoch=2)
TWO = MemberDescription("two", None, "app", "/127.0.0.1", (A0, B0), ("a", "b"), epoch=2)
GROUP = GroupDescription("g", "share", "Stable", "share", "simple", 3, (ONE, TWO), 4, 4)


def state(
    *ranges: DeliveryRange,
    start: int = 5,
    end: int = 20,
    high_watermark: int = 30,
    held: tuple[MemberLocks, ...] = (),
    has_more: bool = False,
) -> SharePartitionState:
    return SharePartitionState(
        topic="a",
        partition=0,
        is_loaded=True,
        start_offset=start,
        end_offset=end,
        high_watermark=high_watermark,
        lag=12,
        acquired=sum(one.records for one in held),
        held=held,
        ranges=ranges,
        has_more_ranges=has_more,
    )


def of(
    name: str, first: int = 5, count: int = 1, member: str | None = None, left_ms: int = 0
) -> DeliveryRange:
    return DeliveryRange(
        first_offset=first,
        last_offset=first + 1,
        state=name,
        delivery_count=count,
        member_id=member,
        lock_left_ms=None if member is None else left_ms,
    )


@pytest.mark.parametrize(
    ("described", "says", "is_blocked"),
    [
        (
            state(of("acquired", 5, 3, "one", 11_001)),
            "locked by one for another 12 s, delivered 3 times",
            True,
        ),
        (state(of("acquired", 5, 1, "one", -5)), "locked by one for another 0 s, delivered once", True),
        (state(of("available", 5, 2)), "Offset 5: it waits for a member, delivered 2 times before", True),
        (state(of("available", 5, 0)), "it waits for a member, not delivered yet", True),
        (state(of("archiving", 5, 5)), "its dead letter is being written. It was delivered 5 times", True),
        (state(start=20), "Nothing: the next records have not been delivered yet (10)", False),
        (state(start=20, high_watermark=20), "Nothing: each record is acknowledged or archived", False),
        (state(), "Offset 5.", True),
    ],
)
def test_what_holds_the_start_offset(described: SharePartitionState, says: str, is_blocked: bool) -> None:
    (row,) = share_group_view(GROUP, {}, {A0: described}, None).partitions
    assert says in row.blocked_by
    assert row.is_blocked is is_blocked
    assert row.members == ("one", "two")


def test_partitions_that_no_leader_describes_have_what_the_coordinator_knows() -> None:
    offsets = {A0: ShareOffset(A0, 7, 3), A1: ShareOffset(A1, None, None)}
    refused = KafkaError(ErrorCode.topic_authorization_failed, "a-1")
    other = KafkaError(ErrorCode.unsupported_version)
    view = share_group_view(
        GROUP, offsets, {A0: SharePartitionState(topic="a", partition=0), A1: refused, B0: other}, None
    )
    assert [(row.start_offset, row.lag) for row in view.partitions] == [(7, 3), (None, None), (None, None)]
    assert view.partitions[0].blocked_by == "No member fetches it."
    assert "TOPIC_AUTHORIZATION_FAILED" in view.partitions[1].blocked_by
    assert view.partitions[2].blocked_by == NOT_NILOMETER
    assert (view.lag, view.unknown) == (3, 2)


def test_what_is_delivered_to_which_member(monkeypatch: pytest.MonkeyPatch) -> None:
    held = (MemberLocks(member_id="one", records=4), MemberLocks(member_id="gone", records=1))
    ranges = (of("acquired", 5, 3, "one", 500), of("acknowledged", 7), of("available", 9, 2))
    view = share_group_view(GROUP, {}, {A0: state(*ranges, held=held)}, None)
    assert [(one.first_offset, one.state, one.deliveries) for one in view.deliveries] == [
        (5, "acquired", 3),
        (9, "available", 2),
    ], "what is done is left out"
    assert (view.deliveries[0].member_id, view.deliveries[0].lock_left_s) == ("one", 1)
    assert [(one.member_id, one.locks) for one in view.members] == [("one", 4), ("two", 0)]
    assert (view.locks, view.has_more_deliveries) == (5, False)
    assert share_group_view(GROUP, {}, {A0: state(has_more=True)}, None).has_more_deliveries
    monkeypatch.setattr(groups, "RANGES_MAX", 1)
    short = share_group_view(GROUP, {}, {A0: state(*ranges)}, None)
    assert (len(short.deliveries), short.has_more_deliveries) == (1, True)


def test_the_settings_that_bound_a_delivery() -> None:
    texts = {"share.delivery.count.limit": "7", "share.record.lock.duration.ms": "30000"}
    assert settings_of(texts) == ShareSettingsView(7, 30, "")
    texts["errors.deadletterqueue.topic.name"] = "dlq.a"
    assert settings_of(texts) == ShareSettingsView(7, 30, "dlq.a")
    assert settings_of({}) is None, "of an earlier version"


def test_the_lag_of_a_topic_is_that_of_its_known_partitions() -> None:
    offsets = [ShareOffset(A0, 1, 5), ShareOffset(A1, 1, 6), ShareOffset(B0, None, None)]
    assert lag_by_topic(offsets) == {"a": 11}
