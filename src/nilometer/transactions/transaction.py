"""One transactional id: its producer id and epoch, its producer's open transaction, the states that may
follow each other, and the settings by which it is kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import IntEnum

import msgspec
from msgspec.structs import replace

from nilometer.invariants import check
from nilometer.storage.names import TopicPartition

_NUMBERS = "i"
"""The type of an array of the numbers of one topic's partitions."""


class PartitionSet(msgspec.Struct, frozen=True):
    """Partitions in the order of topics and numbers, in few bytes: a request of 16 kB names 4,000, and a
    client may have thousands of transactions open. :meth:`of` and :meth:`of_topics` make one."""

    packed: dict[str, bytes] = {}
    """By topic: the numbers in ascending order."""

    @classmethod
    def of(cls, partitions: Iterable[TopicPartition]) -> PartitionSet:
        numbers = defaultdict[str, set[int]](set)
        for each in partitions:
            numbers[each.topic].add(each.partition)
        return cls({topic: _packed(numbers[topic]) for topic in sorted(numbers)})

    @classmethod
    def of_topics(cls, topics: Iterable[tuple[str, Iterable[int]]]) -> PartitionSet:
        numbers = defaultdict[str, set[int]](set)
        for topic, indexes in topics:
            numbers[topic].update(indexes)
        return cls({topic: _packed(numbers[topic]) for topic in sorted(numbers) if numbers[topic]})

    def __len__(self) -> int:
        return sum(len(packed) for packed in self.packed.values()) // array(_NUMBERS).itemsize

    def __iter__(self) -> Iterator[TopicPartition]:
        for topic in self.packed:
            for number in self.numbers_of(topic):
                yield TopicPartition(topic, number)

    def __contains__(self, partition: TopicPartition) -> bool:
        numbers = self.numbers_of(partition.topic)
        place = bisect_left(numbers, partition.partition)
        return place < len(numbers) and numbers[place] == partition.partition

    def numbers_of(self, topic: str) -> memoryview:
        """Return the numbers of the topic's partitions in ascending order."""
        return memoryview(self.packed.get(topic, b"")).cast(_NUMBERS)

    def union(self, added: Iterable[TopicPartition]) -> PartitionSet:
        more = PartitionSet.of(added).packed
        changed = {
            topic: _packed({*self.numbers_of(topic), *memoryview(packed).cast(_NUMBERS)})
            for topic, packed in more.items()
        }
        packed = self.packed | changed
        return PartitionSet({topic: packed[topic] for topic in sorted(packed)})


def _packed(numbers: set[int]) -> bytes:
    return array(_NUMBERS, sorted(numbers)).tobytes()


DAY_MS = 24 * 60 * 60_000

EPOCH_BUMP_VERSION = 2
"""From this ``transaction.version`` on, every end of a transaction bumps the producer epoch (KIP-890)."""


class TransactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_timeout_ms: int = 15 * 60_000
    """``transaction.max.timeout.ms``: the longest transaction timeout that a producer may request."""
    id_expiration_ms: int = 7 * DAY_MS
    """``transactional.id.expiration.ms``: how long an id without a transaction is kept."""
    abort_check_interval_ms: int = 10_000
    """``transaction.abort.timed.out.transaction.cleanup.interval.ms``."""
    expiration_check_interval_ms: int = 60 * 60_000
    """``transaction.remove.expired.transaction.cleanup.interval.ms``."""
    first_epoch: int = 0
    """The first epoch of a new transactional id. Simulations set it near the highest, so that epochs are soon
    exhausted."""

    def __post_init__(self) -> None:
        for name in ("max_timeout_ms", "id_expiration_ms", "abort_check_interval_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.expiration_check_interval_ms < 1:
            raise ValueError("expiration_check_interval_ms must be at least 1")
        if self.first_epoch < 0:
            raise ValueError("first_epoch must not be negative")


class TransactionState(IntEnum):
    """The state, with its number in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """The state's name in DescribeTransactions and ListTransactions."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and the markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open or prepared: one may begin, the epoch may be bumped, the id may
        expire."""
        return self in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )

    def may_become(self, after: TransactionState) -> bool:
        return after in _AFTER[self]


BY_NAME = {state.kafka_name: state for state in TransactionState}

_S = TransactionState
_AFTER_IDLE = frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD})
_AFTER: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: _AFTER_IDLE,
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: _AFTER_IDLE,
    _S.COMPLETE_ABORT: _AFTER_IDLE,
    _S.DEAD: frozenset(),
    _S.PREPARE_EPOCH_FENCE: frozenset(),
}


NO_PRODUCER_ID = -1
NO_EPOCH = -1
INT16_MAX = 2**15 - 1
EPOCH_MAX = INT16_MAX - 1
"""The highest epoch that a producer gets; the one above is left to fence it."""


def is_exhausted(epoch: int) -> bool:
    return epoch >= EPOCH_MAX


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: int
    producer_epoch: int
    """-1 only while the first InitProducerId is decided; such a value is never written."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: PartitionSet = PartitionSet()
    started_ms: int = -1
    """When the first partition was added (ms since the epoch); -1: none was, since the producer epoch
    began."""
    updated_ms: int
    """When the last transition was (ms since the epoch)."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """While prepared: the new producer id, with epoch 0, of the producer's next transaction, if it gets
    one."""
    next_producer_epoch: int = NO_EPOCH
    """Written again as it was read: two-phase commit (KIP-939) is not served."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch before the last bump that the producer requested, by which a repeated request is recognised.
    Not kept in records."""
    version: int = 0
    """The ``transaction.version`` that the producer uses."""

    @property
    def is_exhausted(self) -> bool:
        return is_exhausted(self.producer_epoch)

    @property
    def bumps_epochs(self) -> bool:
        return self.version >= EPOCH_BUMP_VERSION

    @property
    def ordered_partitions(self) -> tuple[TopicPartition, ...]:
        return tuple(self.partitions)

    def is_timed_out(self, wall_ms: int, known_open_ms: int) -> bool:
        """Whether the transaction is older than its time-out, by the wall clock or by ``known_open_ms``.

        ``known_open_ms``: for how long its coordinator has known it to be open, by the monotonic clock. By
        the wall clock alone, as in Kafka, a transaction stays open for as long as the coordinator's clock is
        behind that of the coordinator before it, and its partitions' readers wait all that time.
        """
        return self.state is TransactionState.ONGOING and (
            self.started_ms + self.timeout_ms < wall_ms or self.timeout_ms < known_open_ms
        )

    # ── transitions ─────────────────────────────────────────────────────────────────────────────
    def with_epoch(self, epoch: int, last_epoch: int, timeout_ms: int, wall_ms: int) -> Transaction:
        """Give the producer ``epoch``, the next one or its current one again; no transaction is open then.

        ``last_epoch``: the epoch from which a repeated request is accepted; -1: none.
        """
        check(self.producer_epoch <= epoch <= EPOCH_MAX, "a producer's epoch never decreases", self, epoch)
        return self._become(
            TransactionState.EMPTY,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=PartitionSet(),
            started_ms=-1,
            updated_ms=wall_ms,
        )

    def with_producer_id(
        self, producer_id: int, last_epoch: int, timeout_ms: int, wall_ms: int
    ) -> Transaction:
        """Give the producer another producer id with epoch 0, since the epochs of its id are exhausted."""
        return self._become(
            TransactionState.EMPTY,
            previous_producer_id=self.producer_id,
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=PartitionSet(),
            started_ms=-1,
            updated_ms=wall_ms,
        )

    def with_partitions(self, added: frozenset[TopicPartition], version: int, wall_ms: int) -> Transaction:
        begins = self.state.is_idle
        return self._become(
            TransactionState.ONGOING,
            partitions=PartitionSet.of(added) if begins else self.partitions.union(added),
            started_ms=wall_ms if begins else self.started_ms,
            updated_ms=wall_ms,
            version=version,
        )

    def prepared(
        self, *, commit: bool, version: int, next_producer_id: int, fences: bool, wall_ms: int
    ) -> Transaction:
        """Decide the outcome: commit or abort.

        ``version``: the ``transaction.version``; from 2 on the epoch is bumped. ``next_producer_id``: the
        producer's new id if its epochs are exhausted. ``fences``: the coordinator decides, and the epoch is
        bumped to fence the producer.
        """
        bumps = version >= EPOCH_BUMP_VERSION
        epoch = self.producer_epoch + (1 if bumps or fences else 0)
        check(epoch <= INT16_MAX, "an epoch is left to fence the producer", self)
        if bumps:
            last_epoch = self.producer_epoch
        else:
            last_epoch = NO_EPOCH if fences else self.last_producer_epoch
        return self._become(
            TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=next_producer_id,
            started_ms=wall_ms if self.state.is_idle else self.started_ms,
            updated_ms=wall_ms,
            version=version,
        )

    def completed(self, wall_ms: int) -> Transaction:
        """Complete the transaction: all markers are written."""
        rotates = self.bumps_epochs and self.next_producer_id != NO_PRODUCER_ID
        return self._become(
            TransactionState.COMPLETE_COMMIT
            if self.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT,
            previous_producer_id=self.producer_id,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=PartitionSet(),
            updated_ms=wall_ms,
        )

    def _become(self, state: TransactionState, **changes: object) -> Transaction:
        check(self.state.may_become(state), "the transition is allowed", self, state)
        return replace(self, state=state, **changes)  # type: ignore[arg-type]
