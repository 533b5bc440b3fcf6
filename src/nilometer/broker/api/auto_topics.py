"""Creates topics that a client requested and that do not exist (``auto.create.topics.enable``).

An internal topic is created with its own settings. One that brokers do not need is not created: as an
ordinary topic it would have the wrong settings.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.broker.control.controller_link import RequestingClient
from nilometer.broker.control.internal_topics import new_internal_topic
from nilometer.broker.services import Services
from nilometer.cluster.controller.topics import NewTopic
from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.coordination.store import CoordinationError
from nilometer.wire.errors import ErrorCode, KafkaError

_CREATED_OR_EXISTS = (ErrorCode.none, ErrorCode.topic_already_exists)


async def create_missing_topics(
    services: Services, names: Sequence[str], client: RequestingClient
) -> dict[str, ErrorCode]:
    """Create topics with the broker's defaults for ``client``; return the errors of those that could not be
    created.

    If there are too few brokers for a topic's replicas, its clients get a retriable error and try again.
    """
    unique = list(dict.fromkeys(names))
    topics = [_new_topic(services, name) for name in unique]
    wanted = [topic for topic in topics if topic is not None]
    if not wanted:
        return {}
    try:
        errors = await services.controller_link.create_topics(wanted, services.runtime.entropy, client)
    except KafkaError as error:
        return dict.fromkeys(unique, error.code)
    except CoordinationError:
        return dict.fromkeys(unique, ErrorCode.unknown_topic_or_partition)
    return {name: error for name, error in errors.items() if error not in _CREATED_OR_EXISTS}


def _new_topic(services: Services, name: str) -> NewTopic | None:
    if name in INTERNAL_TOPICS:
        return new_internal_topic(services.config, services.image, name)
    defaults = services.topic_defaults
    return NewTopic(
        name=name,
        num_partitions=defaults.num_partitions,
        replication_factor=defaults.replication_factor,
    )
