"""What a member of a share group asks a leader for, step by step, and which rights each request needs.

Clients differ by their addresses; the one of ``ADMIN_HOST`` has every right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.authorization.prepared import AUTHORIZED, create_acls
from support.authorization.profiles import ADMIN_HOST, PRINCIPAL, everything
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.wire.wire_peer import WirePeer, make

CLIENT_HOST, GROUP_HOST = "127.0.0.9", "127.0.0.8"
K = ApiKey
NONE = ErrorCode.none
TOPIC = "jobs"
ACCEPT, RELEASE, REJECT = 1, 2, 3


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


class Member:
    """A member of a share group with a connection of its own, and its share session."""

    def __init__(self, broker: NilometerBroker, group: str, member_id: str, host: str = ADMIN_HOST) -> None:
        self.peer = WirePeer(broker.bootstrap, source=host)
        self.group, self.member_id, self.epoch = group, member_id, 0
        asked = make(K.METADATA, 12, "MetadataRequestTopic", name=TOPIC)
        with WirePeer(broker.bootstrap, source=ADMIN_HOST) as admin:
            self.topic_id: UUID = admin.ask(K.METADATA, 12, topics=(asked,)).topics[0].topic_id

    def join(self) -> None:
        epochs = [0]
        self.peer.ask(K.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=(self.group,))

        def has_partition() -> bool:
            told = self.peer.ask(
                K.SHARE_GROUP_HEARTBEAT,
                1,
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=epochs[-1],
                rack_id=None,
                subscribed_topic_names=(TOPIC,) if epochs[-1] == 0 else None,
            )
            if told.error_code is not NONE:
                return False  # the coordinator's topic is being created
            epochs.append(told.member_epoch)
            return told.assignment is not None and bool(told.assignment.topic_partitions)

        eventually(has_partition, "the member has its partition")

    def leave(self) -> None:
        self.peer.ask(
            K.SHARE_GROUP_HEARTBEAT,
            1,
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=-1,
            rack_id=None,
            subscribed_topic_names=None,
        )

    def fetch(
        self, *batches: tuple[int, int, int], epoch: int | None = None, wait_ms: int = 0, records: int = 100
    ) -> Any:
        """Fetch, and acknowledge (first offset, last offset, type) before."""
        epoch = self.epoch if epoch is None else epoch
        answer = self.peer.ask(
            K.SHARE_FETCH,
            2,
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            max_wait=timedelta(milliseconds=wait_ms),
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=records,
            batch_size=100,
            topics=self._topics(K.SHARE_FETCH, "FetchTopic", "FetchPartition", batches),
            forgotten_topics_data=(),
        )
        if answer.error_code is NONE:
            self.epoch = epoch + 1
        return answer

    def acknowledge(self, *batches: tuple[int, int, int], epoch: int | None = None) -> Any:
        epoch = self.epoch if epoch is None else epoch
        answer = self.peer.ask(
            K.SHARE_ACKNOWLEDGE,
            2,
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=epoch,
            topics=self._topics(K.SHARE_ACKNOWLEDGE, "AcknowledgeTopic", "AcknowledgePartition", batches),
        )
        if answer.error_code is NONE:
            self.epoch = epoch + 1
        return answer

    def _topics(self, key: ApiKey, topic: str, part: str, batches: Sequence[tuple[int, int, int]]) -> Any:
        made = tuple(
            make(
                key,
                2,
                "AcknowledgementBatch",
                first_offset=first,
                last_offset=last,
                acknowledge_types=(kind,),
            )
            for first, last, kind in batches
        )
        parts = (make(key, 2, part, partition_index=0, acknowledgement_batches=made),)
        return (make(key, 2, topic, topic_id=self.topic_id, partitions=parts),)


def part_of(answer: Any) -> Any:
    assert answer.error_code is NONE
    ((part,),) = [topic.partitions for topic in answer.responses]
    return part


def acquired(answer: Any) -> list[tuple[int, int, int]]:
    """Return (first offset, last offset, delivery count) of what was acquired."""
    assert answer.error_code is NONE
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for topic in answer.responses
        for part in topic.partitions
        for one in part.acquired_records
    ]


@pytest.fixture
def admin(broker: NilometerBroker) -> Iterator[Side]:
    side = Side("admin", broker.bootstrap, ADMIN_HOST)
    yield side
    side.hang_up()


def test_records_go_to_one_member_until_they_are_acknowledged(broker: NilometerBroker, admin: Side) -> None:
    one, two = Member(broker, "g", "one"), Member(broker, "g", "two")
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
    member = Member(broker, "g", "three")
    assert member.fetch(epoch=1).error_code is ErrorCode.share_session_not_found
    assert member.acknowledge((0, 0, ACCEPT), epoch=0).error_code is ErrorCode.invalid_share_session_epoch
    assert member.fetch((0, 0, ACCEPT), epoch=0).error_code is ErrorCode.invalid_request
    assert member.fetch(epoch=0).error_code is NONE
    assert member.fetch(epoch=5).error_code is ErrorCode.invalid_share_session_epoch
    assert member.fetch(epoch=-1).error_code is NONE
    assert member.fetch(epoch=2).error_code is ErrorCode.share_session_not_found


def test_a_member_needs_to_read_the_group_and_the_topic(broker: NilometerBroker) -> None:
    without = Member(broker, "g", "stranger", CLIENT_HOST)
    assert without.fetch().error_code is ErrorCode.group_authorization_failed
    assert without.acknowledge((0, 0, ACCEPT)).error_code is ErrorCode.group_authorization_failed
    of_group = Member(broker, "g", "half", GROUP_HOST)
    assert part_of(of_group.fetch()).error_code is ErrorCode.topic_authorization_failed
    refused = part_of(of_group.acknowledge((0, 0, ACCEPT)))
    assert refused.error_code is ErrorCode.topic_authorization_failed


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
    member = Member(broker, "empty", "one")
    member.join()
    admin.append(TOPIC, b"x", b"y")
    with WirePeer(broker.bootstrap, source=ADMIN_HOST) as peer:
        assert offsets(peer, "empty", start=0).error_code is ErrorCode.non_empty_group
        assert offsets(peer, "nosuch").error_code is ErrorCode.group_id_not_found
        member.leave()
        assert offsets(peer, "empty", start=1).error_code is NONE
        ((part,),) = [topic.partitions for topic in offsets(peer, "empty").topics]
        assert (part.start_offset, part.error_code) == (1, NONE)
        again = Member(broker, "empty", "two")
        again.join()
        assert acquired(again.fetch(wait_ms=10_000))[0][:1] == (1,)
        again.leave()
        again.fetch(epoch=-1)
        deleted = offsets(peer, "empty", delete=True)
        assert [topic.error_code for topic in deleted.responses] == [NONE]
        assert offsets(peer, "empty").topics == ()


def test_offsets_need_rights_on_the_group(broker: NilometerBroker) -> None:
    denied = ErrorCode.group_authorization_failed
    with WirePeer(broker.bootstrap, source=CLIENT_HOST) as peer:
        assert offsets(peer, "g").error_code is denied
        assert offsets(peer, "g", start=0).error_code is denied
        assert offsets(peer, "g", delete=True).error_code is denied
    with WirePeer(broker.bootstrap, source=GROUP_HOST) as peer:
        ((part,),) = [topic.partitions for topic in offsets(peer, "g", start=0).responses] or [((),)]
        assert part == () or part.error_code is ErrorCode.topic_authorization_failed
