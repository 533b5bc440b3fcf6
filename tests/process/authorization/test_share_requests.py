"""What a member of a share group asks a leader for, step by step, and which rights each request needs.

Clients differ by their addresses; the one of ``ADMIN_HOST`` has every right.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.own_apis import SharePartitionsOfTopic
from support.authorization.prepared import AUTHORIZED, create_acls
from support.authorization.profiles import ADMIN_HOST, PRINCIPAL, everything
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.quota_requests import alter
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.share.share_member import ACCEPT, RELEASE, ShareMember, acquired, part_of, topic_named
from support.wire.wire_peer import WirePeer, make

CLIENT_HOST, GROUP_HOST = "127.0.0.9", "127.0.0.8"
K = ApiKey
NONE = ErrorCode.none
TOPIC = "jobs"


def right(kind: ResourceType, name: str, operation: Operation, host: str) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, PRINCIPAL, host, operation, Permission.ALLOW)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    settings = {**AUTHORIZED, "share.coordinator.state.topic.num.partitions": "1"}
    with NilometerBroker(tmp_path_factory.mktemp("share-requests") / "data", settings) as running:
        admin = Side("admin", running.bootstrap, ADMIN_HOST)
        create_acls(admin, [*everything(ADMIN_HOST), *everything("127.0.0.1")])
        create_acls(admin, [right(ResourceType.GROUP, "g", Operation.READ, GROUP_HOST)])
        admin.create(TOPIC)
        admin.hang_up()
        yield running
    assert "Traceback" not in running.output


def member_of(broker: NilometerBroker, group: str, member_id: str, host: str = ADMIN_HOST) -> ShareMember:
    topic = topic_named(broker.bootstrap, TOPIC, ADMIN_HOST)
    return ShareMember(topic, group, member_id, broker.bootstrap, host=host)


@pytest.fixture
def admin(broker: NilometerBroker) -> Iterator[Side]:
    side = Side("admin", broker.bootstrap, ADMIN_HOST)
    yield side
    side.hang_up()


def test_records_go_to_one_member_until_they_are_acknowledged(broker: NilometerBroker, admin: Side) -> None:
    one, two = member_of(broker, "g", "one"), member_of(broker, "g", "two")
    one.join()
    two.join()
    assert acquired(one.fetch()) == []
    admin.append(TOPIC, b"a", b"b", b"c")
    start = acquired(one.fetch(wait_ms=10_000))[0][0]
    assert acquired(two.fetch()) == [], "one has all of them"
    told = one.fetch((start, start, ACCEPT), (start + 1, start + 1, RELEASE))
    assert part_of(told).acknowledge_error_code == NONE
    assert acquired(told) == [(start + 1, start + 1, 2)], "what was released is available again"
    part = part_of(two.acknowledge((start + 2, start + 2, ACCEPT)))
    assert part.error_code is ErrorCode.invalid_record_state, "another one holds it"
    one.peer.close()
    found: list[tuple[int, int, int]] = []

    def is_available() -> bool:
        found.extend(acquired(two.fetch()))
        return bool(found)

    eventually(is_available, "what a lost connection held is available")
    assert found == [(start + 1, start + 1, 3), (start + 2, start + 2, 2)]


def test_a_session_goes_on_with_the_next_epoch(broker: NilometerBroker) -> None:
    member = member_of(broker, "g", "three")
    assert member.fetch(epoch=1).error_code is ErrorCode.share_session_not_found
    assert member.acknowledge((0, 0, ACCEPT), epoch=0).error_code is ErrorCode.invalid_share_session_epoch
    assert member.fetch((0, 0, ACCEPT), epoch=0).error_code is ErrorCode.invalid_request
    assert member.fetch(epoch=0).error_code is NONE
    assert member.fetch(epoch=5).error_code is ErrorCode.invalid_share_session_epoch
    assert member.fetch(epoch=-1).error_code is NONE
    assert member.fetch(epoch=2).error_code is ErrorCode.share_session_not_found


def test_a_member_needs_to_read_the_group_and_the_topic(broker: NilometerBroker) -> None:
    without = member_of(broker, "g", "stranger", CLIENT_HOST)
    assert without.fetch().error_code is ErrorCode.group_authorization_failed
    assert without.acknowledge((0, 0, ACCEPT)).error_code is ErrorCode.group_authorization_failed
    of_group = member_of(broker, "g", "half", GROUP_HOST)
    assert part_of(of_group.fetch()).error_code is ErrorCode.topic_authorization_failed
    refused = part_of(of_group.acknowledge((0, 0, ACCEPT)))
    assert refused.error_code is ErrorCode.topic_authorization_failed


def test_a_member_above_its_quota_gets_its_records_and_waits(broker: NilometerBroker, admin: Side) -> None:
    alter(broker.bootstrap, {"client-id": "limited"}, consumer_byte_rate=10_000)
    topic = topic_named(broker.bootstrap, TOPIC, ADMIN_HOST)
    member = ShareMember(topic, "limited", "one", broker.bootstrap, host=ADMIN_HOST, client_id="limited")
    member.join()
    assert acquired(member.fetch()) == []
    for _ in range(3):
        admin.append(TOPIC, b"x" * 60_000)
    first = member.fetch(wait_ms=10_000)
    assert len(acquired(first)) == 1, "no more is read than the quota allows in all its windows"
    assert first.throttle_time == timedelta(0)
    second = member.fetch(wait_ms=10_000)
    assert len(acquired(second)) == 1
    assert second.throttle_time > timedelta(0)


def offsets(peer: WirePeer, group: str, *, start: int | None = None, delete: bool = False) -> Any:
    """Describe the offsets of a group, alter them to ``start``, or delete them."""
    if delete:
        topic = make(K.DELETE_SHARE_GROUP_OFFSETS, 0, "DeleteShareGroupOffsetsRequestTopic", topic_name=TOPIC)
        return peer.ask(K.DELETE_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=(topic,))
    if start is not None:
        key, kind = K.ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsetsRequest"
        part = make(key, 0, f"{kind}Partition", partition_index=0, start_offset=start)
        topic = make(key, 0, f"{kind}Topic", topic_name=TOPIC, partitions=(part,))
        return peer.ask(key, 0, group_id=group, topics=(topic,))
    key = K.DESCRIBE_SHARE_GROUP_OFFSETS
    asked = make(key, 1, "DescribeShareGroupOffsetsRequestGroup", group_id=group, topics=None)
    (found,) = peer.ask(key, 1, groups=(asked,)).groups
    return found


def test_offsets_are_altered_and_deleted_of_a_group_without_members(
    broker: NilometerBroker, admin: Side
) -> None:
    member = member_of(broker, "empty", "one")
    member.join()
    admin.append(TOPIC, b"x", b"y")
    with WirePeer(broker.bootstrap, source=ADMIN_HOST) as peer:
        assert offsets(peer, "empty", start=0).error_code is ErrorCode.non_empty_group
        nowhere = offsets(peer, "nosuch")
        assert (nowhere.error_code, nowhere.topics) == (NONE, ())
        member.leave()
        assert offsets(peer, "empty", start=1).error_code is NONE
        ((part,),) = [topic.partitions for topic in offsets(peer, "empty").topics]
        assert (part.start_offset, part.error_code) == (1, NONE)
        again = member_of(broker, "empty", "two")
        again.join()
        assert acquired(again.fetch(wait_ms=10_000))[0][:1] == (1,)
        again.leave()
        again.fetch(epoch=-1)
        deleted = offsets(peer, "empty", delete=True)
        assert [topic.error_code for topic in deleted.responses] == [NONE]
        assert offsets(peer, "empty").topics == ()


def described(peer: WirePeer, group: str, *partitions: int) -> Any:
    """Ask which records of the topic's partitions are delivered to which member."""
    topics = (SharePartitionsOfTopic(topic=TOPIC, partitions=partitions or (0,)),)
    return peer.ask(NilometerApiKey.DESCRIBE_SHARE_PARTITIONS, 0, group_id=group, topics=topics)


