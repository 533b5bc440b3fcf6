"""Topics that come into being because somebody asked for them (``auto.create.topics.enable``)."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.broker.services import Services
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.topics import CreatedTopic, NewTopic, decide_create_topics
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError
from nilometer.storage.log_config import TOPIC_CONFIG
from nilometer.wire.errors import ErrorCode, KafkaError

_FINE = (ErrorCode.none, ErrorCode.topic_already_exists)


async def create_missing_topics(services: Services, names: Sequence[str]) -> dict[str, ErrorCode]:
    """Create topics with the broker's defaults. What could not be created, with the reason.

    A topic that cannot have as many replicas as it should is *not there yet* to its clients: they ask again.
    """
    unique = list(dict.fromkeys(names))

    def decide(image: ClusterImage) -> Decision[tuple[CreatedTopic, ...]]:
        return decide_create_topics(
            image,
            [NewTopic(name=name) for name in unique],
            config_definition=TOPIC_CONFIG,
            chance=services.runtime.entropy,
            defaults=services.topic_defaults,
        )

    try:
        created = await services.controller.decide(decide)
    except KafkaError as problem:
        return dict.fromkeys(unique, problem.code)
    except CoordinationError:
        return dict.fromkeys(unique, ErrorCode.unknown_topic_or_partition)
    return {topic.name: topic.outcome.error for topic in created if topic.outcome.error not in _FINE}
