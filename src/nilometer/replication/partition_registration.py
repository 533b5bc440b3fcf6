"""The metadata of one partition that its replicas need.

:class:`PartitionRegistration` is a protocol that the metadata layer's own class fulfils.
:class:`Registration` is a plain class for code without a metadata layer (the model check, test scenarios).
Both epochs only increase: the partition epoch with every change, the leader epoch with every new leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

import msgspec

from nilometer.identifiers import (
    FIRST_LEADER_EPOCH,
    FIRST_PARTITION_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
)

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


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`PartitionRegistration` as a plain value."""

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch = FIRST_LEADER_EPOCH
    partition_epoch: PartitionEpoch = FIRST_PARTITION_EPOCH
