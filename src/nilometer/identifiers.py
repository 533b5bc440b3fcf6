"""Distinct types for ids and epochs, and the text form of Kafka's UUIDs.

The only definition of each: every layer may import this module, and it imports none.

A broker id, a leader epoch and a partition epoch are all integers; to confuse them could lose data. With
``NewType`` the type checker finds such mistakes, without cost at run time.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from typing import NamedTuple, NewType, TypeAlias

BrokerId = NewType("BrokerId", int)
ControllerEpoch = NewType("ControllerEpoch", int)
"""Increases by one with every entry that starts a controller's term."""
BrokerEpoch = NewType("BrokerEpoch", int)
"""The number of the metadata entry that registered this incarnation of the broker."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Increases with every change of a partition's leader, and to invalidate earlier fetches."""
PartitionEpoch = NewType("PartitionEpoch", int)
"""Increases with every change of a partition's state."""
EntryNumber = NewType("EntryNumber", int)
"""The index of an entry in the metadata log; the first is 0."""
Offset: TypeAlias = int
"""The position of a record in its partition. It is calculated with everywhere, so it stays an ``int``."""
Incarnation = NewType("Incarnation", str)
"""The unique, random id of one session of a broker process."""
TopicId = NewType("TopicId", str)
"""A topic's UUID in Kafka's text form."""

NO_LEADER = BrokerId(-1)
FIRST_LEADER_EPOCH = LeaderEpoch(0)
NO_LEADER_EPOCH = LeaderEpoch(-1)
FIRST_PARTITION_EPOCH = PartitionEpoch(0)
NO_PARTITION_EPOCH = PartitionEpoch(-1)
UNKNOWN_OFFSET: Offset = -1
NO_BROKER_EPOCH = BrokerEpoch(-1)


class TopicIdPartition(NamedTuple):
    """A partition, identified by topic id: a topic that is deleted and created again has another id."""

    topic_id: TopicId
    partition: int


CLUSTER_ID_MAX = 255
_CLUSTER_ID = re.compile(r"[A-Za-z0-9._-]+")


def is_cluster_id(text: str) -> bool:
    """Return whether a new cluster may have this id: its folder in remote storage has this name."""
    return _CLUSTER_ID.fullmatch(text) is not None and len(text) <= CLUSTER_ID_MAX and text not in (".", "..")


def uuid_to_text(value: uuid.UUID) -> str:
    """Return Kafka's text form: the 16 bytes in URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> uuid.UUID:
    """Parse Kafka's text form, the inverse of :func:`uuid_to_text`. Raises ValueError."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not a UUID in Kafka's text form: {error}") from error
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a UUID in Kafka's text form: {len(raw)} bytes instead of 16")
    return uuid.UUID(bytes=raw)


def topic_id_of(value: uuid.UUID) -> TopicId:
    return TopicId(uuid_to_text(value))
