"""What the cluster has agreed on about one partition, as far as its replicas must know.

:class:`PartitionRegistration` is a protocol: the metadata layer's own value fits it as it is.
:class:`Registration` is the plain value for code without a metadata layer (the model check, test scenarios).
Both epochs only rise: the partition epoch with every change, the leader epoch with every change of leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

BrokerId: TypeAlias = int
BrokerEpoch: TypeAlias = int
"""Identifies one incarnation of a broker; a later incarnation has a higher number."""
LeaderEpoch: TypeAlias = int
PartitionEpoch: TypeAlias = int
Offset: TypeAlias = int

NO_LEADER: BrokerId = -1
NO_EPOCH: LeaderEpoch = -1
UNKNOWN_OFFSET: Offset = -1

EligibleBrokers: TypeAlias = Mapping[BrokerId, BrokerEpoch]
"""The broker epoch of every broker that may be in an ISR: registered, not fenced, not shutting down.

Invariant the metadata layer keeps: a broker that drops out returns with a higher broker epoch only, so a
refusal of one broker epoch stays valid.
"""


class PartitionRegistration(Protocol):
    @property
    def replicas(self) -> tuple[BrokerId, ...]:
        """The assignment (AR) in order of preference."""
        ...

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """Committed in-sync replicas. May hold brokers that are no longer assigned (KAFKA-9672)."""
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
