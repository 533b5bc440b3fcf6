"""The client's side of a share session with one broker (KIP-932): epochs, partitions, acknowledgements. Pure.

A request is planned, sent, and its outcome reported, in this order. Requests of a session may overlap if they
are sent on one connection in the order of their plans: each has the next epoch, and the broker handles them
in turn.

Invariants:

- A request that begins a session (epoch 0) takes no acknowledgements along.
- Each acknowledgement has exactly one outcome, unless a later one of the same record replaces it before it
  was sent: then that one's outcome is its own.
- The answer to a request of an earlier session changes nothing of the present one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from nilometer.share.partition_events import AcknowledgeType, AcquireMode
from nilometer.share.sessions import EPOCH_MAX, FINAL_EPOCH, INITIAL_EPOCH
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode

ACKNOWLEDGEMENTS_MAX: Final = 5_000
"""Offsets in one request; further ones wait for the next."""
FETCH_BYTES_MAX: Final = 16 << 20
RENEWALS_SINCE: Final = 2
"""The version of ShareFetch and ShareAcknowledge with renewals (KIP-1222) and with limits by record
(KIP-1206)."""


class SharePartition(NamedTuple):
    topic_id: UUID
    partition: int


class AcknowledgedRecord(NamedTuple):
    partition: SharePartition
    offset: int


class Outcome(NamedTuple):
    """What became of an acknowledgement: NONE, or the error with which the broker refused it."""

    record: AcknowledgedRecord
    kind: AcknowledgeType
    error: ErrorCode


Acknowledgements = dict[SharePartition, dict[int, AcknowledgeType]]
"""By offset."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """One request of a session."""

    session: int
    """Which one, counted from 1."""
    epoch: int
    add: tuple[SharePartition, ...] = ()
    forget: tuple[SharePartition, ...] = ()
    acknowledgements: Acknowledgements = field(
        default_factory=dict[SharePartition, dict[int, AcknowledgeType]]
    )

    @property
    def renews(self) -> bool:
        return any(AcknowledgeType.RENEW in offsets.values() for offsets in self.acknowledgements.values())

    def outcomes(self, error: ErrorCode) -> Iterator[Outcome]:
        """Return one outcome for all that this request acknowledges."""
        for partition, offsets in self.acknowledgements.items():
            for offset, kind in offsets.items():
                yield Outcome(AcknowledgedRecord(partition, offset), kind, error)


class ShareSession:
    """The session with one broker. The caller sends what is planned, in that order."""

    def __init__(self) -> None:
        self._session = 1
        self._epoch = INITIAL_EPOCH
        self._is_beginning = False
        """Whether the request that begins the session is in flight: others wait for its answer."""
        self._remembered: dict[SharePartition, None] = {}
        self._waiting: Acknowledgements = {}

    @property
    def number(self) -> int:
        """Which session it is, counted from 1: what a member acquired in an earlier one, brokers release."""
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether the broker knows the session, as far as this side knows."""
        return self._epoch != INITIAL_EPOCH and not self._is_beginning

    @property
    def can_fetch(self) -> bool:
        return not self._is_beginning

    @property
    def partitions(self) -> list[SharePartition]:
        return list(self._remembered)

    @property
    def has_acknowledgements(self) -> bool:
        return bool(self._waiting)

    @property
    def has_renewals(self) -> bool:
        return any(AcknowledgeType.RENEW in offsets.values() for offsets in self._waiting.values())

    def acknowledge(self, record: AcknowledgedRecord, kind: AcknowledgeType) -> None:
        """Have the next request take an acknowledgement along. It replaces one that still waits."""
        self._waiting.setdefault(record.partition, {})[record.offset] = kind

    # --- plans

    def plan_fetch(self, wanted: Iterable[SharePartition]) -> SessionPlan:
        """Return the next ShareFetch. It takes acknowledgements along if there is a session, and none of them
        is a renewal, with which nothing can be fetched."""
        if self._epoch == INITIAL_EPOCH:
            self._remembered = dict.fromkeys(wanted)
            self._is_beginning = True
            return SessionPlan(self._session, self._next_epoch(), tuple(self._remembered))
        asked = dict.fromkeys(wanted)
        add = tuple(one for one in asked if one not in self._remembered)
        forget = tuple(one for one in self._remembered if one not in asked)
        self._remembered = asked
        taken: Acknowledgements = {} if self.has_renewals else self._take()
        return SessionPlan(self._session, self._next_epoch(), add, forget, taken)

    def plan_acknowledge(self) -> SessionPlan:
        """Return the next ShareAcknowledge, of a session that is open."""
        taken = self._take()
        return SessionPlan(self._session, self._next_epoch(), acknowledgements=taken)

    def plan_end(self) -> SessionPlan:
        """Return the ShareAcknowledge that ends a session that is open: the broker releases what this member
        holds of it."""
        plan = SessionPlan(self._session, FINAL_EPOCH, acknowledgements=self._take())
        self._begin_again()
        return plan

    def _take(self) -> Acknowledgements:
        taken: Acknowledgements = {}
        left = ACKNOWLEDGEMENTS_MAX
        for partition in list(self._waiting):
            if not left:
                break
            offsets = self._waiting.pop(partition)
            if len(offsets) > left:
                ordered = sorted(offsets)
                self._waiting[partition] = {offset: offsets[offset] for offset in ordered[left:]}
                offsets = {offset: offsets[offset] for offset in ordered[:left]}
            taken[partition] = offsets
            left -= len(offsets)
        return taken

    def _next_epoch(self) -> int:
        epoch = self._epoch
        self._epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return epoch

    def _begin_again(self) -> None:
        self._session += 1
        self._epoch, self._is_beginning = INITIAL_EPOCH, False
        self._remembered = {}

    # --- outcomes

    def on_answer(
        self, plan: SessionPlan, code: ErrorCode, errors: Mapping[SharePartition, ErrorCode]
    ) -> list[Outcome]:
        """Handle an answer; ``errors`` has the acknowledgement error of partitions that the answer names.

        Returns what became of the request's acknowledgements. After an error of the whole request the session
        is begun again.
        """
        is_present = plan.session == self._session
        if is_present and plan.epoch == INITIAL_EPOCH:
            self._is_beginning = False
        if code is not ErrorCode.none:
            if is_present:
                self._begin_again()
            return list(plan.outcomes(code))
        return [
            Outcome(one.record, one.kind, errors.get(one.record.partition, ErrorCode.none))
            for one in plan.outcomes(ErrorCode.none)
        ]

    def on_lost(self, plan: SessionPlan, code: ErrorCode) -> list[Outcome]:
        """Handle that a request has no answer: the broker may have handled it, or not. What waits is lost
        with the session, since a broker releases what a member holds when its connection ends."""
        outcomes = list(plan.outcomes(code))
        if plan.session == self._session:
            outcomes += self.drop(code)
        return outcomes

    def drop(self, code: ErrorCode) -> list[Outcome]:
        """Begin the session again, without what waits to be acknowledged."""
        plan = SessionPlan(self._session, self._epoch, acknowledgements=self._waiting)
        self._waiting = {}
        self._begin_again()
        return list(plan.outcomes(code))


