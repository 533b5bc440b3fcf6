"""A consumer's position in each of its partitions, and what must be looked up before it can fetch. Pure.

Invariants:

- ``offset`` (of the next record for the user) never exceeds ``fetch_offset`` (of the next Fetch request).
- Each request for a partition carries the ``generation`` of the position it was made for; a seek starts a new
  generation, and responses for an older one are dropped.
- A partition is fetched only under the leader epoch for which its position was validated (KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nilometer.client.network.cluster_metadata import ClusterMetadata, TopicPartition
from nilometer.config import parse_duration_ms
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.errors import ErrorCode, KafkaError

# Special timestamps of ListOffsets requests, which mean places in the log rather than times.

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
"""The three mean the log's end, its start, and the record with the highest timestamp (KIP-734)."""


# ``auto.offset.reset``: where a consumer without a valid position begins to read. Pure.

NONE = "none"
BY_DURATION = "by_duration:"


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A position that is looked up with ListOffsets: a timestamp, or a duration before now."""

    timestamp: int = LATEST_TIMESTAMP
    """Milliseconds, or one of the special timestamps."""
    ago_ms: int | None = None
    """If given, used instead of ``timestamp``: milliseconds before the time of the request (KIP-1106)."""

    def timestamp_at(self, wall_ms: int) -> int:
        """Return the timestamp for ListOffsets when the wall clock shows ``wall_ms``."""
        return self.timestamp if self.ago_ms is None else max(wall_ms - self.ago_ms, 0)


EARLIEST = OffsetReset(EARLIEST_TIMESTAMP)
LATEST = OffsetReset(LATEST_TIMESTAMP)


def parse_offset_reset(text: str) -> OffsetReset | None:
    """Parse a value of ``auto.offset.reset``; return None for ``none``. Raises ValueError."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    if text == NONE:
        return None
    if not text.startswith(BY_DURATION):
        raise ValueError(f"must be earliest, latest, none or by_duration:PnDTnHnMn.nS, not {text}")
    return OffsetReset(ago_ms=parse_duration_ms(text.removeprefix(BY_DURATION)))


NO_OFFSET = -1


@dataclass(slots=True)
class PartitionPosition:
    generation: int
    offset: int = NO_OFFSET
    offset_epoch: int = NO_LEADER_EPOCH
    """The leader epoch of the record before ``offset``, if it is known."""
    fetch_offset: int = NO_OFFSET
    reset: OffsetReset | None = None
    """Set while the offset must be looked up: how."""
    committed_wanted: bool = False
    """Whether the group's committed offset must be fetched first."""
    committed_offset: int = NO_OFFSET
    """The offset that this member committed last, or fetched as the committed one."""
    validated_epoch: int = NO_LEADER_EPOCH
    """The leader epoch under which the position is known to be in the log."""
    validating_epoch: int = NO_LEADER_EPOCH
    """The leader epoch under which the position must be validated; records fetched before are discarded."""
    paused: bool = False
    buffered: int = 0
    """The number of Fetch responses with records of this partition that the user has not read yet."""
    failures: int = 0
    retry_at_ms: int = 0
    drain_first: bool = False
    """The last fetch at ``fetch_offset`` failed: retry once the user has read the buffered records."""
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    preferred_replica: int = -1
    """The follower that the leader named to read from (KIP-392); -1 if none."""

    @property
    def is_known(self) -> bool:
        return self.reset is None and not self.committed_wanted and self.offset >= 0

    @property
    def is_missing(self) -> bool:
        """Whether there is no position and none will be looked up (``auto.offset.reset`` is none)."""
        return self.reset is None and not self.committed_wanted and self.offset < 0