def test_what_is_delivered_to_which_member_is_described_to_who_may_know(
    broker: NilometerBroker, admin: Side
) -> None:
    member = member_of(broker, "watched", "one")
    member.join()
    assert acquired(member.fetch()) == []
    admin.append(TOPIC, b"x", b"y", b"z")
    start = acquired(member.fetch(wait_ms=10_000))[0][0]
    member.acknowledge((start + 1, start + 1, ACCEPT))
    with WirePeer(broker.bootstrap, source=ADMIN_HOST) as peer:
        one, missing = described(peer, "watched", 0, 1).partitions
        assert (one.is_loaded, one.start_offset, one.end_offset, one.lag) == (True, start, start + 3, 2)
        assert [(each.member_id, each.records) for each in one.held] == [("one", 2)]
        assert [(each.first_offset, each.state, each.delivery_count) for each in one.ranges] == [
            (start, "acquired", 1),
            (start + 1, "acknowledged", 1),
            (start + 2, "acquired", 1),
        ]
        assert 0 < one.ranges[0].lock_left_ms <= 30_000
        assert missing.error_code == ErrorCode.unknown_topic_or_partition
        (unknown,) = described(peer, "nosuch").partitions
        assert (unknown.error_code, unknown.is_loaded) == (NONE, False)
        most = described(peer, "watched", *([0] * 64)).partitions
        assert [each.error_code for each in most] == [NONE] * 64
        assert sum(len(each.ranges) for each in most) <= 1_000
        beyond = described(peer, "watched", *([0] * 65))
        assert (beyond.error_code, beyond.partitions) == (ErrorCode.invalid_request, ())
    with WirePeer(broker.bootstrap, source=CLIENT_HOST) as peer:
        refused = described(peer, "watched")
        assert (refused.error_code, refused.partitions) == (ErrorCode.group_authorization_failed, ())
    with WirePeer(broker.bootstrap, source=GROUP_HOST) as peer:
        (part,) = described(peer, "g").partitions
        assert part.error_code == ErrorCode.topic_authorization_failed


