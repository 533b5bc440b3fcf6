"""ForfeitReplicas, Nilometer's own API: a broker leaves the ISR and ELR of partitions whose records it lost.

Sent by a broker to the controller when it finds a replica's data damaged, or when the replica cannot be used
because its log directory failed. The controller removes the replica from the ISR, from the eligible leader
replicas and from leadership. The response has an outcome for every partition.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from nilometer.wire.api_keys import NilometerApiKey

KEY = NilometerApiKey.FORFEIT_REPLICAS


class ReplicaOfPartition(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: str
    partition: int


class ForfeitReplicasRequest(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    broker_id: int
    broker_epoch: int
    replicas: tuple[ReplicaOfPartition, ...]
    offline: bool = False
    """Whether the replicas are offline until the broker registers again; then they must leave the ISR."""


class ForfeitOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic_id: str
    partition: int
    error_code: int
    message: str = ""


class ForfeitReplicasResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    error_code: int
    """The error if the whole request was rejected."""
    message: str = ""
    outcomes: tuple[ForfeitOutcome, ...] = ()
