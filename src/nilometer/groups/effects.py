"""What a group shard asks its shell to do: records to append, and the replies that wait for them.

Invariants:
- ``records`` are one batch, in order, and the shard's state already contains them;
- a reply may be given once everything appended so far, these records included, is below the high watermark:
  so nobody ever hears of a state that a new coordinator would not find;
- a token is answered at most once, and possibly by a later call than the one it came with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NewType

from nilometer.groups.records import CoordinatorRecord
from nilometer.groups.requests import Reply

Token = NewType("Token", int)
"""Names a request that waits for its reply. The shell makes it up; the shard only hands it back."""


@dataclass(frozen=True, slots=True)
class Effects:
    records: tuple[CoordinatorRecord, ...] = ()
    replies: tuple[tuple[Token, Reply], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.records or self.replies)

    def then(self, later: Effects) -> Effects:
        """Both, in this order."""
        if not later:
            return self
        if not self:
            return later
        return Effects(self.records + later.records, self.replies + later.replies)


NOTHING: Final = Effects()


def records_only(records: Iterable[CoordinatorRecord]) -> Effects:
    return Effects(records=tuple(records))


def reply(token: Token, answer: Reply) -> Effects:
    return Effects(replies=((token, answer),))
