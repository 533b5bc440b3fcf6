"""Incremental fetch sessions (KIP-227): a reader names only partitions that changed since its last fetch.

A session is notified of changes of its partitions, between and during fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from nilometer.broker.replicas.delayed_requests import FetchWaiters, FetchWatchable
from nilometer.cluster.states import NAME_LENGTH_MAX
from nilometer.identifiers import NO_LEADER_EPOCH, LeaderEpoch
from nilometer.runtime import Entropy
from nilometer.wire.body_reader import uuid_of
from nilometer.wire.errors import ErrorCode, KafkaError

FINAL_EPOCH = -1
"""The session epoch with which a reader closes its session, or wants none."""
INITIAL_EPOCH = 0
"""The session epoch with which a reader names all its partitions and requests a new session."""
NO_SESSION = 0
KEEP_MS = 120_000
SESSION_PARTITIONS_MAX = 5_000
"""Of one client's session: to end it takes some milliseconds."""
CLIENT_PARTITIONS_MAX = 200_000
"""Of the sessions of all clients: they take some 100 MB."""


class TopicKey(NamedTuple):
    """How the reader named the topic: by id (Fetch 13 and later) or by name.

    The id is kept as bytes, whose hash is computed once, since partitions are looked up often.
    """

    id: bytes | None
    name: str | None

    @classmethod
    def of(cls, topic: str | bytes) -> TopicKey:
        return cls(None, topic) if isinstance(topic, str) else cls(topic, None)

    @property
    def as_named(self) -> str | UUID:
        return self.name or "" if self.id is None else uuid_of(self.id)


class PartitionKey(NamedTuple):
    topic: TopicKey
    partition: int


@dataclass(slots=True)
class FetchPartition:
    """One partition of a fetch request."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    last_fetched_epoch: LeaderEpoch = NO_LEADER_EPOCH
    log_start_offset: int = -1
    key: PartitionKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = PartitionKey(self.topic, self.partition)


class _LastSent(msgspec.Struct):
    """The offsets of a partition that were last sent to the reader; -1 if none."""

    high_watermark: int = -1
    log_start_offset: int = -1


class SessionWatcher(Protocol):
    """Marks a session's partitions dirty when they change."""

    def forget(self, key: PartitionKey) -> None:
        """Stop watching a partition that has left the session, or whose session has ended."""
        ...


class FetchSession(msgspec.Struct):
    id: int
    by_topic_id: bool
    epoch: int
    last_used_ms: int
    partitions: dict[PartitionKey, FetchPartition] = msgspec.field(
        default_factory=dict[PartitionKey, FetchPartition]
    )
    last_sent: dict[PartitionKey, _LastSent] = msgspec.field(default_factory=dict[PartitionKey, _LastSent])
    dirty: dict[PartitionKey, None] = msgspec.field(default_factory=dict[PartitionKey, None])
    """The dirty partitions, in the order in which they are read."""
    changed: dict[PartitionKey, None] = msgspec.field(default_factory=dict[PartitionKey, None])
    """The partitions marked dirty since the last read began: its response does not clear the mark."""
    kept: set[PartitionKey] = msgspec.field(default_factory=set[PartitionKey])
    """The dirty partitions that are still dirty after the response to the present fetch."""
    watcher: SessionWatcher | None = None
    is_bounded: bool = False
    """Whether it is a client's session; a broker's has as many partitions as its replicas."""
    rights_version: int = 0
    """The version of the ACLs when partitions were last read."""

    def update(self, partitions: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]) -> bool:
        """Apply a fetch request: add or change ``partitions``, and remove ``forgotten`` ones. Return whether
        some were added."""
        has_added = False
        self.kept.clear()
        for partition in partitions:
            known = self.partitions.get(partition.key)
            has_added |= known is None
            if known is None or partition.fetch_offset <= known.fetch_offset:
                # The offset has not advanced: the reader may not have received the last response.
                self.last_sent[partition.key] = _LastSent()
            self.partitions[partition.key] = partition
            self.dirty.setdefault(partition.key)
        for key in forgotten:
            self.forget(key)
        return has_added

    def forget(self, key: PartitionKey) -> None:
        if self.partitions.pop(key, None) is not None:
            self.last_sent.pop(key, None)
            self.dirty.pop(key, None)
            self.changed.pop(key, None)
            self.kept.discard(key)
            if self.watcher is not None:
                self.watcher.forget(key)

    def end(self) -> None:
        for key in list(self.partitions):
            self.forget(key)
        self.watcher = None  # it refers to the session: both would stay as garbage

    def follow_rights(self, version: int) -> None:
        """Make all partitions dirty if rights have changed: the reader may have lost or got some of them."""
        if version != self.rights_version:
            self.rights_version = version
            for key in self.partitions:
                self.dirty.setdefault(key)

    def mark_dirty(self, key: PartitionKey) -> None:
        if key in self.partitions:
            self.dirty.setdefault(key)
            self.changed[key] = None

    def keep_dirty(self, key: PartitionKey) -> None:
        """Let the next fetch read the partition, too: its offset counts once in each."""
        if key in self.dirty:
            self.kept.add(key)

    def look(self) -> list[FetchPartition]:
        """Return the dirty partitions, to be read now; a change from now on marks its partition again."""
        self.changed.clear()
        return [self.partitions[key] for key in self.dirty]

    def must_report(
        self,
        key: PartitionKey,
        *,
        failed: bool,
        has_records: bool,
        high_watermark: int,
        log_start: int,
        has_more: bool = False,
    ) -> bool:
        """Return whether the outcome of partition ``key`` must be in the response, and note it as sent.

        ``has_more``: the partition has records that did not fit.
        """
        last_sent = self.last_sent.get(key)
        if last_sent is None:
            return True
        must_report = (
            failed
            or has_records
            or (last_sent.high_watermark, last_sent.log_start_offset) != (high_watermark, log_start)
        )
        if failed:
            last_sent.high_watermark = -1  # so that recovery from the error is reported again
        else:
            last_sent.high_watermark, last_sent.log_start_offset = high_watermark, log_start
        # For example while it was read off the event loop.
        changed = key in self.changed or key in self.kept
        if has_more:
            return must_report  # it keeps its place in the order; partitions that were served move to the end
        self.dirty.pop(key, None)
        if (has_records or failed or changed) and key in self.partitions:
            self.dirty[key] = None  # there may be more records: it moves to the end of the order
        return must_report


