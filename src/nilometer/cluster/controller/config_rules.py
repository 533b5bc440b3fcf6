"""Whether a whole set of settings may come into force: each text by itself, and all of them together.

A topic inherits what it does not say from the settings of brokers, so the same texts may be sound on one
broker and contradict each other on another. A change is accepted only if every broker could apply its result:
each broker that has settings of its own is judged, and one that has none. What stands in the brokers' own
files is known of the controller alone; a broker whose file differs falls back to what it can apply
(``ConfigDefinition.settle``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nilometer.cluster.controller.decision import Refusal
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.config import ConfigDefinition, ConfigProblem
from nilometer.config.definition import ConfigValue
from nilometer.wire.errors import ErrorCode

Inherited = Mapping[str, ConfigValue]
InheritedOf = Callable[..., Inherited]
"""By topic key, what topics inherit from settings of brokers: given as texts, later ones winning."""

ALL_BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
_NOTHING: Mapping[str, str] = {}


def nothing_inherited(*_: Mapping[str, str]) -> Inherited:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinitions:
    topic: ConfigDefinition
    broker: ConfigDefinition
    inherited_of: InheritedOf = nothing_inherited


def check_topic_settings(
    image: ClusterImage, definition: ConfigDefinition, inherited_of: InheritedOf, texts: Mapping[str, str]
) -> None:
    """The settings of a new topic. Raises Refusal (INVALID_CONFIG)."""
    try:
        for inherited in _inherited_on_brokers(image, inherited_of):
            definition.judge(texts, inherited)
    except ConfigProblem as problem:
        raise Refusal(ErrorCode.invalid_config, str(problem)) from problem


def check_together(
    image: ClusterImage,
    definitions: ConfigDefinitions,
    resource: ConfigResource,
    changes: Mapping[str, str | None],
) -> None:
    """``changes``, each sound by itself, must fit what else is in force. Raises Refusal (INVALID_CONFIG).

    A contradiction that is in the image already refuses nothing but a change of that very topic that leaves
    it in place: what a cluster has, its other settings can still be changed beside it.
    """
    after = {key: text for key, text in {**image.config(*resource), **changes}.items() if text is not None}
    match resource.type:
        case ConfigResourceType.TOPIC:
            for inherited in _inherited_on_brokers(image, definitions.inherited_of):
                _refuse_contradictions(definitions.topic, after, inherited)
        case ConfigResourceType.BROKER:
            before = list(_inherited_on_brokers(image, definitions.inherited_of))
            for inherited in _inherited_on_brokers(image, definitions.inherited_of, {resource: after}):
                if inherited not in before:
                    _refuse_new_contradictions(image, definitions.topic, before, inherited)
        case ConfigResourceType.CLUSTER:
            pass


def _refuse_contradictions(
    definition: ConfigDefinition, texts: Mapping[str, str], inherited: Inherited
) -> None:
    for problem in definition.contradictions(texts, inherited):
        raise Refusal(ErrorCode.invalid_config, str(problem))


def _refuse_new_contradictions(
    image: ClusterImage, definition: ConfigDefinition, before: Sequence[Inherited], after: Inherited
) -> None:
    """Of topics that inherit ``after`` and had none of their own while they inherited ``before``."""
    _refuse_contradictions(definition, _NOTHING, after)
    for topic in _topics_with_settings(image):
        texts = image.config(ConfigResourceType.TOPIC, topic)
        if any(definition.contradictions(texts, inherited) for inherited in before):
            continue
        for problem in definition.contradictions(texts, after):
            raise Refusal(ErrorCode.invalid_config, f"{problem} (topic {topic})")


def _topics_with_settings(image: ClusterImage) -> Iterator[str]:
    for resource in image.config_resources():
        if resource.type is ConfigResourceType.TOPIC:
            yield resource.name


def _inherited_on_brokers(
    image: ClusterImage,
    inherited_of: InheritedOf,
    instead: Mapping[ConfigResource, Mapping[str, str]] | None = None,
) -> Iterator[Inherited]:
    """What topics inherit on a broker without settings of its own, and on each that has some."""
    replaced = instead or {}

    def texts_of(resource: ConfigResource) -> Mapping[str, str]:
        return replaced[resource] if resource in replaced else image.config(*resource)

    common = texts_of(ALL_BROKERS)
    yield inherited_of(common)
    named = dict.fromkeys((*image.config_resources(), *replaced))
    for resource in named:
        if resource.type is ConfigResourceType.BROKER and resource.name:
            yield inherited_of(common, texts_of(resource))
