"""The consumer's side of fetch sessions (KIP-227): only what changed is named in a request. Pure.

A session is one broker's memory of which partitions are asked for and from where. The first request is
full; the next ones name partitions whose offset moved, that are new, or that are to be forgotten.

Invariant: ``_remembered`` is what the broker has in mind, provided that it took the last request. An error
of the session itself means that it did not: the next request is full again.
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
    """All that this fetch asks for, named in the request or remembered."""


class FetchSession:
    """With one broker."""

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FULL_FETCH_EPOCH
        self._remembered: dict[TopicPartition, WantedPartition] = {}

    def plan(self, wanted: Mapping[TopicPartition, WantedPartition]) -> FetchPlan:
        """The next request. It is taken as sent: an answer, or a failure, must follow."""
        remembered = self._remembered
        if any(
            part in remembered and remembered[part].topic_id != one.topic_id for part, one in wanted.items()
        ):
            self.reset()  # a topic was deleted and created again: names and ids are mixed up
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
        """The broker may or may not have processed the request: open a new session."""
        self.reset()
