"""Finds out at once whether a topic exists: a client would retry until its timeout for one that does not.

A broker may not know a topic that was created a moment ago, so UNKNOWN_TOPIC_OR_PARTITION is retriable. The
controller knows every topic: what it does not know does not exist.
"""

from __future__ import annotations

from nilometer.client.network.client import Client
from nilometer.client.network.metadata_exchange import metadata_request, read_metadata
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError


async def topic_exists(client: Client, topic: str, timeout_ms: int) -> bool:
    """Return whether ``topic`` exists, and keep its metadata up to date; it is not created.

    If a broker does not know it, the controller decides. Raises KafkaError for a name that no topic can have,
    or if no controller responds within ``timeout_ms``.
    """
    client.watch_topics([topic])
    return topic in (await client.refresh()).topics or await controller_knows(client, topic, timeout_ms)


async def controller_knows(client: Client, topic: str, timeout_ms: int) -> bool:
    """Return whether the controller knows ``topic``. Raises KafkaError as :func:`topic_exists`."""

    async def ask() -> ErrorCode | None:
        response = await client.send_to_controller(
            ApiKey.METADATA, lambda api: metadata_request(api, [topic])
        )
        return read_metadata(response).errors.get(topic)

    code = await client.retry(ask, timeout_ms)
    if code is ErrorCode.unknown_topic_or_partition:
        return False
    if code is not None and code is not ErrorCode.leader_not_available:  # it has no leader yet
        raise KafkaError(code, f"topic {topic}")
    return True


def no_such_topic(topic: str) -> KafkaError:
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic} does not exist")
