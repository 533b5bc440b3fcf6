"""The offsets of groups: commits, fetches and deletions, the newest offset of each partition, and its expiry.

Offsets that are committed in a transaction are pending until the marker of its producer ends it. Offsets
expire after a while or go with their topic, and then groups without members and offsets go, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from itertools import chain, islice, repeat

import msgspec

from nilometer.coordinators import Token
from nilometer.groups.classic_group import ClassicGroup
from nilometer.groups.classic_groups import ClassicGroups
from nilometer.groups.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue
from nilometer.groups.requests import (
    OffsetCommit,
    OffsetCommitPartition,
    OffsetCommitPartitionResult,
    OffsetCommitResult,
    OffsetCommitTopic,
    OffsetCommitTopicResult,
    OffsetDelete,
    OffsetDeletePartitionResult,
    OffsetDeleteResult,
    OffsetDeleteTopic,
    OffsetDeleteTopicResult,
    OffsetFetch,
    OffsetFetchPartitionResult,
    OffsetFetchResult,
    OffsetFetchTopic,
    OffsetFetchTopicResult,
)
from nilometer.groups.turn import Group, RetentionStart, ShardState, TimerKey, Turn
from nilometer.identifiers import TopicId, topic_id_of
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode

PartitionOffsets = Mapping[int, OffsetCommitValue]


class OffsetsTable:
    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}
        self._topics: Counter[str] = Counter()
        """By topic, the number of groups that have offsets of it."""
        self._count = 0

    def __len__(self) -> int:
        """The number of offsets."""
        return self._count

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is None:
            self._remove(key)
            return
        partitions = self._groups.setdefault(key.group, {}).setdefault(key.topic, {})
        if not partitions:
            self._topics[key.topic] += 1
        self._count += key.partition not in partitions
        partitions[key.partition] = value

    def _remove(self, key: OffsetCommitKey) -> None:
        topics = self._groups.get(key.group, {})
        partitions = topics.get(key.topic, {})
        if partitions.pop(key.partition, None) is None:
            return
        self._count -= 1
        if partitions:
            return
        del topics[key.topic]
        self._topics[key.topic] -= 1
        if not self._topics[key.topic]:
            del self._topics[key.topic]
        if not topics:
            del self._groups[key.group]

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def of_group(self, group_id: str) -> Mapping[str, PartitionOffsets]:
        return self._groups.get(group_id, {})

    def count_of(self, group_id: str) -> int:
        return sum(map(len, self.of_group(group_id).values()))

    def of_topic(self, topic: str) -> Iterator[tuple[str, PartitionOffsets]]:
        """Yield (group id, offsets by partition) of each group with offsets of the topic. Checks all
        groups."""
        for group_id, topics in self._groups.items():
            if topic in topics:
                yield group_id, topics[topic]

    def group_ids(self) -> list[str]:
        return list(self._groups)

    def topics(self) -> list[str]:
        """Return all topics of which a group has offsets."""
        return list(self._topics)

    def take(self, group_id: str) -> Iterator[OffsetCommitKey]:
        """Remove all offsets of the group at once; the keys are yielded later."""
        topics = self._groups.pop(group_id, {})
        for topic, partitions in topics.items():
            self._count -= len(partitions)
            self._topics[topic] -= 1
            if not self._topics[topic]:
                del self._topics[topic]
        return (
            OffsetCommitKey(group_id, topic, partition)
            for topic, partitions in topics.items()
            for partition in partitions
        )


def tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(OffsetCommitKey(group_id, topic, partition), None)


PENDING_MAX = 10_000
"""So many offsets may be pending in one transaction: its marker applies all of them at once."""


class _PendingKey(msgspec.Struct):
    """An offset that is pending in the transactions of some producers."""

    producers: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    """By producer id, the number of its offset: numbers rise."""
    replaced: int = 0
    """Offsets up to this number are still unstable, but a later ordinary commit has replaced them."""


FREED_AT_ONCE = 100
"""To free so many pending offsets of one key takes as long as one tombstone."""


class PendingOffsets:
    """An offset counts if its producer is among those of its key. A key that is removed may be in
    thousands of transactions: each of them finds that it is gone when it ends."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetCommitKey, OffsetCommitValue]] = {}
        """By producer id, also those whose keys were removed."""
        self._by_group: dict[str, dict[OffsetCommitKey, _PendingKey]] = {}
        self._added = 0

    def add(self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        self._added += 1
        self._by_producer.setdefault(producer_id, {})[key] = value
        pending = self._by_group.setdefault(key.group, {}).setdefault(key, _PendingKey())
        pending.producers[producer_id] = self._added

    def count_of(self, producer_id: int) -> int:
        """Return how many offsets its marker has to look at, also those whose keys were removed."""
        return len(self._by_producer.get(producer_id, ()))

    def is_pending(self, key: OffsetCommitKey) -> bool:
        return key in self._by_group.get(key.group, {})

    def of_group(self, group_id: str) -> Collection[OffsetCommitKey]:
        return self._by_group.get(group_id, {})

    def take(self, group_id: str) -> Iterator[OffsetCommitKey | None]:
        """Remove all offsets of the group at once; the keys are yielded later, and None for each
        ``FREED_AT_ONCE`` offsets of a key that were freed."""
        return _free(self._by_group.pop(group_id, {}))

    def on_plain_record(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Note a record for the key that was written outside of a transaction: a commit, or a tombstone."""
        keys = self._by_group.get(key.group, {})
        pending = keys.get(key)
        if pending is not None and value is None:
            self._remove_key(keys, key)
        elif pending is not None:
            pending.replaced = self._added

    def end(self, producer_id: int) -> list[tuple[OffsetCommitKey, OffsetCommitValue]]:
        """Remove the pending offsets of a producer whose transaction has ended, and return those that count
        if it was committed."""
        ended = self._by_producer.pop(producer_id, {})
        return [(key, value) for key, value in ended.items() if self._remove(producer_id, key)]

    def _remove(self, producer_id: int, key: OffsetCommitKey) -> bool:
        """Remove the producer's offset of the key, if the key is still there; return whether it counts."""
        keys = self._by_group.get(key.group, {})
        pending = keys.get(key)
        number = None if pending is None else pending.producers.pop(producer_id, None)
        if pending is None or number is None:
            return False
        if not pending.producers:
            self._remove_key(keys, key)
        return number > pending.replaced

    def _remove_key(self, keys: dict[OffsetCommitKey, _PendingKey], key: OffsetCommitKey) -> None:
        del keys[key]
        if not keys:
            del self._by_group[key.group]


def _free(keys: dict[OffsetCommitKey, _PendingKey]) -> Iterator[OffsetCommitKey | None]:
    while keys:
        key, pending = keys.popitem()
        yield key
        yield from repeat(None, len(pending.producers) // FREED_AT_ONCE)


class _Removal(msgspec.Struct):
    """The offsets of a deleted group whose tombstones are still to be written."""

    keys: Iterator[OffsetCommitKey | None]
    """None: a step without a tombstone."""
    then: list[Callable[[Turn], None]]
    """To be called when all are written."""


class Offsets:
    def __init__(self, state: ShardState) -> None:
        self._state = state
        self.table = OffsetsTable()
        self.pending = PendingOffsets()
        self._removals: dict[str, _Removal] = {}
        """By group id. The group is gone already, and no offsets of it are committed before the last
        tombstone, which would remove them when the log is loaded again."""

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Apply an offset record that was written outside of a transaction, while loading or just now."""
        self.pending.on_plain_record(key, value)
        self._apply(key, value)

    def _apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        self.table.apply(key, value)
        if value is not None:
            self._create_simple_group(key.group)

    def _create_simple_group(self, group_id: str) -> None:
        """Create a simple group, which has only offsets, unless the group exists."""
        if group_id not in self._state.groups:
            self._state.groups[group_id] = ClassicGroup(group_id)

    def replay_pending(self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        """Add an offset record that was written in a transaction, while loading or just now."""
        self.pending.add(producer_id, key, value)
        self._create_simple_group(key.group)

    def replay_end(self, producer_id: int, *, committed: bool) -> None:
        """Apply (``committed``) or drop the pending offsets of a producer whose transaction has ended."""
        for key, value in self.pending.end(producer_id):
            if committed:
                self._apply(key, value)

    def write(self, turn: Turn, record: CoordinatorRecord) -> None:
        assert isinstance(record.key, OffsetCommitKey)
        assert record.value is None or isinstance(record.value, OffsetCommitValue)
        turn.write(record)
        self.replay(record.key, record.value)

    # -- commit ----------------------------------------------------------------------------------------

    def commit(self, turn: Turn, token: Token, request: OffsetCommit) -> ErrorCode:
        """Write the offsets and result; return the group's error for the whole request, if any.

        Without such an error single partitions may still be rejected.
        """
        error = self._check_commit(request)
        if error is ErrorCode.none and not self._has_room(request):
            error = ErrorCode.invalid_commit_offset_size
        topics = tuple(self._commit_topic(turn, request, topic, error) for topic in request.topics)
        turn.resolve(token, OffsetCommitResult(topics))
        return error

    def _has_room(self, request: OffsetCommit) -> bool:
        """Whether its transaction may have so many more pending offsets."""
        if request.producer is None:
            return True
        more = sum(len(topic.partitions) for topic in request.topics)
        return self.pending.count_of(request.producer.producer_id) + more <= PENDING_MAX

    def _check_commit(self, request: OffsetCommit) -> ErrorCode:
        if request.group_id in self._removals:
            return ErrorCode.coordinator_load_in_progress  # on which every client tries again
        group = self._state.groups.get(request.group_id)
        if group is not None:
            error = group.check_offset_commit(request)
            is_stale = not request.knows_member_epochs and error is ErrorCode.stale_member_epoch
            return ErrorCode.illegal_generation if is_stale else error
        if request.generation_id_or_member_epoch < 0:
            return ErrorCode.none
        return ErrorCode.group_id_not_found if request.knows_member_epochs else ErrorCode.illegal_generation

    def _commit_topic(
        self, turn: Turn, request: OffsetCommit, topic: OffsetCommitTopic, error: ErrorCode
    ) -> OffsetCommitTopicResult:
        results: list[OffsetCommitPartitionResult] = []
        for partition in topic.partitions:
            error_code = error
            if error_code is ErrorCode.none and self._is_too_large(partition.committed_metadata):
                error_code = ErrorCode.offset_metadata_too_large
            if error_code is ErrorCode.none:
                self._write_commit(turn, request, _commit_record(turn, request, topic, partition))
            results.append(OffsetCommitPartitionResult(partition.partition_index, error_code))
        return OffsetCommitTopicResult(topic.name, tuple(results), topic.topic_id)

    def _write_commit(self, turn: Turn, request: OffsetCommit, record: CoordinatorRecord) -> None:
        if request.producer is None:
            self.write(turn, record)
            return
        assert isinstance(record.key, OffsetCommitKey)
        assert isinstance(record.value, OffsetCommitValue)
        turn.producer = request.producer
        turn.write(record)
        self.replay_pending(request.producer.producer_id, record.key, record.value)

    def _is_too_large(self, metadata: str | None) -> bool:
        """Whether the metadata is too long, counted in UTF-16 units as in Java."""
        if not metadata:
            return False
        return (
            len(metadata.encode("utf-16-le", "surrogatepass")) // 2
            > self._state.config.offset_metadata_max_bytes
        )

    # -- fetch -----------------------------------------------------------------------------------------

    def fetch(self, turn: Turn, token: Token, request: OffsetFetch) -> None:
        """GroupResult with committed offsets; an unknown group has none, which is no error."""
        group = self._state.groups.get(request.group_id)
        error = ErrorCode.none if group is None else group.check_offset_fetch(request)
        if error is not ErrorCode.none:
            turn.resolve(token, OffsetFetchResult(request.group_id, error))
            return
        if request.topics is None:
            topics = self._everything(request)
        else:
            topics = tuple(self._fetch_topic(request, topic) for topic in request.topics)
        turn.resolve(token, OffsetFetchResult(request.group_id, topics=topics))

    def _everything(self, request: OffsetFetch) -> Sequence[OffsetFetchTopicResult]:
        """Return all offsets as they are now; the results of topics and partitions are made later."""
        group_id = request.group_id
        unstable = frozenset(self.pending.of_group(group_id) if request.require_stable else ())
        offsets = [(topic, dict(found)) for topic, found in self.table.of_group(group_id).items()]

        def offset_of(topic: str, item: tuple[int, OffsetCommitValue]) -> OffsetFetchPartitionResult:
            partition, value = item
            is_unstable = unstable and OffsetCommitKey(group_id, topic, partition) in unstable
            return _unstable(partition) if is_unstable else _fetched(partition, value)

        def topic_of(found: tuple[str, PartitionOffsets]) -> OffsetFetchTopicResult:
            topic, partitions = found
            results = LazySequence(partial(offset_of, topic), list(partitions.items()))
            return OffsetFetchTopicResult(topic, results, next(iter(partitions.values())).topic_id)

        return LazySequence(topic_of, offsets)

    def _is_unstable(self, request: OffsetFetch, topic: str, partition: int) -> bool:
        """Whether an open transaction may change the offset, and the request wants stable offsets only."""
        return request.require_stable and self.pending.is_pending(
            OffsetCommitKey(request.group_id, topic, partition)
        )

    def _fetch_topic(self, request: OffsetFetch, topic: OffsetFetchTopic) -> OffsetFetchTopicResult:
        results: list[OffsetFetchPartitionResult] = []
        for partition in topic.partition_indexes:
            value = self.table.get(request.group_id, topic.name, partition)
            if self._is_unstable(request, topic.name, partition):
                results.append(_unstable(partition))
            elif value is None or _is_of_another(topic, value):
                results.append(OffsetFetchPartitionResult(partition))
            else:
                results.append(_fetched(partition, value))
        return OffsetFetchTopicResult(topic.name, tuple(results), topic.topic_id)

    # -- delete ----------------------------------------------------------------------------------------

    def delete(self, turn: Turn, token: Token, request: OffsetDelete) -> None:
        group = self._state.groups.get(request.group_id)
        if group is None:
            turn.resolve(token, OffsetDeleteResult(ErrorCode.group_id_not_found))
            return
        error = group.check_offset_delete()
        if error is not ErrorCode.none:
            turn.resolve(token, OffsetDeleteResult(error))
            return
        is_subscribed_to = group.subscription()
        topics = tuple(
            self._delete_topic(turn, group, topic, is_read=is_subscribed_to(topic.name))
            for topic in request.topics
        )
        turn.resolve(token, OffsetDeleteResult(ErrorCode.none, topics))

    def _delete_topic(
        self, turn: Turn, group: Group, topic: OffsetDeleteTopic, *, is_read: bool
    ) -> OffsetDeleteTopicResult:
        error = ErrorCode.group_subscribed_to_topic if is_read else ErrorCode.none
        for partition in () if is_read else topic.partition_indexes:
            if self._has_offset(OffsetCommitKey(group.group_id, topic.name, partition)):
                self.write(turn, tombstone(group.group_id, topic.name, partition))
        return OffsetDeleteTopicResult(
            topic.name,
            tuple(OffsetDeletePartitionResult(partition, error) for partition in topic.partition_indexes),
        )

    def delete_all(self, turn: Turn, group_id: str, then: Callable[[Turn], None]) -> None:
        """Forget all offsets of the group, and call ``then`` in the turn that writes the last tombstone.

        A turn writes ``TOMBSTONES_PER_CALL_MAX``. If the log is loaded again before the last one, the offsets
        without a tombstone are those of a simple group.
        """
        if (removal := self._removals.get(group_id)) is not None:
            removal.then.append(then)  # the group was created and deleted again, and has no offsets
            return
        keys = chain(self.table.take(group_id), self.pending.take(group_id))
        self._removals[group_id] = _Removal(keys, [then])
        self.write_tombstones(turn)

    def write_tombstones(self, turn: Turn) -> None:
        left = TOMBSTONES_PER_CALL_MAX - turn.records_count
        while self._removals and left > 0:
            group_id, removal = next(iter(self._removals.items()))
            steps = list(islice(removal.keys, left))
            turn.write_all(CoordinatorRecord(key, None) for key in steps if key is not None)
            left -= len(steps)
            if left > 0:
                del self._removals[group_id]
                for each in removal.then:
                    each(turn)
        if self._removals:
            self._state.timers.schedule(_PURGE, turn.now_ms + 1)

    def has_any(self, group_id: str) -> bool:
        """Whether the group has offsets, committed or pending."""
        return bool(self.table.of_group(group_id) or self.pending.of_group(group_id))

    def _has_offset(self, key: OffsetCommitKey) -> bool:
        return self.table.get(key.group, key.topic, key.partition) is not None or self.pending.is_pending(key)


def _commit_record(
    turn: Turn, request: OffsetCommit, topic: OffsetCommitTopic, partition: OffsetCommitPartition
) -> CoordinatorRecord:
    value = OffsetCommitValue(
        partition.committed_offset,
        partition.committed_metadata or "",
        turn.wall_ms,
        partition.committed_leader_epoch,
        -1 if request.retention_time_ms == -1 else turn.wall_ms + request.retention_time_ms,
        topic.topic_id,
    )
    return CoordinatorRecord(OffsetCommitKey(request.group_id, topic.name, partition.partition_index), value)


def _is_of_another(topic: OffsetFetchTopic, value: OffsetCommitValue) -> bool:
    return None not in (topic.topic_id, value.topic_id) and topic.topic_id != value.topic_id


def _unstable(partition: int) -> OffsetFetchPartitionResult:
    return OffsetFetchPartitionResult(partition, error_code=ErrorCode.unstable_offset_commit)


def _fetched(partition: int, value: OffsetCommitValue) -> OffsetFetchPartitionResult:
    return OffsetFetchPartitionResult(partition, value.offset, value.leader_epoch, value.metadata)


TOMBSTONES_PER_CALL_MAX = 1_000
OFFSETS_PER_CALL_MAX = 10_000
"""So many offsets are looked at in one call, and those of one group."""
EFFORT_OF_A_GROUP = 8
"""To look at a group takes as long as at so many of its offsets."""
BYTES_OF_A_TOPIC = 6
"""To read so many bytes that the members of a classic group have sent takes as long as at most one offset."""
GROUPS_BEFORE_CHECK = 1_000
"""So many groups more than after the last check, and twice as many as then, are checked at once: a client may
make thousands in a second that nothing is left in, each of some kilobytes."""


class OffsetsTimer(Enum):
    EXPIRY = auto()
    PURGE = auto()
    """Topics may have been deleted, or more of their offsets are to be removed than fit into one batch."""


_EXPIRY = TimerKey(OffsetsTimer.EXPIRY)
_PURGE = TimerKey(OffsetsTimer.PURGE)


class OffsetExpiry:
    def __init__(self, state: ShardState, offsets: Offsets, classic: ClassicGroups) -> None:
        self._state = state
        self._offsets = offsets
        self._classic = classic
        self._topic_ids: dict[str, TopicId] = {}
        """The ids, in the last image, of topics with offsets: a changed id shows that a topic was deleted."""
        self._deleted: dict[str, TopicId | None] = {}
        """The deleted topics whose offsets are to be removed, with the id of a new topic of that name."""
        self._is_image_new = False
        """Whether topics may have been deleted since they were looked for."""
        self._round: list[Group] = []
        """The groups whose offsets are still to be looked at in this round, the next one last."""
        self._groups_max = 0
        """With more groups than this, the next round begins at once."""

    def on_loaded(self, turn: Turn) -> None:
        self._schedule(turn)
        self._find_deleted()
        self._on_purge(turn)

    def _schedule(self, turn: Turn) -> None:
        interval_ms = self._state.config.offsets_retention_check_interval_ms
        self._state.timers.schedule(_EXPIRY, turn.now_ms + interval_ms)
        self._groups_max = 2 * len(self._state.groups) + GROUPS_BEFORE_CHECK

    def check_number(self, turn: Turn) -> None:
        """Begin the next round if there are many new groups."""
        if len(self._state.groups) > self._groups_max and not self._round:
            self._state.timers.schedule(_EXPIRY, turn.now_ms)

    # -- by age ----------------------------------------------------------------------------------------

    def on_timer(self, turn: Turn, key: TimerKey) -> None:
        if key == _EXPIRY:
            self._on_expiry(turn)
        else:
            self._on_purge(turn)

    def _on_expiry(self, turn: Turn) -> None:
        """Go on with the round over all groups, or begin the next one."""
        if not self._round:
            self._round.extend(self._state.groups.values())
        looked_at = 0
        while self._round and looked_at < OFFSETS_PER_CALL_MAX:
            group, budget = self._round[-1], TOMBSTONES_PER_CALL_MAX - turn.records_count
            if budget <= 0:
                break
            offsets = self._offsets.table.count_of(group.group_id)
            looked_at += EFFORT_OF_A_GROUP + offsets
            if offsets and isinstance(group, ClassicGroup):
                looked_at += group.members_bytes // BYTES_OF_A_TOPIC
            self._expire(turn, group, budget)
            if turn.records_count < TOMBSTONES_PER_CALL_MAX:
                self._round.pop()
        if self._round:
            self._state.timers.schedule(_EXPIRY, turn.now_ms + 1)
        else:
            self._schedule(turn)

    def _expire(self, turn: Turn, group: Group, budget: int) -> None:
        """Write tombstones for at most ``budget`` expired offsets of the group; remove the group if it is
        empty then."""
        start = group.retention_start()
        if start is None or self._state.groups.get(group.group_id) is not group:
            return
        for topic, partition in list(islice(self._expired(turn, group, start), budget)):
            self._offsets.write(turn, tombstone(group.group_id, topic, partition))
        is_joining = isinstance(group, ClassicGroup) and group.pending_members
        if group.is_empty and not is_joining and not self._offsets.has_any(group.group_id):
            self._classic.remove(turn, group)

    def _expired(self, turn: Turn, group: Group, start: RetentionStart) -> Iterator[tuple[str, int]]:
        offsets = self._offsets.table.of_group(group.group_id)
        is_subscribed_to = group.subscription() if offsets else None
        for topic, partitions in offsets.items():
            if is_subscribed_to is None or is_subscribed_to(topic):
                continue
            for partition, value in partitions.items():
                if self._is_expired(value, start, turn.wall_ms) and not self._offsets.pending.is_pending(
                    OffsetCommitKey(group.group_id, topic, partition)
                ):
                    yield topic, partition

    def _is_expired(self, value: OffsetCommitValue, start: RetentionStart, wall_ms: int) -> bool:
        if value.expire_timestamp != -1:
            return wall_ms >= value.expire_timestamp
        since_ms = value.commit_timestamp if start.wall_ms is None else start.wall_ms
        return wall_ms - since_ms >= self._state.config.offsets_retention_ms

    # -- with their topic --------------------------------------------------------------------------------

    def on_image(self, turn: Turn) -> None:
        """Schedule the search for deleted topics: each partition has a call of its own, since it may have
        offsets of thousands of topics."""
        if self._offsets.table.topics():
            self._is_image_new = True
            self._state.timers.schedule(_PURGE, turn.now_ms)

    def before_commit(self, turn: Turn) -> None:
        """Remove the offsets of topics that the last image has deleted: one that is committed now is of a new
        topic of that name."""
        if self._is_image_new:
            self._on_purge(turn)

    def _find_deleted(self) -> None:
        for name in self._offsets.table.topics():
            topic = self._state.image.topic(name)
            known = self._topic_ids.get(name)
            if topic is not None:
                self._topic_ids[name] = topic.id
            else:
                self._topic_ids.pop(name, None)
            if known is not None and (topic is None or topic.id != known):
                self._deleted[name] = None if topic is None else topic.id

    def note_commit(self, topics: list[str]) -> None:
        for name in topics:
            topic = self._state.image.topic(name)
            if topic is not None:
                self._topic_ids.setdefault(name, topic.id)

    def _on_purge(self, turn: Turn) -> None:
        if self._is_image_new:
            self._is_image_new = False
            self._find_deleted()
        self._offsets.write_tombstones(turn)
        budget = TOMBSTONES_PER_CALL_MAX - turn.records_count
        while self._deleted and budget > 0:
            name, new_id = next(iter(self._deleted.items()))
            budget -= self._purge(turn, name, new_id, budget)
            if budget > 0:
                del self._deleted[name]
        if self._deleted:
            self._state.timers.schedule(_PURGE, turn.now_ms)

    def _purge(self, turn: Turn, name: str, new_id: TopicId | None, budget: int) -> int:
        found = (
            (group_id, partition)
            for group_id, partitions in self._offsets.table.of_topic(name)
            for partition, value in partitions.items()
            if new_id is None or value.topic_id is None or topic_id_of(value.topic_id) != new_id
        )
        outdated = list(islice(found, budget))
        for group_id, partition in outdated:
            self._offsets.write(turn, tombstone(group_id, name, partition))
        return len(outdated)
