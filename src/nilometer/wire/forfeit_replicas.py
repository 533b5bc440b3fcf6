"""ForfeitReplicas, Nilometer's own API: a broker gives up its place in partitions whose records it lost.

Between brokers: damage at rest was found in a replica, and the controller is asked to take it out of the ISR
and of the eligible replicas, and out of office if it leads. Or the replica cannot be used any more at all, as
its log directory failed. Every partition is answered for itself.
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
    """They cannot be used until the broker registers again; nothing keeps their places."""


class ForfeitOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topic_id: str
    partition: int
    error_code: int
    message: str = ""


class ForfeitReplicasResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    error_code: int
    """Why nothing was decided at all."""
    message: str = ""
    outcomes: tuple[ForfeitOutcome, ...] = ()