def test_offsets_need_rights_on_the_group(broker: NilometerBroker) -> None:
    denied = ErrorCode.group_authorization_failed
    with WirePeer(broker.bootstrap, source=CLIENT_HOST) as peer:
        assert offsets(peer, "g").error_code is denied
        assert offsets(peer, "g", start=0).error_code is denied
        assert offsets(peer, "g", delete=True).error_code is denied
    with WirePeer(broker.bootstrap, source=GROUP_HOST) as peer:
        ((part,),) = [topic.partitions for topic in offsets(peer, "g", start=0).responses] or [((),)]
        assert part == () or part.error_code is ErrorCode.topic_authorization_failed


def test_a_group_is_described_to_who_may_describe_the_topics_of_all_members(
    broker: NilometerBroker, admin: Side
) -> None:
    host = "127.0.0.7"
    create_acls(admin, [right(ResourceType.GROUP, name, Operation.DESCRIBE, host) for name in ("s", "c")])
    member_of(broker, "s", "one").join()
    beats = {
        "group_id": "c",
        "member_id": "one",
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": (TOPIC,),
        "topic_partitions": (),
    }
    with (
        WirePeer(broker.bootstrap, source=ADMIN_HOST) as one,
        WirePeer(broker.bootstrap, source=host) as peer,
    ):

        def has_partition() -> bool:
            reply = one.ask(K.CONSUMER_GROUP_HEARTBEAT, 1, **beats, member_epoch=0)
            return reply.assignment is not None and bool(reply.assignment.topic_partitions)

        eventually(has_partition, "the member has the topic")
        kinds = ((K.SHARE_GROUP_DESCRIBE, "s"), (K.CONSUMER_GROUP_DESCRIBE, "c"))

        def described_as() -> list[tuple[int, int]]:
            groups = [peer.ask(key, 1, group_ids=(name,)).groups[0] for key, name in kinds]
            return [(group.error_code, len(group.members)) for group in groups]

        assert described_as() == 2 * [(ErrorCode.topic_authorization_failed, 0)]
        create_acls(admin, [right(ResourceType.TOPIC, TOPIC, Operation.DESCRIBE, host)])
        eventually(lambda: described_as() == 2 * [(NONE, 1)], "the topic may be described")