# The messages.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareFetchLimits:
    max_records: int
    max_wait_ms: int
    max_bytes: int = FETCH_BYTES_MAX


class AcquiredRange(NamedTuple):
    first_offset: int
    last_offset: int
    delivery_count: int


class FetchedPartition(NamedTuple):
    """What a ShareFetch response has of one partition."""

    partition: SharePartition
    error: ErrorCode
    records: bytes
    acquired: tuple[AcquiredRange, ...]


def share_fetch_request(
    api: Api, group_id: str, member_id: str, plan: SessionPlan, limits: ShareFetchLimits
) -> Message:
    parts: dict[SharePartition, dict[int, AcknowledgeType]] = {key: {} for key in plan.add}
    parts |= plan.acknowledgements
    own: dict[str, object] = {}
    if api.version >= RENEWALS_SINCE:
        own = {"share_acquire_mode": AcquireMode.RECORD_LIMIT, "is_renew_ack": False}
    gone: dict[UUID, list[int]] = {}
    for topic_id, index in plan.forget:
        gone.setdefault(topic_id, []).append(index)
    return api.request(
        group_id=group_id,
        member_id=member_id,
        share_session_epoch=plan.epoch,
        max_wait=timedelta(milliseconds=limits.max_wait_ms),
        min_bytes=1,
        max_bytes=limits.max_bytes,
        max_records=limits.max_records,
        batch_size=limits.max_records,
        topics=_topics(api, "FetchTopic", "FetchPartition", parts),
        forgotten_topics_data=tuple(
            api.make_request("ForgottenTopic", topic_id=topic_id, partitions=tuple(indexes))
            for topic_id, indexes in gone.items()
        ),
        **own,
    )


