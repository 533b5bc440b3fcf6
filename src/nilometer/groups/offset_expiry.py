"""Removes offsets that have expired or whose topic was deleted, and then groups without members and offsets.

The age of an offset counts from ``Group.retention_start``: for an empty classic group since it became empty;
for a group with members since each commit, and only for topics that no member is subscribed to; for a simple
group since each commit. A commit with a retention time of its own expires after that time.

Invariant: one call writes a bounded number of tombstones; a timer starts the next call for the rest.
"""

from __future__ import annotations

from nilometer.groups.classic.group import ClassicGroup
from nilometer.groups.classic.groups import ClassicGroups
from nilometer.groups.group import Group, RetentionStart
from nilometer.groups.offsets import Offsets
from nilometer.groups.offsets_table import tombstone
from nilometer.groups.records import OffsetCommitKey, OffsetCommitValue
from nilometer.groups.shard_state import ShardState
from nilometer.groups.timers import TimerKey, TimerKind
from nilometer.groups.turn import Turn
from nilometer.identifiers import TopicId, topic_id_of

TOMBSTONES_PER_CALL_MAX = 1_000
_EXPIRY = TimerKey(TimerKind.OFFSETS_EXPIRY)
_PURGE = TimerKey(TimerKind.OFFSETS_PURGE)


class OffsetExpiry:
    def __init__(self, state: ShardState, offsets: Offsets, classic: ClassicGroups) -> None:
        self._state = state
        self._offsets = offsets
        self._classic = classic
        self._topic_ids: dict[str, TopicId] = {}
        """The ids, in the last image, of topics with offsets: a changed id shows that a topic was deleted."""
        self._deleted: dict[str, TopicId | None] = {}
        """The deleted topics whose offsets are to be removed, with the id of a new topic of that name."""

    def on_loaded(self, turn: Turn) -> None:
        self._schedule(turn)
        self.on_image(turn)

    def _schedule(self, turn: Turn) -> None:
        interval_ms = self._state.config.offsets_retention_check_interval_ms
        self._state.timers.schedule(_EXPIRY, turn.now_ms + interval_ms)

    # -- by age ----------------------------------------------------------------------------------------

    def on_expiry(self, turn: Turn) -> None:
        budget = TOMBSTONES_PER_CALL_MAX
        for group in list(self._state.groups.values()):
            budget -= self._expire(turn, group, budget)
            if budget <= 0:
                self._state.timers.schedule(_EXPIRY, turn.now_ms)
                return
        self._schedule(turn)

    def _expire(self, turn: Turn, group: Group, budget: int) -> int:
        """Write tombstones for at most ``budget`` expired offsets of the group; remove the group if it is
        empty then. Returns the number of records."""
        start = group.retention_start()
        if start is None:
            return 0
        expired = [
            (topic, partition)
            for topic, partitions in self._offsets.table.of_group(group.group_id).items()
            if not group.is_subscribed_to(topic)
            for partition, value in partitions.items()
            if self._is_expired(value, start, turn.wall_ms)
            and not self._offsets.pending.is_pending(OffsetCommitKey(group.group_id, topic, partition))
        ][:budget]
        for topic, partition in expired:
            self._offsets.write(turn, tombstone(group.group_id, topic, partition))
        if group.is_empty and not self._offsets.has_any(group.group_id):
            return len(expired) + self._remove(turn, group)
        return len(expired)

    def _is_expired(self, value: OffsetCommitValue, start: RetentionStart, wall_ms: int) -> bool:
        if value.expire_timestamp != -1:
            return wall_ms >= value.expire_timestamp
        since_ms = value.commit_timestamp if start.wall_ms is None else start.wall_ms
        return wall_ms - since_ms >= self._state.config.offsets_retention_ms

    def _remove(self, turn: Turn, group: Group) -> int:
        """Remove the group, unless a member is joining; return the number of records."""
        if isinstance(group, ClassicGroup) and group.pending_members:
            return 0
        self._classic.remove(turn, group)
        return 1

    # -- with their topic --------------------------------------------------------------------------------

    def on_image(self, turn: Turn) -> None:
        for name in self._offsets.table.topics():
            topic = self._state.image.topic(name)
            known = self._topic_ids.get(name)
            if topic is not None:
                self._topic_ids[name] = topic.id
            else:
                self._topic_ids.pop(name, None)
            if known is not None and (topic is None or topic.id != known):
                self._deleted[name] = None if topic is None else topic.id
        self.on_purge(turn)

    def note_commit(self, topics: list[str]) -> None:
        for name in topics:
            topic = self._state.image.topic(name)
            if topic is not None:
                self._topic_ids.setdefault(name, topic.id)

    def on_purge(self, turn: Turn) -> None:
        budget = TOMBSTONES_PER_CALL_MAX
        while self._deleted and budget > 0:
            name, new_id = next(iter(self._deleted.items()))
            budget -= self._purge(turn, name, new_id, budget)
            if budget > 0:
                del self._deleted[name]
        if self._deleted:
            self._state.timers.schedule(_PURGE, turn.now_ms)

    def _purge(self, turn: Turn, name: str, new_id: TopicId | None, budget: int) -> int:
        outdated = [
            (group_id, partition)
            for group_id, partitions in self._offsets.table.of_topic(name)
            for partition, value in partitions.items()
            if new_id is None or value.topic_id is None or topic_id_of(value.topic_id) != new_id
        ][:budget]
        for group_id, partition in outdated:
            self._offsets.write(turn, tombstone(group_id, name, partition))
        return len(outdated)
