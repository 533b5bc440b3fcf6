"""Whether a whole set of settings may come into force: each text by itself, and all of them together.

A topic inherits the settings it does not set from the brokers' settings, so the same texts may be valid on
one broker and contradict each other on another. A change is accepted only if every broker could apply its
result: each broker that has settings of its own is checked, and one that has none. Of the brokers' own
files, only the controller's is known here; a broker whose file differs falls back to what it can apply
(``ConfigDefinition.resolve``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nilometer.cluster.controller.decision import Refusal
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.config import ConfigDefinition, ConfigError
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


class SettingsAfter:
    """The settings as they will be once the changes put here are in force; the image itself is unchanged."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._changed: dict[ConfigResource, Mapping[str, str]] = {}

    def of(self, resource: ConfigResource) -> Mapping[str, str]:
        """What is set for the resource itself; nothing inherited."""
        return self._changed[resource] if resource in self._changed else self._image.config(*resource)

    def resources(self) -> list[ConfigResource]:
        """All resources that have settings, or had some before these changes."""
        return list(dict.fromkeys((*self._image.config_resources(), *self._changed)))

    def put(self, resource: ConfigResource, changes: Mapping[str, str | None]) -> None:
        """None removes the setting."""
        texts = {**self.of(resource), **changes}
        self._changed[resource] = {key: text for key, text in texts.items() if text is not None}

    def copy(self) -> SettingsAfter:
        copied = SettingsAfter(self._image)
        copied._changed = dict(self._changed)
        return copied


def check_topic_settings(
    image: ClusterImage, definition: ConfigDefinition, inherited_of: InheritedOf, texts: Mapping[str, str]
) -> None:
    """The settings of a new topic. Raises Refusal (INVALID_CONFIG)."""
    try:
        for inherited in _inherited_on_brokers(SettingsAfter(image), inherited_of):
            definition.judge(texts, inherited)
    except ConfigError as error:
        raise Refusal(ErrorCode.invalid_config, str(error)) from error


def check_together(
    before: SettingsAfter,
    definitions: ConfigDefinitions,
    resource: ConfigResource,
    changes: Mapping[str, str | None],
) -> SettingsAfter:
    """The settings with ``changes``, each valid by itself, after a check against all other settings in force.

    Raises Refusal (INVALID_CONFIG). A contradiction that already exists only refuses a change of that same
    topic that leaves it in place: other settings of the cluster can still be changed.
    """
    after = before.copy()
    after.put(resource, changes)
    match resource.type:
        case ConfigResourceType.TOPIC:
            for inherited in _inherited_on_brokers(after, definitions.inherited_of):
                _refuse_contradictions(definitions.topic, after.of(resource), inherited)
        case ConfigResourceType.BROKER:
            known = list(_inherited_on_brokers(before, definitions.inherited_of))
            for inherited in _inherited_on_brokers(after, definitions.inherited_of):
                if inherited not in known:
                    _refuse_new_contradictions(after, definitions.topic, known, inherited)
        case ConfigResourceType.CLUSTER:
            pass
    return after


def _refuse_contradictions(
    definition: ConfigDefinition, texts: Mapping[str, str], inherited: Inherited
) -> None:
    for error in definition.contradictions(texts, inherited):
        raise Refusal(ErrorCode.invalid_config, str(error))


def _refuse_new_contradictions(
    after: SettingsAfter, definition: ConfigDefinition, known: Sequence[Inherited], inherited: Inherited
) -> None:
    """Refuse contradictions of topics that will inherit ``inherited``, unless they exist with ``known``
    already."""
    _refuse_contradictions(definition, _NOTHING, inherited)
    for resource in after.resources():
        texts = after.of(resource)
        if resource.type is not ConfigResourceType.TOPIC or any(
            definition.contradictions(texts, each) for each in known
        ):
            continue
        for error in definition.contradictions(texts, inherited):
            raise Refusal(ErrorCode.invalid_config, f"{error} (topic {resource.name})")


def _inherited_on_brokers(settings: SettingsAfter, inherited_of: InheritedOf) -> Iterator[Inherited]:
    """What topics inherit on a broker without settings of its own, and on each that has some."""
    common = settings.of(ALL_BROKERS)
    yield inherited_of(common)
    for resource in settings.resources():
        if resource.type is ConfigResourceType.BROKER and resource.name:
            yield inherited_of(common, settings.of(resource))
