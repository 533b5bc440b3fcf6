"""A leader's verdicts: on one follower fetch, and on one produce with acks=all."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias

from nilometer.replication.epochs import EpochEnd
from nilometer.replication.partition import Offset
from nilometer.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class ServeFetch:
    """Answer with records from the fetch offset up to ``end_offset`` (the leader's LEO, for a follower).

    ``high_watermark`` is the one from before this fetch was counted: an advance caused by this very fetch
    reaches the follower one fetch later (R-13). Where there are no records to send, the fetch may wait; with
    ``has_update`` it is answered soon, with :meth:`LeaderRole.send_high_watermark`.
    """

    end_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    has_update: bool
    """There are records to send, or the high watermark is above the one last sent to this follower."""
    went_back: bool = False
    """An earlier fetch under the same broker epoch asked for a higher offset. So this fetch is late (sent
    before its connection was given up), or the follower lost records: its next fetch shows what it has."""


@dataclass(frozen=True, slots=True)
class DivergingFetch:
    """Answer with the diverging epoch and no records. The fetch says nothing about the follower's
    progress."""

    diverging: EpochEnd


@dataclass(frozen=True, slots=True)
class RefuseFetch:
    error: ErrorCode
    reason: str


FetchVerdict: TypeAlias = ServeFetch | DivergingFetch | RefuseFetch


class Pending(enum.Enum):
    """The type of :data:`PENDING`."""

    PENDING = enum.auto()


PENDING: Final = Pending.PENDING
"""Some replica in sync has yet to fetch the records."""

AcksAllOutcome: TypeAlias = ErrorCode | Pending
"""What a produce with acks=all is answered; or that it has to wait."""
