"""The leader's state of the ISR: the committed one, and the one it requested from the controller (KIP-497).

At most one :class:`AlterPartition` is in flight. Until its outcome is *known*, the leader must be safe in
both cases: a record counts as committed only if the whole **maximal ISR** has it (the committed ISR and the
replicas being added; a replica being removed is still in it), while ``min.insync.replicas`` is compared with
the committed ISR only.

    CommittedIsr ──propose──▶ PendingExpandIsr / PendingShrinkIsr
         ▲                        │
         └── committed by the controller (response or metadata, whichever is first),
             rejected (INELIGIBLE_REPLICA), or superseded by a newer partition epoch

A request whose outcome is unknown (time-out, disconnect) stays pending and is sent again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from nilometer.identifiers import (
    NO_LEADER_EPOCH,
    NO_PARTITION_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
)
from nilometer.invariants import InvariantBroken, check
from nilometer.wire.errors import ErrorCode


class AlterPartition(msgspec.Struct, frozen=True):
    """A leader's request to change the ISR. ``number`` identifies it; the three epochs fence it."""

    number: int
    leader: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    new_isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    """All members of the proposed ISR, each with its broker epoch (KIP-903)."""


class AlterPartitionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's response; without an error, the partition's state as now committed."""

    error: ErrorCode = ErrorCode.none
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    partition_epoch: PartitionEpoch = NO_PARTITION_EPOCH
    isr: tuple[BrokerId, ...] = ()


class CommittedIsr(msgspec.Struct, frozen=True):
    """No request is pending. ``maximal`` has the members of ``isr``."""

    isr: tuple[BrokerId, ...]
    partition_epoch: PartitionEpoch
    maximal: frozenset[BrokerId]

    @classmethod
    def of(cls, isr: tuple[BrokerId, ...], partition_epoch: PartitionEpoch) -> CommittedIsr:
        return cls(isr, partition_epoch, frozenset(isr))

    @property
    def committed(self) -> CommittedIsr:
        return self


class PendingExpandIsr(msgspec.Struct, frozen=True):
    """A request to add replicas is pending.

    None of ``added`` is in the committed ISR; all are in ``maximal``.
    """

    committed: CommittedIsr
    added: frozenset[BrokerId]
    request: AlterPartition
    maximal: frozenset[BrokerId]


class PendingShrinkIsr(msgspec.Struct, frozen=True):
    """A request to remove replicas is pending.

    All of ``removed`` are in the committed ISR, not the leader.
    """

    committed: CommittedIsr
    removed: frozenset[BrokerId]
    request: AlterPartition
    maximal: frozenset[BrokerId]


IsrState: TypeAlias = CommittedIsr | PendingExpandIsr | PendingShrinkIsr

AWAIT_METADATA = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.new_leader_elected,
        ErrorCode.stale_broker_epoch,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.invalid_request,
    }
)
"""Errors that mean that the leader's metadata is outdated: do not retry, a newer state will arrive."""


class AlterPartitionOutcome(enum.Enum):
    """The effect of a response on the pending request."""

    STALE = "the request it answers is no longer pending"
    COMMITTED = "a newer state of the partition is committed"
    REFUSED = "the request can never be committed: back to the committed ISR"
    UNRESOLVED = "it may still be committed: assume the worst of both"


class IsrNegotiation:
    """The state machine drawn above: one leader's requests to the controller in one leader epoch."""

    __slots__ = ("_leader", "_next_number", "_retry_is_due", "state")

    def __init__(
        self,
        committed: CommittedIsr,
        *,
        leader: BrokerId,
        broker_epoch: BrokerEpoch,
        leader_epoch: LeaderEpoch,
    ) -> None:
        self.state: IsrState = committed
        self._leader = (leader, broker_epoch, leader_epoch)
        self._next_number = 1
        self._retry_is_due = False

    @property
    def is_retry_due(self) -> bool:
        return self._retry_is_due

    def propose_expand(self, members: Mapping[BrokerId, BrokerEpoch]) -> AlterPartition:
        """Return a request for the ISR ``members``, all with broker epochs, which adds replicas.

        The added replicas count for the high watermark from now on.
        """
        committed, request = self._request(members)
        added = frozenset(members) - committed.maximal
        self.state = PendingExpandIsr(committed, added, request, committed.maximal | added)
        return request

    def propose_shrink(self, members: Mapping[BrokerId, BrokerEpoch]) -> AlterPartition:
        """Return a request for the ISR ``members``, all with broker epochs, which removes replicas.

        The removed replicas count for the high watermark until the request is committed.
        """
        committed, request = self._request(members)
        removed = committed.maximal - frozenset(members)
        self.state = PendingShrinkIsr(committed, removed, request, committed.maximal)
        return request

    def on_answer(self, request: AlterPartition, response: AlterPartitionResponse) -> AlterPartitionOutcome:
        """Process the response to ``request``; return its effect, which is already applied."""
        state = self.state
        if isinstance(state, CommittedIsr) or state.request != request:
            return AlterPartitionOutcome.STALE
        if response.error is ErrorCode.none:
            leader, _, leader_epoch = self._leader
            overtaken = (
                response.leader_epoch != leader_epoch or response.partition_epoch < self.partition_epoch
            )
            if overtaken or leader not in response.isr:
                return AlterPartitionOutcome.UNRESOLVED
            self.commit(response.isr, response.partition_epoch)
            return AlterPartitionOutcome.COMMITTED
        if response.error is ErrorCode.ineligible_replica:
            self.withdraw()
            return AlterPartitionOutcome.REFUSED
        self._retry_is_due = response.error not in AWAIT_METADATA
        return AlterPartitionOutcome.UNRESOLVED

    def commit(self, isr: tuple[BrokerId, ...], partition_epoch: PartitionEpoch) -> None:
        """Set the committed ISR; a pending request is thereby committed or superseded."""
        check(self._leader[0] in isr, "a leader is in the ISR", isr, self._leader)
        check(
            partition_epoch >= self.partition_epoch, "partition epochs only rise", partition_epoch, self.state
        )
        self.state = CommittedIsr.of(isr, partition_epoch)
        self._retry_is_due = False

    def withdraw(self) -> None:
        """Return to the committed ISR, because the pending request can never be committed."""
        self.state = self.state.committed
        self._retry_is_due = False

    def take_retry(self) -> AlterPartition | None:
        """Return the pending request if it must be sent again, else None; at most once per failure."""
        if isinstance(self.state, CommittedIsr) or not self._retry_is_due:
            return None
        self._retry_is_due = False
        return self.state.request

    @property
    def partition_epoch(self) -> PartitionEpoch:
        return self.state.committed.partition_epoch

    def _request(self, members: Mapping[BrokerId, BrokerEpoch]) -> tuple[CommittedIsr, AlterPartition]:
        committed = self.state
        leader, broker_epoch, leader_epoch = self._leader
        if not isinstance(committed, CommittedIsr):
            raise InvariantBroken("one request in flight", (committed.request,))
        check(leader in members, "a leader never removes itself", leader, members)
        number = self._next_number
        self._next_number += 1
        request = AlterPartition(
            number, leader, broker_epoch, leader_epoch, committed.partition_epoch, tuple(members.items())
        )
        return committed, request
