"""One call of a shard: the time it happens at, and what it has written, answered and asked for so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from nilometer.coordinators.effects import ActionT, Effects, Producer, RecordT, ReplyT, Token


class Turn(Generic[RecordT, ReplyT, ActionT]):
    """Collects; the shard's parts change their state themselves, before or after they write."""

    __slots__ = ("_actions", "_records", "_replies", "now_ms", "producer", "wall_ms")

    def __init__(self, now_ms: int, wall_ms: int) -> None:
        self.now_ms = now_ms
        """Monotonic: for time-outs."""
        self.wall_ms = wall_ms
        """For what records say."""
        self.producer: Producer | None = None
        """In whose transaction all records of this turn are written."""
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
        """Have ``action`` carried out once all that was written so far is committed."""
        self._actions.append(action)

    def effects(self, waiting: set[Token]) -> Effects[RecordT, ReplyT, ActionT]:
        """What has gathered. Replies to requests that are not in ``waiting`` are left out: their clients
        have gone. Those that are answered now are removed from it."""
        replies = tuple(each for each in self._replies if each[0] in waiting)
        waiting.difference_update(token for token, _ in replies)
        return Effects(tuple(self._records), replies, tuple(self._actions), self.producer)
