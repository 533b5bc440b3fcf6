"""The ISR as a leader sees it: what is committed, and what it has asked the controller for (KIP-497).

One :class:`AlterPartition` is in flight at most. Until its outcome is *known*, the leader assumes the
worst of both: the **maximal ISR** (committed, and being added; a replica being removed is still in) must have
a record before it counts as committed, while ``min.insync.replicas`` is held against the committed ISR alone.

    CommittedIsr ──propose──▶ PendingExpandIsr / PendingShrinkIsr
         ▲                        │
         └── committed by the controller (answer or metadata, whichever is first),
             refused for certain (INELIGIBLE_REPLICA), or overtaken by a newer partition epoch

A request whose outcome is unknown (time-out, disconnect) stays pending and is sent again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nilometer.replication.invariants import check
from nilometer.replication.partition import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch
from nilometer.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """A leader's request to the controller, fenced three ways. ``number`` tells one from the next."""

    number: int
    leader: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    new_isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    """Each member with its broker epoch (KIP-903)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionAnswer:
    """The controller's answer; without an error, the partition as it is now committed."""

    error: ErrorCode = ErrorCode.none
    leader_epoch: LeaderEpoch = -1
    partition_epoch: PartitionEpoch = -1
    isr: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    isr: tuple[BrokerId, ...]
    partition_epoch: PartitionEpoch
    maximal: frozenset[BrokerId]

    @classmethod
    def of(cls, isr: tuple[BrokerId, ...], partition_epoch: PartitionEpoch) -> CommittedIsr:
        return cls(isr, partition_epoch, frozenset(isr))

    @property
    def committed(self) -> CommittedIsr:
        return self


@dataclass(frozen=True, slots=True)
class PendingExpandIsr:
    """Invariant: none of ``added`` is in the committed ISR; all of them are in ``maximal``."""

    committed: CommittedIsr
    added: frozenset[BrokerId]
    request: AlterPartition
    maximal: frozenset[BrokerId]


@dataclass(frozen=True, slots=True)
class PendingShrinkIsr:
    """Invariant: ``removed`` is part of the committed ISR, never all of it and never the leader."""

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
"""Refusals which say that the leader is behind: a newer state is in the metadata log and will arrive."""


class AlterPartitionOutcome(enum.Enum):
    """What an answer means for the request that is pending."""

    STALE = "the request it answers is no longer pending"
    COMMITTED = "a newer state of the partition is committed"
    REFUSED = "the request can never be committed: back to the committed ISR"
    UNRESOLVED = "it may still be committed: assume the worst of both"


class IsrNegotiation:
    """The state machine drawn above: one leader's requests to the controller, under one leader epoch."""

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
        """Ask for ``members`` (all of the new ISR). They count for the high watermark from now on."""
        committed, request = self._request(members)
        added = frozenset(members) - committed.maximal
        self.state = PendingExpandIsr(committed, added, request, committed.maximal | added)
        return request

    def propose_shrink(self, members: Mapping[BrokerId, BrokerEpoch]) -> AlterPartition:
        """Ask for ``members`` alone. Those to be removed count until that is committed."""
        committed, request = self._request(members)
        removed = committed.maximal - frozenset(members)
        self.state = PendingShrinkIsr(committed, removed, request, committed.maximal)
        return request

    def on_answer(self, request: AlterPartition, answer: AlterPartitionAnswer) -> AlterPartitionOutcome:
        """Process an answer. COMMITTED and REFUSED have taken effect on return."""
        state = self.state
        if isinstance(state, CommittedIsr) or state.request != request:
            return AlterPartitionOutcome.STALE
        if answer.error is ErrorCode.none:
            leader, _, leader_epoch = self._leader
            overtaken = answer.leader_epoch != leader_epoch or answer.partition_epoch < self.partition_epoch
            if overtaken or leader not in answer.isr:
                return AlterPartitionOutcome.UNRESOLVED
            self.commit(answer.isr, answer.partition_epoch)
            return AlterPartitionOutcome.COMMITTED
        if answer.error is ErrorCode.ineligible_replica:
            self.withdraw()
            return AlterPartitionOutcome.REFUSED
        self._retry_is_due = answer.error not in AWAIT_METADATA
        return AlterPartitionOutcome.UNRESOLVED

    def commit(self, isr: tuple[BrokerId, ...], partition_epoch: PartitionEpoch) -> None:
        """This ISR is committed; a pending request is thereby decided or overtaken."""
        check(self._leader[0] in isr, "a leader is in the ISR", isr, self._leader)
        check(
            partition_epoch >= self.partition_epoch, "partition epochs only rise", partition_epoch, self.state
        )
        self.state = CommittedIsr.of(isr, partition_epoch)
        self._retry_is_due = False

    def withdraw(self) -> None:
        """The pending request can never be committed."""
        self.state = self.state.committed
        self._retry_is_due = False

    def take_retry(self) -> AlterPartition | None:
        """The request to send again, if that is due."""
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
        assert isinstance(committed, CommittedIsr), "one request in flight"
        check(leader in members, "a leader never removes itself", leader, members)
        number = self._next_number
        self._next_number += 1
        request = AlterPartition(
            number, leader, broker_epoch, leader_epoch, committed.partition_epoch, tuple(members.items())
        )
        return committed, request