class FetchRound(NamedTuple):
    """One fetch request together with its session."""

    session: FetchSession | None
    session_id: int
    """The session id in the response."""
    named: Sequence[FetchPartition]
    """The partitions that the reader named in this request."""
    incremental: bool
    """Whether unchanged partitions are left out of the response."""

    @property
    def size(self) -> int:
        """How many partitions would be read now."""
        return len(self.named) if self.session is None else len(self.session.dirty)

    def to_read(self) -> list[FetchPartition]:
        """Return the partitions to read now: all named ones, or the dirty ones of the session."""
        if self.session is None:
            return list(self.named)
        return self.session.look()

    @property
    def is_empty(self) -> bool:
        """Whether the fetch has no partition at all, so that there is nothing to wait for."""
        return not self.named and (self.session is None or not self.session.partitions)


def _has_long_names(partitions: Iterable[FetchPartition]) -> bool:
    """Whether a name is longer than that of any topic: a session would keep it."""
    names = {partition.topic.name or "" for partition in partitions}
    return any(len(name) > NAME_LENGTH_MAX or not name.isascii() for name in names)


class FetchSessionCache:
    def __init__(self, slots: int, entropy: Entropy) -> None:
        self._slots = slots
        self._entropy = entropy
        self._sessions: dict[int, FetchSession] = {}  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        partitions: Sequence[FetchPartition],
        forgotten: Sequence[PartitionKey],
        *,
        by_topic_id: bool,
        now_ms: int,
        is_bounded: bool = True,
    ) -> FetchRound:
        """Find, open or close the session of a fetch request, and update its partitions.

        ``is_bounded``: whether the reader is a client. Raises KafkaError: FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        if epoch == FINAL_EPOCH:
            self.drop(session_id)
            return FetchRound(None, NO_SESSION, partitions, incremental=False)
        if epoch == INITIAL_EPOCH:
            self.drop(session_id)
            session = self._open(partitions, by_topic_id, now_ms, is_bounded=is_bounded)
            return FetchRound(session, session.id if session else NO_SESSION, partitions, incremental=False)
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found, f"no fetch session {session_id}")
        if session.epoch != epoch:
            raise KafkaError(
                ErrorCode.invalid_fetch_session_epoch,
                f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}",
            )
        if session.by_topic_id != by_topic_id:
            raise KafkaError(
                ErrorCode.fetch_session_topic_id_error, "a session uses topic names or ids, not both"
            )
        session.epoch = epoch + 1 if epoch < 0x7FFF_FFFF else 1
        session.last_used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        is_too_large = session.is_bounded and len(partitions) > SESSION_PARTITIONS_MAX  # that would take long
        if not is_too_large and session.update(partitions, forgotten) and session.is_bounded:
            is_too_large = not self._has_room(session, 0) or _has_long_names(partitions)
        if is_too_large:
            self.drop(session_id)
            raise KafkaError(
                ErrorCode.fetch_session_id_not_found,
                f"fetch session {session_id} is ended: it has too many partitions or too long topic names",
            )
        return FetchRound(session, session.id, partitions, incremental=True)

    def _has_room(self, session: FetchSession | None, more: int) -> bool:
        """Whether the sessions of clients may have ``more`` partitions than now."""
        if (0 if session is None else len(session.partitions)) + more > SESSION_PARTITIONS_MAX:
            return False
        now = sum(len(each.partitions) for each in self._sessions.values() if each.is_bounded)
        return now + more <= CLIENT_PARTITIONS_MAX

    def _open(
        self, partitions: Sequence[FetchPartition], by_topic_id: bool, now_ms: int, *, is_bounded: bool
    ) -> FetchSession | None:
        if is_bounded and (not self._has_room(None, len(partitions)) or _has_long_names(partitions)):
            return None
        if not self._maybe_evict(now_ms):
            return None
        session_id = 1 + self._entropy.below(0x7FFF_FFFE)
        while session_id in self._sessions:
            session_id = 1 + self._entropy.below(0x7FFF_FFFE)
        session = FetchSession(session_id, by_topic_id, INITIAL_EPOCH + 1, now_ms, is_bounded=is_bounded)
        session.update(partitions, ())
        self._sessions[session_id] = session
        return session

    def _maybe_evict(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms < KEEP_MS:
            return False
        self.drop(oldest.id)
        return True

    def drop(self, session_id: int) -> None:
        """End the session, if there is one with this id."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()


