"""A leader's verdict on one follower fetch, for one partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from nilometer.replication.epochs import EpochEnd
from nilometer.replication.partition import Offset
from nilometer.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class ServeFetch:
    """Answer with records from the fetch offset up to ``end_offset`` (the leader's LEO, for a follower).

    ``high_watermark`` is the one from before this fetch was counted: the follower learns what it has itself
    moved one fetch later (R-13). Where there is nothing to send, the fetch may wait; it need not if
    ``has_update``, and then carries :meth:`LeaderRole.send_high_watermark`.
    """

    end_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    has_update: bool
    """There are records to send, or the high watermark is above what this follower was last told."""
    went_back: bool = False
    """The same life of the follower had more at an earlier fetch. So this one was late, sent before its
    connection was given up, or the follower lost records: what it really has, its next fetch tells."""


@dataclass(frozen=True, slots=True)
class DivergingFetch:
    """Answer with the diverging epoch and no records. The fetch told nothing of the follower's progress."""

    diverging: EpochEnd


@dataclass(frozen=True, slots=True)
class RefuseFetch:
    error: ErrorCode
    reason: str


FetchVerdict: TypeAlias = ServeFetch | DivergingFetch | RefuseFetch
