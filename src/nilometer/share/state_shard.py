"""The share coordinator's core: one partition of ``__share_group_state``, and the requests about the share
partitions that are kept there (KIP-932).

Two epochs fence writers that are out of date: the state epoch increases when the group coordinator
initializes a share partition again, the leader epoch with the partition's leader, who reads the state before
it writes.
A write is an update of the last snapshot; after so many updates the next write is a snapshot, and share
partitions that are not written get a snapshot from time to time, so that what is before it can be deleted.

Invariant: share partitions are in the order of their last snapshots, so that all records before the first
one's snapshot are redundant.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Generator, Iterable
from enum import Enum, auto
from typing import TypeAlias, assert_never

import msgspec

from nilometer import coordinators
from nilometer.cluster.image import ClusterImage
from nilometer.coordinators import Timers, Token, TransactionalRecord, TransactionEnd
from nilometer.identifiers import TopicId
from nilometer.share.state_records import (
    NO_START_OFFSET,
    UNKNOWN_COUNT,
    DeliveryState,
    SharePartitionKey,
    SharePartitionState,
    ShareRecord,
    ShareSnapshot,
    ShareUpdate,
    StateBatch,
    merged,
    merged_batches,
)
from nilometer.wire.errors import ErrorCode

DEFAULT_EPOCH = 0
"""Of a share partition that is not initialized, and of a leader that has not read yet."""
STATE_BATCHES_MAX = 10_000
"""So many batches has one share partition at most: as many as its leader may lock records."""
WRITE_BATCHES_MAX = 2_000
"""So many has one write: leaders write fewer at once."""
DELETED_PER_CALL_MAX = 1_000
"""A call writes one batch of records: of more share partitions whose topic was deleted, the rest follows."""
BATCHES_PER_CALL_MAX = 2_000
"""Of the snapshots of one call, before the last one; a snapshot counts as ``BATCHES_PER_SNAPSHOT`` more."""
BATCHES_PER_SNAPSHOT = 10
UNKNOWN_STATE = SharePartitionState(DEFAULT_EPOCH, DEFAULT_EPOCH, NO_START_OFFSET, UNKNOWN_COUNT)
"""What the summary of a share partition says that was not initialized."""


class ShareStateConfig(msgspec.Struct, frozen=True, kw_only=True):
    updates_per_snapshot: int = 500
    """``share.coordinator.snapshot.update.records.per.snapshot``: 0 to 500."""
    cold_snapshot_interval_ms: int = 300_000
    """``share.coordinator.cold.partition.snapshot.interval.ms``: at least 1."""
    prune_interval_ms: int = 300_000
    """``share.coordinator.state.topic.prune.interval.ms``: at least 1."""


# ── requests and results ────────────────────────────────────────────────────────────────────────
class InitializeState(msgspec.Struct, frozen=True):
    """Begin with ``start_offset`` and no batches, from the group coordinator."""

    key: SharePartitionKey
    state_epoch: int
    start_offset: int


class ReadState(msgspec.Struct, frozen=True):
    """The partition's leader in ``leader_epoch`` takes the share partition over."""

    key: SharePartitionKey
    leader_epoch: int


class WriteState(msgspec.Struct, frozen=True):
    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    """``NO_START_OFFSET``: as it was."""
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    """What has changed; in any order."""


class DeleteState(msgspec.Struct, frozen=True):
    key: SharePartitionKey


class ReadSummary(msgspec.Struct, frozen=True):
    """Read the state without its batches, from the group coordinator."""

    key: SharePartitionKey
    leader_epoch: int = -1
    """In the message, but without meaning: a summary fences no leader."""


StateRequest: TypeAlias = InitializeState | ReadState | WriteState | DeleteState | ReadSummary


class StateResult(msgspec.Struct, frozen=True):
    key: SharePartitionKey
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    state: SharePartitionState | None = None
    """What ReadState and ReadSummary have found."""


class Prune(msgspec.Struct, frozen=True):
    """An action: delete the first ``records`` records of the log, counted from the first one that was loaded.

    No share partition's state needs them. A record takes at least one offset, so that it is safe to count
    records as offsets.
    """

    records: int


class Turn(coordinators.Turn[ShareRecord, StateResult, Prune]):
    __slots__ = ()


Effects: TypeAlias = coordinators.Effects[ShareRecord, StateResult, Prune]


# ── state ───────────────────────────────────────────────────────────────────────────────────────
class _Kept(msgspec.Struct):
    """What is kept of one share partition."""

    state: SharePartitionState
    snapshot_epoch: int
    created_ms: int
    written_ms: int
    leader_fence: int
    """The highest leader epoch that was seen: that of the state begins again when it is initialized."""
    position: int
    """How many records were before its last snapshot, from the first one that was loaded."""
    updates: int = 0
    """Since the last snapshot."""


