"""ForfeitReplicas, Nilometer's own API: a broker leaves the ISR and ELR of partitions whose records it lost.

Between brokers: damage was found on the disk of a replica, and the controller is asked to remove it from the
ISR and the eligible leader replicas, and from the leadership. Or the replica cannot be used at all any more,
since its log directory failed. Every partition gets its own answer.
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
    """They cannot be used until the broker registers again, and leave the ISR in any case."""


class ForfeitOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic_id: str
    partition: int
    error_code: int
    message: str = ""


class ForfeitReplicasResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    error_code: int
    """The error if the whole request was refused."""
    message: str = ""
    outcomes: tuple[ForfeitOutcome, ...] = ()
