"""The topics of CreateTopics requests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from itertools import count

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message

from .wire_peer import ConnectionEnded, WirePeer, make

ANSWER_S = 1.0
"""A broker that does not respond within this time is asked again later."""
ANSWER_BROKER_MS = 800
PAUSE_S = 0.01


def new_topic(name: str, partitions: int = 1, *, version: int = 7, **more: object) -> Message:
    """Return a topic with one replica for each partition; ``more`` are other fields of it."""
    fields = {"num_partitions": partitions, "replication_factor": 1, **more}
    return make(ApiKey.CREATE_TOPICS, version, "CreatableTopic", name=name, **fields)


def first_created(
    addresses: Sequence[str], prefix: str, patience_s: float, replication_factor: int = 1
) -> str:
    """Ask these brokers in turn until one has created a topic; return its name.

    Each asks for another topic: one that was created although nothing was heard is no error. The waits are
    short, since a library's own time-outs would hide those of the cluster. Raises AssertionError.
    """
    until = time.monotonic() + patience_s
    for number in count(1):
        topic = new_topic(f"{prefix}-{number}", replication_factor=replication_factor)
        with contextlib.suppress(ConnectionEnded, OSError):
            with WirePeer(addresses[number % len(addresses)], timeout_s=ANSWER_S) as peer:
                response = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout_ms=ANSWER_BROKER_MS)
            if response.topics[0].error_code is ErrorCode.none:
                return topic.name
        if time.monotonic() > until:
            break
        if number % len(addresses) == 0:
            time.sleep(PAUSE_S)
    raise AssertionError(f"none of {', '.join(addresses)} creates a topic within {patience_s:g} s")
