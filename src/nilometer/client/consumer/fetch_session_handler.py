"""The consumer's side of a fetch session (KIP-227): a request names only partitions that changed. Pure.

In a session the broker remembers the requested partitions and their fetch offsets. The first request is full;
later ones name the partitions that are new, whose offset changed, or that the broker must forget.

Invariant: ``_remembered`` are the partitions of the broker's session, if it processed the last request. After
a session error or a failed request that is unknown: the next request is full again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.errors import ErrorCode

NO_SESSION = 0
FULL_FETCH_EPOCH = 0
EPOCH_MAX = 2**31 - 1

SESSION_ERRORS = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.unknown_topic_id,
    }
)


@dataclass(frozen=True, slots=True)
class WantedPartition:
    topic_id: UUID | None
    fetch_offset: int
    leader_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchPlan:
    session_id: int
    session_epoch: int
    send: Mapping[TopicPartition, WantedPartition]
    forget: Mapping[TopicPartition, UUID | None]
    wanted: Mapping[TopicPartition, WantedPartition]
    """All partitions of this fetch, named in the request or remembered by the broker."""


class FetchSessionHandler:
    """The fetch session with one broker."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FULL_FETCH_EPOCH
        self._remembered: dict[TopicPartition, WantedPartition] = {}

    def plan(self, wanted: Mapping[TopicPartition, WantedPartition]) -> FetchPlan:
        """Return the plan of the next request, which the caller must send.

        The caller then reports its outcome by :meth:`on_answer` or :meth:`on_disconnected`.
        """
        remembered = self._remembered
        if any(
            part in remembered and remembered[part].topic_id != one.topic_id for part, one in wanted.items()
        ):
            self.reset()  # a topic was deleted and created again, so its name has another id
        if self._epoch == FULL_FETCH_EPOCH:
            send, forget = dict(wanted), {}
        else:
            send = {part: one for part, one in wanted.items() if remembered.get(part) != one}
            forget = {part: one.topic_id for part, one in remembered.items() if part not in wanted}
        self._remembered = dict(wanted)
        return FetchPlan(self._session_id, self._epoch, send, forget, dict(wanted))

    def on_answer(self, code: ErrorCode, session_id: int) -> None:
        if code != ErrorCode.none:
            self.reset()
        elif session_id == NO_SESSION:
            self._session_id, self._epoch, self._remembered = NO_SESSION, FULL_FETCH_EPOCH, {}
        else:
            self._session_id = session_id
            self._epoch = self._epoch % EPOCH_MAX + 1

    def reset(self) -> None:
        """Open a new session with the next request, which also makes the broker drop the old one."""
        self._epoch = FULL_FETCH_EPOCH
        self._remembered = {}

    def on_disconnected(self) -> None:
        """Open a new session: it is unknown whether the broker processed the request."""
        self.reset()
