"""The progress of reassignments, from the controller's list of them and from the replicas' log ends."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nilometer.client.admin.admin import Admin
from nilometer.client.network.cluster_metadata import TopicMetadata, TopicPartition
from nilometer.client.replicas.partition_operations import (
    OngoingMove,
    describe_by_controller,
    list_reassignments,
)
from nilometer.client.replicas.replica_survey import ReplicaRow, ReplicaSurvey, Survey
from nilometer.wire.describe_replicas import LEADER


class MoveState(enum.Enum):
    COMPLETE = "complete"
    MOVING = "moving"
    DIFFERENT = "different"
    """No reassignment is ongoing, and the replicas are not the target."""


@dataclass(frozen=True, slots=True)
class MoveProgress:
    partition: TopicPartition
    state: MoveState
    replicas: tuple[int, ...]
    """The current replicas."""
    target: tuple[int, ...]
    adding: tuple[int, ...] = ()
    copied: int = 0
    """The number of offsets that the slowest added replica has copied, from the leader's log start offset."""
    total: int = 0
    """The number of offsets in the leader's log; 0 if unknown."""

    @property
    def fraction(self) -> float:
        if self.state is MoveState.COMPLETE:
            return 1.0
        return min(self.copied / self.total, 1.0) if self.total > 0 else 0.0


async def reassignment_progress(
    admin: Admin, survey: ReplicaSurvey, targets: Mapping[TopicPartition, Sequence[int]] | None
) -> list[MoveProgress]:
    """Return the progress towards ``targets``, or (None) of all ongoing reassignments. Raises KafkaError."""
    ongoing = await list_reassignments(admin, None if targets is None else sorted(targets))
    if targets is None:
        targets = {
            key: tuple(one for one in move.replicas if one not in move.removing)
            for key, move in ongoing.items()
        }
    if not targets:
        return []
    topics = sorted({key.topic for key in targets})
    described = await describe_by_controller(admin, topics)
    seen = await survey.look(topics)
    return [
        _progress(key, tuple(target), ongoing.get(key), described[key.topic], seen)
        for key, target in sorted(targets.items())
    ]


def is_over(progress: Iterable[MoveProgress]) -> bool:
    """Whether none of the reassignments is still moving."""
    return not any(one.state is MoveState.MOVING for one in progress)


def _progress(
    key: TopicPartition,
    target: tuple[int, ...],
    move: OngoingMove | None,
    topic: TopicMetadata,
    seen: Survey,
) -> MoveProgress:
    replicas = topic.partitions[key.partition].replicas if key.partition < len(topic.partitions) else ()
    if move is None:
        state = MoveState.COMPLETE if tuple(replicas) == target else MoveState.DIFFERENT
        return MoveProgress(key, state, tuple(replicas), target)
    copied, total = _copied(key, move.adding, seen)
    return MoveProgress(key, MoveState.MOVING, move.replicas, target, move.adding, copied, total)


def _copied(key: TopicPartition, adding: Sequence[int], seen: Survey) -> tuple[int, int]:
    """Return ``copied`` and ``total`` of :class:`MoveProgress`; zeros if no leader was found."""
    rows = [row for row in seen.rows if (row.topic, row.partition) == key]
    leader = next((row.state for row in rows if row.state is not None and row.state.role == LEADER), None)
    if leader is None:
        return 0, 0
    ends = {row.broker_id: _log_end(row) for row in rows}
    start, end = leader.log_start_offset, leader.log_end_offset
    least = min((max(ends.get(broker, start), start) for broker in adding), default=end)
    return least - start, end - start


def _log_end(row: ReplicaRow) -> int:
    """Return the log end offset from the replica's own response, which is newest; else from its leader's.

    Returns -1 if neither is there.
    """
    if row.state is not None:
        return row.state.log_end_offset
    return -1 if row.seen_by_leader is None else row.seen_by_leader.log_end_offset