class SessionWatch:
    """Notes the changes of a session's partitions.

    Of a client's session that has no waiting fetch, a change is noted once, until the partition is read
    again: a thousand sessions may have the same partitions, and an append must not pay for each of them.

    Invariant: registered with the partitions in ``_keys``, each of which the session has; dirty ones may be
    left out unless a fetch waits.
    """

    def __init__(self, session: FetchSession, *, for_replica: bool) -> None:
        self._session = session
        self.for_replica = for_replica
        self.fetch_waiters = FetchWaiters()
        """The waiting fetch of this session; one at most."""
        self._keys: dict[FetchWatchable, PartitionKey] = {}
        self._partitions: dict[PartitionKey, FetchWatchable] = {}
        session.watcher = self

    def watch(self, key: PartitionKey, partition: FetchWatchable) -> None:
        """Watch ``partition``, which ``key`` names now. It is another object than before if its topic was
        created again. A partition that has left the session meanwhile is not watched."""
        if key not in self._session.partitions:
            return
        if self._partitions.get(key) is not partition:
            self.forget(key)
            self._partitions[key] = partition
            self._keys[partition] = key
        partition.fetch_waiters.add(self)

    def begin_to_wait(self) -> None:
        """Register with the dirty partitions, too: a fetch waits for further changes of them."""
        for key in self._session.dirty:
            partition = self._partitions.get(key)
            if partition is not None:
                partition.fetch_waiters.add(self)

    def _note(self, source: FetchWatchable) -> None:
        self._session.mark_dirty(self._keys[source])
        if not (self.for_replica or self.fetch_waiters):
            source.fetch_waiters.discard(self)

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        self._note(source)
        if not byte_count:
            self._session.keep_dirty(self._keys[source])
        for waiter in self.fetch_waiters.all():
            waiter.on_readable(source, byte_count)

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        self._note(source)
        for waiter in self.fetch_waiters.all():
            waiter.on_watermark_advanced(source)

    def complete(self, source: FetchWatchable) -> None:
        self._note(source)
        for waiter in self.fetch_waiters.all():
            waiter.complete(source)

    def forget(self, key: PartitionKey) -> None:
        partition = self._partitions.pop(key, None)
        if partition is not None:
            del self._keys[partition]
            partition.fetch_waiters.discard(self)


def watch_of(session: FetchSession, *, for_replica: bool) -> SessionWatch:
    """Return the session's watch; if it has none yet (at its first fetch), create it.

    ``for_replica``: whether the session's reader is a follower. A watch that exists keeps its own value.
    """
    if isinstance(session.watcher, SessionWatch):
        return session.watcher
    return SessionWatch(session, for_replica=for_replica)
