"""A *turn*: one call of a shard, with its time, and the records, replies and actions collected so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from nilometer.coordinators.effects import ActionT, Effects, Producer, RecordT, ReplyT, Token


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
