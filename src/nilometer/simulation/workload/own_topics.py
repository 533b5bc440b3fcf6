"""Topics that one client of a run creates, and no other one."""

from __future__ import annotations

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.wire.errors import ErrorCode


async def ensure_topic(admin: Admin, topic: NewTopic) -> None:
    """Create a topic of this client. Raises KafkaError.

    A controller that is deposed refuses what its successor will find in the log: repeated, the request is
    refused because the topic is there.
    """
    outcome = (await admin.create_topics([topic]))[topic.name]
    if outcome is not None and outcome.code is not ErrorCode.topic_already_exists:
        raise outcome