class Positions:
    """The partitions of one consumer, in the order they were assigned."""

    def __init__(self, default_reset: OffsetReset | None) -> None:
        self._default_reset = default_reset
        self.in_group = False
        """Whether a newly assigned partition begins at the group's committed offset, if there is one."""
        self._positions: dict[TopicPartition, PartitionPosition] = {}
        self._generation = 0

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._positions

    def entries(self) -> list[tuple[TopicPartition, PartitionPosition]]:
        return list(self._positions.items())

    def get(self, partition: TopicPartition) -> PartitionPosition | None:
        return self._positions.get(partition)

    def of(self, partition: TopicPartition) -> PartitionPosition:
        """Return the position of ``partition``. Raises KafkaError if it is not assigned."""
        try:
            return self._positions[partition]
        except KeyError:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"{partition} is not assigned to this consumer"
            ) from None

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assigned partitions by ``partitions``; those assigned before keep their position."""
        known = self._positions
        self._positions = {}
        for partition in partitions:
            position = known.get(partition)
            self._positions[partition] = position if position is not None else self._first()

    def seek(self, partition: TopicPartition, offset: int, epoch: int = NO_LEADER_EPOCH) -> None:
        if offset < 0:
            raise ValueError(f"offset {offset} for {partition} is negative")
        position = self._restart(partition)
        position.offset = position.fetch_offset = offset
        position.offset_epoch = epoch
        position.reset = None

    def seek_by(self, partition: TopicPartition, reset: OffsetReset) -> None:
        """Have the position of ``partition`` looked up by ``reset``."""
        self._restart(partition).reset = reset

    def on_out_of_range(self, partition: TopicPartition, reason: str) -> None:
        """Reset a position that is not in the log. Raises KafkaError if ``auto.offset.reset`` is none.

        ``reason`` completes the error's text.
        """
        position = self.of(partition)
        if self._default_reset is None:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"offset {position.offset} of {partition} {reason}, and auto.offset.reset is none",
            )
        self.seek_by(partition, self._default_reset)

    def on_looked_up(self, partition: TopicPartition, generation: int, offset: int, epoch: int) -> None:
        """Set the position to the ``offset`` that a reset looked up, unless it changed since the request.

        ``epoch`` is the leader epoch under which the offset was looked up.
        """
        position = self._positions.get(partition)
        if position is not None and position.generation == generation and position.reset is not None:
            position.offset = position.fetch_offset = offset
            position.offset_epoch = NO_LEADER_EPOCH
            position.validated_epoch = epoch
            position.reset = None

    def on_committed(
        self, partition: TopicPartition, generation: int, offset: int | None, epoch: int = NO_LEADER_EPOCH
    ) -> None:
        """Set the position to the group's committed ``offset``, unless it changed since the request.

        Without a committed offset (None), ``auto.offset.reset`` decides.
        """
        position = self._positions.get(partition)
        if position is None or position.generation != generation or not position.committed_wanted:
            return
        position.committed_wanted = False
        if offset is None:
            position.reset = self._default_reset
        else:
            position.offset = position.fetch_offset = position.committed_offset = offset
            position.offset_epoch = epoch

    def on_leader_epoch(self, partition: TopicPartition, epoch: int) -> bool:
        """Note a partition's current leader epoch; return whether its position must be validated first.

        If so, records fetched under the previous epoch and responses in flight are discarded: they would move
        the position, and the leader's response is for the position as it is now.
        """
        position = self._positions[partition]
        if epoch <= position.validated_epoch or not position.is_known:
            return False
        if position.offset_epoch < 0:
            position.validated_epoch = epoch
            return False
        if epoch > position.validating_epoch:
            self.seek(partition, position.offset, position.offset_epoch)
            self._positions[partition].validating_epoch = epoch
        return True

    def on_validated(
        self, partition: TopicPartition, generation: int, epoch: int, end_epoch: int, end_offset: int
    ) -> None:
        """Take the leader's ``end_epoch`` and ``end_offset`` for the position's leader epoch.

        If the log was truncated below the position, moves the position back. Raises like on_out_of_range.
        """
        position = self._positions.get(partition)
        if position is None or position.generation != generation:
            return
        if end_epoch < 0 or end_offset < 0:
            self.on_out_of_range(partition, "has a leader epoch that is no longer in the log")
        elif end_offset < position.offset or end_epoch < position.offset_epoch:
            # The log was truncated (E-11): the records after ``end_offset`` are new, so read on from it.
            if self._default_reset is None:
                self.on_out_of_range(
                    partition, f"was truncated from the log, which is unchanged up to {end_offset}"
                )
            self.seek(partition, min(end_offset, position.offset), end_epoch)
            self._positions[partition].validated_epoch = epoch
        else:
            position.validated_epoch = epoch

    def missing_position(self, partition: TopicPartition) -> KafkaError:
        return KafkaError(
            ErrorCode.offset_out_of_range, f"no position for {partition}, and auto.offset.reset is none"
        )

    def fetchable(
        self, metadata: ClusterMetadata, now_ms: int, buffered_max: int
    ) -> list[tuple[TopicPartition, PartitionPosition]]:
        """Return the partitions to fetch at ``now_ms``, those first that have waited longest.

        Leaves out partitions with ``buffered_max`` responses buffered, or without a validated position.
        """
        return [
            (partition, position)
            for partition, position in self._positions.items()
            if position.is_known
            and not position.paused
            and position.buffered < buffered_max
            and not (position.drain_first and position.buffered)
            and position.retry_at_ms <= now_ms
            and position.validated_epoch >= metadata.leader_epoch(partition)
        ]

    def move_to_end(self, partition: TopicPartition) -> None:
        """Put ``partition`` at the end of the order in which partitions are fetched."""
        self._positions[partition] = self._positions.pop(partition)

    def next_retry_ms(self, now_ms: int) -> int | None:
        """Return the time of the next retry after ``now_ms``, or None if none is due."""
        times = [
            position.retry_at_ms for position in self._positions.values() if position.retry_at_ms > now_ms
        ]
        return min(times, default=None)

    def _first(self) -> PartitionPosition:
        fresh = self._fresh()
        if self.in_group:
            fresh.reset, fresh.committed_wanted = None, True
        return fresh

    def _fresh(self) -> PartitionPosition:
        self._generation += 1
        return PartitionPosition(self._generation, reset=self._default_reset)

    def _restart(self, partition: TopicPartition) -> PartitionPosition:
        old = self.of(partition)
        fresh = self._fresh()
        fresh.paused = old.paused
        fresh.high_watermark = old.high_watermark
        fresh.log_start_offset = old.log_start_offset
        fresh.committed_offset = old.committed_offset
        self._positions[partition] = fresh
        return fresh