def share_acknowledge_request(api: Api, group_id: str, member_id: str, plan: SessionPlan) -> Message:
    own: dict[str, object] = {"is_renew_ack": plan.renews} if api.version >= RENEWALS_SINCE else {}
    return api.request(
        group_id=group_id,
        member_id=member_id,
        share_session_epoch=plan.epoch,
        topics=_topics(api, "AcknowledgeTopic", "AcknowledgePartition", plan.acknowledgements),
        **own,
    )


def _topics(
    api: Api,
    topic_type: str,
    partition_type: str,
    parts: Mapping[SharePartition, Mapping[int, AcknowledgeType]],
) -> tuple[Message, ...]:
    by_topic: dict[UUID, list[Message]] = {}
    for (topic_id, index), offsets in parts.items():
        batches = tuple(
            api.make_request(
                "AcknowledgementBatch", first_offset=first, last_offset=last, acknowledge_types=(int(kind),)
            )
            for first, last, kind in runs(offsets)
        )
        part = api.make_request(partition_type, partition_index=index, acknowledgement_batches=batches)
        by_topic.setdefault(topic_id, []).append(part)
    return tuple(
        api.make_request(topic_type, topic_id=topic_id, partitions=tuple(each))
        for topic_id, each in by_topic.items()
    )


def runs(offsets: Mapping[int, AcknowledgeType]) -> Iterator[tuple[int, int, AcknowledgeType]]:
    """Yield first offset, last offset and type of the runs of neighbours with one type, in order."""
    first = last = -1
    kind: AcknowledgeType | None = None
    for offset in sorted(offsets):
        if kind is not None and offset == last + 1 and offsets[offset] is kind:
            last = offset
            continue
        if kind is not None:
            yield first, last, kind
        first = last = offset
        kind = offsets[offset]
    if kind is not None:
        yield first, last, kind


def read_share_fetch(response: Message) -> tuple[list[FetchedPartition], dict[SharePartition, ErrorCode]]:
    """Return what was fetched, and the error of the acknowledgements of each partition."""
    fetched: list[FetchedPartition] = []
    errors: dict[SharePartition, ErrorCode] = {}
    for topic in response.responses:
        for part in topic.partitions:
            key = SharePartition(topic.topic_id, part.partition_index)
            errors[key] = ErrorCode(part.acknowledge_error_code)
            acquired = tuple(
                AcquiredRange(one.first_offset, one.last_offset, one.delivery_count)
                for one in part.acquired_records
            )
            fetched.append(FetchedPartition(key, part.error_code, part.records or b"", acquired))
    return fetched, errors


def read_share_acknowledge(response: Message) -> dict[SharePartition, ErrorCode]:
    return {
        SharePartition(topic.topic_id, part.partition_index): part.error_code
        for topic in response.responses
        for part in topic.partitions
    }
