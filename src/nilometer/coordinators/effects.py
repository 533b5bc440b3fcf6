"""What a shard asks its shell to do: records to append, and replies and actions that wait for them.

Invariants:
- ``records`` are one batch, in order, and the shard's state already contains them;
- a reply may be given, and an action carried out, once everything appended so far, these records included, is
  below the high watermark: so nothing leaves the broker that a new coordinator would not find in the log;
- a token is answered at most once, and possibly by a later call than the one it came with;
- replies may time out before their records are committed, actions do not: they wait until the shard is
  unloaded. An action is then the next coordinator's, which must be able to derive it from the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, NewType, TypeVar

Token = NewType("Token", int)
"""Names a request that waits for its reply. The shell makes it up; the shard only hands it back."""

RecordT = TypeVar("RecordT")
ReplyT = TypeVar("ReplyT")
ActionT = TypeVar("ActionT")


class Producer(NamedTuple):
    """In whose transaction records are written."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Effects(Generic[RecordT, ReplyT, ActionT]):
    records: tuple[RecordT, ...] = ()
    replies: tuple[tuple[Token, ReplyT], ...] = ()
    actions: tuple[ActionT, ...] = ()
    """Behind the replies, in order."""
    producer: Producer | None = None
    """The records count once its transaction is committed; None: as soon as they are."""
