"""A partition as its readers see it: whether it may be read here, up to which offset, and where logs diverge.

Nothing here changes the partition; :class:`~.hosted_partition.Partition` adds the changes
and the waiting requests.
"""

from __future__ import annotations

from collections.abc import Callable

from nilometer.identifiers import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicIdPartition
from nilometer.replication.epochs import NO_DIVERGENCE, EpochEnd, check_leader_epoch, diverging_epoch
from nilometer.replication.follower import FollowerRole
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import Replica
from nilometer.storage.log import Log
from nilometer.storage.time_search import SearchSteps
from nilometer.wire.errors import ErrorCode, KafkaError

MAX_TIMESTAMP = -3
"""In place of a timestamp, requests the record with the largest timestamp (ListOffsets)."""


class ReadablePartition:
    """The queries on a partition that has a replica on this broker: its role, its offsets, its readable end.

    ``key`` (the topic's id and the partition's index) identifies the partition; ``topic`` is the topic's
    name.
    """

    def __init__(
        self, topic: str, key: TopicIdPartition, log: Log, replica: Replica, is_live: Callable[[], bool]
    ) -> None:
        """``is_live`` returns whether this broker may lead: its session cannot have expired yet."""
        self.topic = topic
        self.key = key
        self.log = log
        self.replica = replica
        self._is_live = is_live

    def __str__(self) -> str:
        return f"{self.topic}-{self.key.partition}"

    # ── roles ───────────────────────────────────────────────────────────────────────────────────
    @property
    def leader(self) -> LeaderRole:
        """The leader role. Raises KafkaError (NOT_LEADER_OR_FOLLOWER) if this broker does not lead."""
        if not self._is_live():
            raise self._not_led()
        return self.present_leader

    @property
    def present_leader(self) -> LeaderRole:
        """The leader role, as :attr:`leader`, in the same step of the event loop as a use of that one: this
        broker's session was live then."""
        role = self.replica.role
        if not isinstance(role, LeaderRole):
            raise self._not_led()
        return role

    def _not_led(self) -> KafkaError:
        return KafkaError(ErrorCode.not_leader_or_follower, f"this broker does not lead {self}")

    @property
    def is_led_here(self) -> bool:
        return self.has_leader_role and self._is_live()

    @property
    def has_leader_role(self) -> bool:
        """Whether this broker leads once its session is live, which it may not be for a moment."""
        return isinstance(self.replica.role, LeaderRole)

    @property
    def leader_epoch(self) -> int:
        return self.replica.leader_epoch

    # ── reading ─────────────────────────────────────────────────────────────────────────────────
    def check_reader(self, current_leader_epoch: LeaderEpoch) -> LeaderRole:
        """Return the leader role, for a reader that knows ``current_leader_epoch`` (-1: none).

        Raises KafkaError if this broker does not lead, or the reader's epoch is not the current one.
        """
        leader = self.leader
        if current_leader_epoch >= 0 and (
            error := check_leader_epoch(current_leader_epoch, leader.leader_epoch)
        ):
            raise KafkaError(
                error, f"{self} is in leader epoch {leader.leader_epoch}, not {current_leader_epoch}"
            )
        return leader

    def check_consumer(self, current_leader_epoch: LeaderEpoch) -> LeaderRole | FollowerRole:
        """Return the role, for a consumer that may read from a follower too (KIP-392). Raises KafkaError as
        :meth:`check_reader`."""
        role = self.replica.role
        if not isinstance(role, FollowerRole) or not role.has_leader or not self._is_live():
            return self.check_reader(current_leader_epoch)
        if current_leader_epoch >= 0 and (
            error := check_leader_epoch(current_leader_epoch, role.leader_epoch)
        ):
            raise KafkaError(
                error, f"{self} is in leader epoch {role.leader_epoch}, not {current_leader_epoch}"
            )
        return role

    def diverging_epoch(self, fetch_offset: Offset, last_fetched_epoch: LeaderEpoch) -> EpochEnd | None:
        """Return where a reader's log diverges from this one, as an epoch and its end offset here; None if it
        does not.

        The reader has read up to ``fetch_offset``, the last record in ``last_fetched_epoch``. Raises
        KafkaError: OFFSET_OUT_OF_RANGE for a later epoch, or one that is not in this log.
        """
        if last_fetched_epoch > self.leader_epoch:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self} is in leader epoch {self.leader_epoch}; no reader has read in {last_fetched_epoch}",
            )
        found = diverging_epoch(self.log, fetch_offset, last_fetched_epoch)
        if found.epoch == NO_LEADER_EPOCH and found is not NO_DIVERGENCE:
            # A follower may not have a batch yet of an epoch in which its leader has written already.
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self} has no records of leader epoch {last_fetched_epoch}, in which the reader has read",
            )
        return None if found is NO_DIVERGENCE else found

    def readable_end(self, *, read_committed: bool) -> int:
        """Return the end of the records that consumers may read: the high watermark, or (``read_committed``)
        the last stable offset."""
        high_watermark = self.replica.high_watermark
        return self.log.last_stable_offset(high_watermark) if read_committed else high_watermark

    def latest_offset(self, *, read_committed: bool) -> int:
        """Return the *latest* offset for consumers, as :meth:`readable_end`.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER, or OFFSET_NOT_AVAILABLE while *latest* could go backwards
        (KIP-207).
        """
        if not self.leader.is_latest_offset_available:
            raise KafkaError(
                ErrorCode.offset_not_available,
                f"the leader of {self} is new and does not know yet which records are committed; try again",
            )
        return self.readable_end(read_committed=read_committed)

    def find_by_time(self, timestamp_ms: int, bound: int) -> SearchSteps:
        """Find the first record below offset ``bound`` that is not older than ``timestamp_ms``; with -3 the
        record with the largest timestamp. None if there is none.

        Each step may wait for the disk: run them off the event loop.
        """
        if timestamp_ms == MAX_TIMESTAMP:
            found = yield from self.log.offset_of_max_timestamp()
        else:
            found = yield from self.log.offset_for_timestamp(timestamp_ms)
        return found if found is not None and found.offset < bound else None

    def end_offset_for_leader_epoch(
        self, current: LeaderEpoch, epoch: LeaderEpoch
    ) -> tuple[ErrorCode, EpochEnd]:
        return self.leader.end_offset_for_leader_epoch(current, epoch)
