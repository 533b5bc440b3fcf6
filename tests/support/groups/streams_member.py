"""A member of a streams group (KIP-1071), as single requests to a Nilometer broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode
from support.brokers.two_brokers import Side
from support.groups.group_requests import wait_for_coordinator
from support.wire.wire_peer import make

HEARTBEAT = ApiKey.STREAMS_GROUP_HEARTBEAT
UNCHANGED = ("client_tags", "task_offsets", "task_end_offsets")
ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")


@dataclass(slots=True)
class StreamsMember:
    bootstrap: str
    group_id: str
    member_id: str = "m"

    def join(self, sources: Sequence[str]) -> int:
        """Join with one subtopology that reads the topics ``sources``; return the member epoch."""
        side = Side("Nilometer", self.bootstrap)
        wait_for_coordinator(side, self.group_id)
        side.hang_up()
        subtopology = make(HEARTBEAT, 1, "Subtopology", subtopology_id="0", source_topics=tuple(sources))
        topology = make(HEARTBEAT, 1, "Topology", epoch=0, subtopologies=(subtopology,))
        told = self._beat(0, (), rebalance_timeout_ms=1_000, process_id="p", topology=topology)
        return int(told.member_epoch)

    def commit(self, topic: str, offset: int, epoch: int) -> None:
        """Commit an offset of partition 0 as a member of this ``epoch``."""
        api = ApiKey.OFFSET_COMMIT
        part = make(api, 9, "OffsetCommitRequestPartition", partition_index=0, committed_offset=offset)
        topics = (make(api, 9, "OffsetCommitRequestTopic", name=topic, partitions=(part,)),)
        member = {"generation_id_or_member_epoch": epoch, "member_id": self.member_id}
        side = Side("Nilometer", self.bootstrap)
        try:
            committed = side.message(api, 9, group_id=self.group_id, topics=topics, **member)
            assert committed.topics[0].partitions[0].error_code is ErrorCode.none, committed
        finally:
            side.hang_up()

    def leave(self) -> None:
        self._beat(-1, None)

    def _beat(self, epoch: int, tasks: tuple[()] | None, **fields: object) -> Message:
        side = Side("Nilometer", self.bootstrap)
        try:
            member = {"group_id": self.group_id, "member_id": self.member_id, "member_epoch": epoch}
            told = side.message(
                HEARTBEAT, 1, **member, **dict.fromkeys(ROLES, tasks), **dict.fromkeys(UNCHANGED), **fields
            )
            assert told.error_code is ErrorCode.none, told
            return told
        finally:
            side.hang_up()
