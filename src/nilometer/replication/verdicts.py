"""A leader's decisions: how to respond to a follower's fetch, and to a produce with acks=all."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from nilometer.identifiers import Offset
from nilometer.replication.epochs import EpochEnd
from nilometer.wire.errors import ErrorCode


class ServeFetch(NamedTuple):
    """Respond with records from the fetch offset up to ``end_offset`` (the leader's log end offset).

    ``high_watermark`` is the value before this fetch was processed: an advance caused by this fetch reaches
    the follower one fetch later (R-13). If there are no records to send, the fetch may wait; with
    ``has_update`` the response is sent soon, with :meth:`LeaderRole.send_high_watermark`.
    """

    end_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    has_update: bool
    """Whether there are records to send, or a high watermark above the one last sent to this follower."""
    went_back: bool = False
    """Whether an earlier fetch with the same broker epoch had a higher offset. Then this fetch is late (from
    a connection abandoned since), or the follower lost records; its next fetch shows which."""


class DivergingFetch(msgspec.Struct, frozen=True):
    """Respond with the diverging epoch and no records. The fetch offset is not an acknowledgement."""

    diverging: EpochEnd


class RejectFetch(msgspec.Struct, frozen=True):
    """Respond with an error; ``reason`` describes the fetch."""

    error: ErrorCode
    reason: str


FetchVerdict: TypeAlias = ServeFetch | DivergingFetch | RejectFetch


class Pending(enum.Enum):
    """The type of :data:`PENDING`."""

    PENDING = enum.auto()


PENDING: Final = Pending.PENDING
"""The records are not committed yet: a replica that counts has not fetched them, or too few are in sync."""

AcksAllOutcome: TypeAlias = ErrorCode | Pending
"""The error code for a produce with acks=all, or PENDING."""
