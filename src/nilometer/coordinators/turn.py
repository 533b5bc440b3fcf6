"""A *turn*: one call of a shard, with its time, and the records, replies and actions collected so far.

Its effects are records to append, and replies and actions that wait for them. A coordinator's log has entries
besides plain records: a transaction's records, and its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, NewType, TypeVar

import msgspec

Token = NewType("Token", int)
"""Identifies a request that waits for its reply. The shell creates it; the shard returns it with the
reply."""

RecordT = TypeVar("RecordT")
ReplyT = TypeVar("ReplyT")
ActionT = TypeVar("ActionT")


class Producer(NamedTuple):
    """The producer in whose transaction records are written."""

    producer_id: int
    producer_epoch: int


class Effects(msgspec.Struct, Generic[RecordT, ReplyT, ActionT], frozen=True):
    records: tuple[RecordT, ...] = ()
    replies: tuple[tuple[Token, ReplyT], ...] = ()
    actions: tuple[ActionT, ...] = ()
    """To be carried out after the replies, in order."""
    producer: Producer | None = None
    """The records are part of this producer's transaction, and count once it is committed. None: the records
    are not transactional."""


class TransactionalRecord(msgspec.Struct, Generic[RecordT], frozen=True):
    """A record that counts once the producer's transaction is committed."""

    producer_id: int
    record: RecordT


class TransactionEnd(msgspec.Struct, frozen=True):
    producer_id: int
    committed: bool


class Turn(Generic[RecordT, ReplyT, ActionT]):
    """Collects a call's effects. The shard changes its state itself, before or after it writes a record."""

    __slots__ = ("_actions", "_records", "_replies", "now_ms", "producer", "wall_ms")

    def __init__(self, now_ms: int, wall_ms: int) -> None:
        self.now_ms = now_ms
        """Monotonic time, for timers."""
        self.wall_ms = wall_ms
        """Time since the epoch, for records."""
        self.producer: Producer | None = None
        """The producer in whose transaction all records of this turn are written; None: in none."""
        self._records: list[RecordT] = []
        self._replies: list[tuple[Token, ReplyT]] = []
        self._actions: list[ActionT] = []

    @property
    def records_count(self) -> int:
        return len(self._records)

    def write(self, record: RecordT) -> None:
        self._records.append(record)

    def write_all(self, records: Iterable[RecordT]) -> None:
        self._records.extend(records)

    def reply(self, token: Token, reply: ReplyT) -> None:
        self._replies.append((token, reply))

    def act(self, action: ActionT) -> None:
        """Add an action, to be carried out once all records written so far are committed."""
        self._actions.append(action)

    def effects(self, waiting: set[Token]) -> Effects[RecordT, ReplyT, ActionT]:
        """Return the collected effects.

        Replies to requests that are not in ``waiting`` are left out, since their clients have disconnected.
        The requests that get a reply now are removed from ``waiting``.
        """
        replies = tuple(each for each in self._replies if each[0] in waiting)
        waiting.difference_update(token for token, _ in replies)
        return Effects(tuple(self._records), replies, tuple(self._actions), self.producer)
