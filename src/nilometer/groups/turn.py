"""One call of a shard: the time it happens at, and what it has written and answered so far."""

from __future__ import annotations

from collections.abc import Iterable

from nilometer.groups.effects import Effects, Token
from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import Reply


class Turn:
    """Collects; the shard's parts change their state themselves, before or after they write."""

    __slots__ = ("_records", "_replies", "now_ms", "wall_ms")

    def __init__(self, now_ms: int, wall_ms: int) -> None:
        self.now_ms = now_ms
        """Monotonic: for time-outs."""
        self.wall_ms = wall_ms
        """For what records say."""
        self._records: list[CoordinatorRecord] = []
        self._replies: list[tuple[Token, Reply]] = []

    @property
    def records_count(self) -> int:
        return len(self._records)

    def write(self, record: CoordinatorRecord) -> None:
        self._records.append(record)

    def write_all(self, records: Iterable[CoordinatorRecord]) -> None:
        self._records.extend(records)

    def reply(self, token: Token, reply: Reply) -> None:
        self._replies.append((token, reply))

    def effects(self) -> Effects:
        return Effects(tuple(self._records), tuple(self._replies))
