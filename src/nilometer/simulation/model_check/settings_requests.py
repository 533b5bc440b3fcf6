"""The requests of the two administrators in the model of settings, and the controller's decisions on them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig
from nilometer.cluster.controller import (
    AlterResource,
    ConfigAlteration,
    ConfigDefinitions,
    ConfigOperation,
    CreatedTopic,
    Decision,
    NewTopic,
    Outcome,
    TopicDefaults,
    decide_alter_configs,
    decide_create_topics,
)
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.groups import settings
from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage.topic_config import TOPIC_CONFIG

MIN_ISR = "min.insync.replicas"
FILE = BrokerConfig({"node.id": "1", MIN_ISR: "2"})
"""The configuration file of every broker, which differs only in the id."""
CLUSTER_DEFAULTS = {MIN_ISR: "2"}
"""The cluster-wide defaults, which must be equal on all brokers; the values are those of the file."""
DEFINITIONS = ConfigDefinitions(
    topic=TOPIC_CONFIG,
    broker=BROKER_CONFIG_DEFINITION,
    group=settings.definition_of(FILE.groups),
    inherited_of=FILE.topic_defaults,
)

Changes = Mapping[ConfigResource, Mapping[str, str | None]]
"""Resource -> key -> new value; None removes the setting."""
Request = Changes | NewTopic

_T = ConfigResource(ConfigResourceType.TOPIC, "t")
_ALL = ConfigResource(ConfigResourceType.BROKER, "")
_ONE = ConfigResource(ConfigResourceType.BROKER, "2")
_MIN, _MAX = "min.compaction.lag.ms", "max.compaction.lag.ms"
_MIN_OF_BROKERS, _MAX_OF_BROKERS = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"

_OF_TOPICS: tuple[Request, ...] = (
    {_T: {_MIN: "2"}},
    {_T: {_MAX: "1"}},
    {_T: {_MIN: "2", _MAX: "3"}},
    {_T: {_MIN: None, _MAX: None}},
    {_T: {MIN_ISR: "1"}},
    {_T: {MIN_ISR: None}},
    NewTopic(name="u", assignments=((0, (1, 2)),), configs={_MIN: "2"}),
)
_OF_BROKERS: tuple[Request, ...] = (
    {_ALL: {_MAX_OF_BROKERS: "1"}},
    {_ALL: {_MIN_OF_BROKERS: "2"}},
    {_ALL: {_MIN_OF_BROKERS: None, _MAX_OF_BROKERS: None}},
    {_ONE: {_MAX_OF_BROKERS: "1"}},
    {_ALL: {MIN_ISR: "1"}},
    {_ALL: {MIN_ISR: None}},
    {_ONE: {MIN_ISR: "1"}},
)
_OF_BOTH_AT_ONCE: tuple[Request, ...] = (
    {_T: {_MIN: "2"}, _ALL: {_MAX_OF_BROKERS: "1"}},
    {_ALL: {_MIN_OF_BROKERS: "2"}, _ONE: {_MAX_OF_BROKERS: "1"}},
    {_T: {MIN_ISR: "1"}, _ALL: {MIN_ISR: "1"}},
    {_T: {MIN_ISR: None}, _ALL: {MIN_ISR: "1"}},
    {_T: {MIN_ISR: None}, _ALL: {MIN_ISR: "2"}},
)
REQUESTS = (_OF_TOPICS, (*_OF_BROKERS, *_OF_BOTH_AT_ONCE))
"""The possible requests of each administrator: of topics, of brokers."""


def decide(image: ClusterImage, request: Request) -> tuple[Decision[object], tuple[Outcome, ...]]:
    """Return the controller's decision, and the outcome of each part of the request."""
    if isinstance(request, NewTopic):
        created = create(image, request)
        return created, tuple(topic.outcome for topic in created.reply)
    altered = decide_alter_configs(image, _parts(request), definitions=DEFINITIONS)
    return altered, tuple(outcome for _, outcome in altered.reply)


def create(image: ClusterImage, topic: NewTopic) -> Decision[tuple[CreatedTopic, ...]]:
    return decide_create_topics(
        image,
        [topic],
        config_definition=TOPIC_CONFIG,
        chance=chance(topic.name),
        defaults=TopicDefaults(),
        inherited_of=FILE.topic_defaults,
    )


def chance(purpose: str) -> SeededEntropy:
    """Return entropy seeded by ``purpose``, so that a request on an image always has the same result."""
    return SeededEntropy(random.Random(purpose))


def _parts(request: Changes) -> Sequence[AlterResource]:
    return [
        AlterResource(
            resource,
            [
                ConfigAlteration(key, ConfigOperation.DELETE if text is None else ConfigOperation.SET, text)
                for key, text in texts.items()
            ],
        )
        for resource, texts in request.items()
    ]
