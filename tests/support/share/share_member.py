"""A member of a share group, step by step: what it asks the group's coordinator and a partition's leader."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..eventually import eventually
from ..wire.wire_peer import WirePeer, make

K = ApiKey
NONE = ErrorCode.none
ACCEPT, RELEASE, REJECT = 1, 2, 3


class ShareMember:
    """It reads one partition, with connections of its own and a share session.

    ``leader``, ``coordinator``: addresses. ``host``: from which it connects.
    """

    def __init__(
        self,
        topic: tuple[str, UUID],
        group: str,
        member_id: str,
        leader: str,
        coordinator: str | None = None,
        *,
        host: str | None = None,
        partition: int = 0,
        client_id: str = "test",
    ) -> None:
        self.peer = WirePeer(leader, client_id, source=host)
        self._coordinator = self.peer if coordinator is None else WirePeer(coordinator, source=host)
        self.topic, self.topic_id = topic
        self.group, self.member_id, self.epoch, self.partition = group, member_id, 0, partition

    def close(self) -> None:
        self.peer.close()
        self._coordinator.close()

    def join(self) -> None:
        epochs = [0]
        self._coordinator.ask(K.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=(self.group,))

        def has_partition() -> bool:
            told = self._coordinator.ask(
                K.SHARE_GROUP_HEARTBEAT,
                1,
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=epochs[-1],
                rack_id=None,
                subscribed_topic_names=(self.topic,) if epochs[-1] == 0 else None,
            )
            if told.error_code is not NONE:
                return False  # the coordinator's topic is being created
            epochs.append(told.member_epoch)
            return told.assignment is not None and bool(told.assignment.topic_partitions)

        eventually(has_partition, "the member has its partition")

    def leave(self) -> None:
        self._coordinator.ask(
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
        parts = (make(key, 2, part, partition_index=self.partition, acknowledgement_batches=made),)
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


def topic_named(bootstrap: str, name: str, host: str | None = None) -> tuple[str, UUID]:
    """Return a topic's name and id."""
    asked = make(K.METADATA, 12, "MetadataRequestTopic", name=name)
    with WirePeer(bootstrap, source=host) as peer:
        return name, peer.ask(K.METADATA, 12, topics=(asked,)).topics[0].topic_id
