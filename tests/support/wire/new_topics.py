"""The topics of CreateTopics requests."""

from __future__ import annotations

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import Message

from .wire_peer import make


def new_topic(name: str, partitions: int = 1, *, version: int = 7, **more: object) -> Message:
    """Return a topic with one replica for each partition; ``more`` are other fields of it."""
    fields = {"num_partitions": partitions, "replication_factor": 1, **more}
    return make(ApiKey.CREATE_TOPICS, version, "CreatableTopic", name=name, **fields)