class _Timer(Enum):
    COLD = auto()
    """The next look for share partitions that have had no snapshot for long."""
    PRUNE = auto()
    DELETED = auto()
    """More share partitions of deleted topics are to be removed."""


class ShareStateShard:
    """See ``Shard`` in ``broker.coordinator_shell``."""

    def __init__(self, config: ShareStateConfig, image: ClusterImage) -> None:
        self._config = config
        self._image = image
        self._kept: OrderedDict[SharePartitionKey, _Kept] = OrderedDict()
        self._warm: set[SharePartitionKey] = set()
        """Those whose last snapshot was made because of a request."""
        self._topics: dict[TopicId, dict[SharePartitionKey, None]] = {}
        self._seen: set[TopicId] = set()
        """The topics that an image had while their state was kept here: if one is missing, it was deleted."""
        self._absent: set[TopicId] = set()
        """The topics that were missing at the last look for cold share partitions. This broker may lag behind
        the one that wrote their state, but not so long."""
        self._deleted: deque[SharePartitionKey] = deque()
        """Their topics were deleted; their state is still to be."""
        self._cold_before_ms: int | None = None
        """Share partitions whose last snapshot is not later still get one; None: none of them."""
        self._position = 0
        """The number of records since the first one that was loaded."""
        self._pruned = 0
        self._timers = Timers[_Timer]()
        self._waiting: set[Token] = set()

    # ── loading ─────────────────────────────────────────────────────────────────────────────────
    def replay(self, record: ShareRecord) -> None:
        """Apply a record to the state: one that is loaded, or one that was just written."""
        key, position = record.key, self._position
        self._position += 1
        kept = self._kept.get(key)
        if isinstance(record, ShareUpdate):
            if kept is None:  # no snapshot precedes it: not written by a coordinator
                kept = self._add(key, _Kept(UNKNOWN_STATE, record.snapshot_epoch, 0, 0, 0, position))
            kept.state = merged(kept.state, record)
            kept.leader_fence = max(kept.leader_fence, record.leader_epoch)
            kept.updates += 1
        elif record.state is None:
            self._remove(key)
        else:
            fence = max(record.state.leader_epoch, DEFAULT_EPOCH if kept is None else kept.leader_fence)
            written = _Kept(
                record.state, record.snapshot_epoch, record.created_ms, record.written_ms, fence, position
            )
            self._add(key, written)

    def _add(self, key: SharePartitionKey, kept: _Kept) -> _Kept:
        self._kept[key] = kept
        self._kept.move_to_end(key)
        self._topics.setdefault(key.topic_id, {})[key] = None
        if kept.created_ms == kept.written_ms:
            self._warm.add(key)
        else:
            self._warm.discard(key)
        return kept

    def _remove(self, key: SharePartitionKey) -> None:
        if self._kept.pop(key, None) is None:
            return
        self._warm.discard(key)
        of_topic = self._topics[key.topic_id]
        del of_topic[key]
        if not of_topic:
            del self._topics[key.topic_id]
            self._seen.discard(key.topic_id)
            self._absent.discard(key.topic_id)

    def replay_transactional(self, transactional: TransactionalRecord[ShareRecord]) -> None:
        """Apply a record as if it were not transactional: nothing is written to this topic in a
        transaction."""
        self.replay(transactional.record)

    def replay_end(self, end: TransactionEnd) -> None:
        """Ignore the end of a transaction, since none writes to this topic."""

    def on_loaded(self, now_ms: int, wall_ms: int) -> Generator[int, None, Effects]:
        """Start the timers: the partition has been read to its end."""
        yield 1
        self._timers.schedule(_Timer.COLD, now_ms + self._config.cold_snapshot_interval_ms)
        self._timers.schedule(_Timer.PRUNE, now_ms + self._config.prune_interval_ms)
        return self.on_image(self._image, now_ms, wall_ms)

    def states(self) -> Iterable[str]:
        """Return nothing: share partitions have no states with names."""
        return ()

    def state(self, key: SharePartitionKey) -> SharePartitionState | None:
        """Return what is kept of a share partition; None if it is not initialized."""
        kept = self._kept.get(key)
        return None if kept is None else kept.state

    # ── requests ────────────────────────────────────────────────────────────────────────────────
    def handle(self, token: Token, request: StateRequest, now_ms: int, wall_ms: int) -> Effects:
        turn = Turn(now_ms, wall_ms)
        self._waiting.add(token)
        result = self._refusal(request)
        if result is None:
            result = self._answer(turn, request)
            if (topic_id := request.key.topic_id) in self._topics:
                self._seen.add(topic_id)
        turn.resolve(token, result)
        return turn.effects(self._waiting)

    def forget(self, token: Token) -> None:
        """Drop the result of a request whose connection was lost."""
        self._waiting.discard(token)

    def _refusal(self, request: StateRequest) -> StateResult | None:
        """Return the result of a request that is invalid, fenced, or about a partition that does not
        exist."""
        error = _invalid(request)
        if error is None:
            error = self._fenced(request)
        key = request.key
        if error is None and self._image.partition_by_id(key.topic_id, key.partition) is None:
            error = ErrorCode.unknown_topic_or_partition, None
        return None if error is None else StateResult(key, *error)

    def _fenced(self, request: StateRequest) -> tuple[ErrorCode, str | None] | None:
        kept = self._kept.get(request.key)
        if isinstance(request, ReadState | WriteState):
            if kept is None:
                kind = "Read" if isinstance(request, ReadState) else "Write"
                message = f"{kind} operation on uninitialized share partition not allowed."
                return ErrorCode.invalid_request, message
            if request.leader_epoch < kept.leader_fence:
                return ErrorCode.fenced_leader_epoch, None
        if (
            isinstance(request, InitializeState | WriteState)
            and kept is not None
            and request.state_epoch < kept.state.state_epoch
        ):
            return ErrorCode.fenced_state_epoch, None
        return None

    def _answer(self, turn: Turn, request: StateRequest) -> StateResult:
        key = request.key
        kept = self._kept.get(key)
        match request:
            case InitializeState():
                self._initialize(turn, request, kept)
            case ReadState():
                assert kept is not None, "a share partition that is not initialized was refused"
                state = kept.state
                if request.leader_epoch > kept.leader_fence:
                    self._take_over(turn, key, kept, request.leader_epoch)
                return StateResult(key, state=state)
            case WriteState():
                assert kept is not None, "a share partition that is not initialized was refused"
                return self._write_state(turn, request, kept)
            case DeleteState():
                if kept is not None:
                    self._write(turn, ShareSnapshot(key, None))
            case ReadSummary():
                return StateResult(key, state=UNKNOWN_STATE if kept is None else kept.state)
            case _:
                assert_never(request)
        return StateResult(key)

    def _initialize(self, turn: Turn, request: InitializeState, kept: _Kept | None) -> None:
        count = UNKNOWN_COUNT if request.start_offset == NO_START_OFFSET else 0
        state = SharePartitionState(request.state_epoch, DEFAULT_EPOCH, request.start_offset, count)
        snapshot_epoch = 0 if kept is None else kept.snapshot_epoch + 1
        self._write(turn, ShareSnapshot(request.key, state, snapshot_epoch, turn.wall_ms, turn.wall_ms))

    def _take_over(self, turn: Turn, key: SharePartitionKey, kept: _Kept, leader_epoch: int) -> None:
        """Write the epoch of the leader that reads, so that it fences the leaders before it."""
        state = kept.state
        update = ShareUpdate(
            key, kept.snapshot_epoch, leader_epoch, state.start_offset, state.delivery_complete_count, ()
        )
        self._write_update(turn, kept, update)

    def _write_state(self, turn: Turn, request: WriteState, kept: _Kept) -> StateResult:
        key, state = request.key, kept.state
        start_offset = max(request.start_offset, state.start_offset)
        count = request.delivery_complete_count
        if request.start_offset == state.start_offset:
            count = max(count, state.delivery_complete_count)
        elif request.start_offset < state.start_offset:
            count = state.delivery_complete_count
        batches = merged_batches((), request.batches, start_offset)
        if len(batches) + len(state.batches) > STATE_BATCHES_MAX:
            after = merged_batches(state.batches, batches, start_offset)
            if len(after) > STATE_BATCHES_MAX:
                message = f"A share partition may have {STATE_BATCHES_MAX} state batches, not {len(after)}."
                return StateResult(key, ErrorCode.invalid_request, message)
        update = ShareUpdate(key, kept.snapshot_epoch, state.leader_epoch, start_offset, count, batches)
        self._write_update(turn, kept, update)
        return StateResult(key)

    # ── records ─────────────────────────────────────────────────────────────────────────────────
    def _write_update(self, turn: Turn, kept: _Kept, update: ShareUpdate) -> None:
        """Write what changes, or the whole state if there are enough updates of the last snapshot."""
        if kept.updates < self._config.updates_per_snapshot:
            self._write(turn, update)
        else:
            self._write_snapshot(turn, update.key, kept, merged(kept.state, update), turn.wall_ms)

    def _write_snapshot(
        self, turn: Turn, key: SharePartitionKey, kept: _Kept, state: SharePartitionState, created_ms: int
    ) -> None:
        self._write(turn, ShareSnapshot(key, state, kept.snapshot_epoch + 1, created_ms, turn.wall_ms))

    def _write(self, turn: Turn, record: ShareRecord) -> None:
        turn.write(record)
        self.replay(record)

    # ── the image, and time ─────────────────────────────────────────────────────────────────────
    def on_image(self, image: ClusterImage, now_ms: int, wall_ms: int) -> Effects:
        """Begin to delete the state of topics that were deleted. Thousands of groups may have one, so each
        partition of ``__share_group_state`` has a call of its own."""
        self._image = image
        for topic_id in list(self._topics):
            if image.topic_by_id(topic_id) is not None:
                self._seen.add(topic_id)
            elif topic_id in self._seen:
                self._on_deleted(topic_id)
        if self._deleted:
            self._timers.schedule(_Timer.DELETED, now_ms)
        return Turn(now_ms, wall_ms).effects(self._waiting)

    def _on_deleted(self, topic_id: TopicId) -> None:
        self._seen.discard(topic_id)
        self._deleted.extend(self._topics[topic_id])

    def _delete_more(self, turn: Turn) -> None:
        while self._deleted:
            if turn.records_count >= DELETED_PER_CALL_MAX:
                self._timers.schedule(_Timer.DELETED, turn.now_ms + 1)
                return
            key = self._deleted.popleft()
            if key in self._kept:
                self._write(turn, ShareSnapshot(key, None))

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_deadline_ms()

    def on_time(self, now_ms: int, wall_ms: int) -> Effects:
        turn = Turn(now_ms, wall_ms)
        while (timer := self._timers.take_due(now_ms)) is not None:
            match timer:
                case _Timer.DELETED:
                    self._delete_more(turn)
                case _Timer.PRUNE:
                    self._prune(turn)
                    self._timers.schedule(timer, now_ms + self._config.prune_interval_ms)
                case _Timer.COLD:
                    done = self._snapshot_cold(turn)
                    self._timers.schedule(
                        timer, now_ms + (self._config.cold_snapshot_interval_ms if done else 1)
                    )
                    if done:
                        self._check_absent_topics(turn)
                case _:
                    assert_never(timer)
        return turn.effects(self._waiting)

    def _prune(self, turn: Turn) -> None:
        oldest = next(iter(self._kept.values()), None)
        redundant = self._position if oldest is None else oldest.position
        if redundant > self._pruned:
            self._pruned = redundant
            turn.act(Prune(redundant))

    def _snapshot_cold(self, turn: Turn) -> bool:
        """Write snapshots of the share partitions that have had none for long; return false if one batch does
        not have room for all.

        There is nothing to do if each has had one for its age: without newer ones, none of them stands in the
        way of pruning.
        """
        if self._cold_before_ms is None:
            if not self._warm:
                return True
            self._cold_before_ms = turn.wall_ms - self._config.cold_snapshot_interval_ms
        effort = 0
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if kept.written_ms > self._cold_before_ms:
                break
            if effort >= BATCHES_PER_CALL_MAX:
                return False
            effort += len(kept.state.batches) + BATCHES_PER_SNAPSHOT
            self._write_snapshot(turn, key, kept, kept.state, kept.created_ms)
        self._cold_before_ms = None
        return True

    def _check_absent_topics(self, turn: Turn) -> None:
        """Delete the state of topics that have been missing for a whole interval: they were deleted before
        this coordinator had loaded it."""
        absent = {topic_id for topic_id in self._topics if self._image.topic_by_id(topic_id) is None}
        for topic_id in sorted(absent & self._absent):
            self._on_deleted(topic_id)
        self._absent = absent
        self._delete_more(turn)


def _invalid(request: StateRequest) -> tuple[ErrorCode, str] | None:
    """Return the error of a request that is wrong in itself; Kafka's texts."""
    message = None
    if request.key.partition < 0:
        message = "The partition id cannot be a negative number."
    elif isinstance(request, ReadState | WriteState) and request.leader_epoch < 0:
        message = "The leader epoch cannot be a negative number."
    elif isinstance(request, InitializeState | WriteState) and request.state_epoch < 0:
        message = "The state epoch cannot be a negative number."
    elif isinstance(request, WriteState):
        message = _invalid_batches(request.batches)
    return None if message is None else (ErrorCode.invalid_request, message)


def _invalid_batches(batches: tuple[StateBatch, ...]) -> str | None:
    if len(batches) > WRITE_BATCHES_MAX:
        return f"A write may have {WRITE_BATCHES_MAX} state batches, not {len(batches)}."
    for batch in batches:
        if not 0 <= batch.first_offset <= batch.last_offset or batch.delivery_count < 0:
            return f"The state batch from {batch.first_offset} to {batch.last_offset} is invalid."
        if batch.state is DeliveryState.ACQUIRED:
            return "Acquired records have no state that is kept."
    return None
