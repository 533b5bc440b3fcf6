"""The effects of a call of a shard: records to append, and replies and actions that wait for them.

Invariants:
- ``records`` are one batch, in order, and the shard's state already contains them;
- a reply may be sent, and an action carried out, once all records appended so far, including these, are
  below the high watermark: so a client never sees a change that a new coordinator would not find in the log;
- a token gets at most one reply, possibly with a later call than the one it came with;
- replies may time out before their records are committed, actions do not: they wait until the shard is
  unloaded. Then the next coordinator must be able to derive the action from the records.
"""

from __future__ import annotations

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
