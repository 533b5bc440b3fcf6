"""The metadata of one partition that its replicas need.

:class:`PartitionRegistration` is a protocol that the metadata layer's own class fulfils.
:class:`Registration` is a plain class for code without a metadata layer (the model check, test scenarios).
Both epochs only increase: the partition epoch with every change, the leader epoch with every new leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

BrokerId: TypeAlias = int
BrokerEpoch: TypeAlias = int
"""Identifies one registration of a broker, which lasts for one session; a later one has a higher number."""
LeaderEpoch: TypeAlias = int
PartitionEpoch: TypeAlias = int
Offset: TypeAlias = int

NO_LEADER: BrokerId = -1
NO_EPOCH: LeaderEpoch = -1
UNKNOWN_OFFSET: Offset = -1

EligibleBrokers: TypeAlias = Mapping[BrokerId, BrokerEpoch]
"""The broker epoch of every broker that may be in an ISR: registered, not fenced, not shutting down.

Invariant, kept by the metadata layer: a broker that was removed returns only with a higher broker epoch, so a
rejected broker epoch stays rejected.
"""


class PartitionRegistration(Protocol):
    @property
    def replicas(self) -> tuple[BrokerId, ...]:
        """The assigned replicas (AR) in order of preference for leadership."""
        ...

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The committed in-sync replicas. May include brokers that are no longer assigned (KAFKA-9672)."""
        ...

    @property
    def leader(self) -> BrokerId: ...
    @property
    def leader_epoch(self) -> LeaderEpoch: ...
    @property
    def partition_epoch(self) -> PartitionEpoch: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A :class:`PartitionRegistration` as a plain value."""

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch = 0
    partition_epoch: PartitionEpoch = 0
