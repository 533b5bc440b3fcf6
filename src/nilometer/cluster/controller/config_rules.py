"""Checking a change of settings: each value, and all values of a topic together.

A topic inherits from the brokers' settings those that it does not set, so the same topic settings may be
valid on one broker and contradict each other on another. A change is accepted only if every broker could
apply the result: each broker with settings of its own is checked, and a broker without. Of the brokers'
configuration files, only the controller's is known here; a broker whose file differs ignores values that it
cannot apply (``ConfigDefinition.resolve``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from nilometer.cluster.controller.decision import Refusal
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.config import ConfigDefinition, ConfigError
from nilometer.config.definition import ConfigValue
from nilometer.wire.errors import ErrorCode

Inherited = Mapping[str, ConfigValue]
InheritedOf = Callable[..., Inherited]
"""Returns the values that topics inherit, by topic key, from brokers' settings: one or more mappings of
texts, of which a later one overrides an earlier one."""

ALL_BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
_NOTHING: Mapping[str, str] = {}


def nothing_inherited(*_: Mapping[str, str]) -> Inherited:
    return {}


class ConfigDefinitions(msgspec.Struct, frozen=True, kw_only=True):
    topic: ConfigDefinition
    broker: ConfigDefinition
    group: ConfigDefinition
    """Its bounds and defaults are the controller's `group.consumer.*` settings."""
    inherited_of: InheritedOf = nothing_inherited


class SettingsAfter:
    """The image's settings with the changes that were put here; the image itself is unchanged."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._changed: dict[ConfigResource, Mapping[str, str]] = {}

    def of(self, resource: ConfigResource) -> Mapping[str, str]:
        """Return the settings of the resource itself, without inherited ones."""
        return self._changed[resource] if resource in self._changed else self._image.config(*resource)

    def resources(self) -> list[ConfigResource]:
        """Return all resources that have settings or had some before these changes."""
        return list(dict.fromkeys((*self._image.config_resources(), *self._changed)))

    def put(self, resource: ConfigResource, changes: Mapping[str, str | None]) -> None:
        """Change settings of a resource; a value of None removes the setting."""
        texts = {**self.of(resource), **changes}
        self._changed[resource] = {key: text for key, text in texts.items() if text is not None}

    def copy(self) -> SettingsAfter:
        copied = SettingsAfter(self._image)
        copied._changed = dict(self._changed)
        return copied


def check_topic_settings(
    image: ClusterImage, definition: ConfigDefinition, inherited_of: InheritedOf, texts: Mapping[str, str]
) -> None:
    """Check the settings ``texts`` of a new topic. Raises Refusal (INVALID_CONFIG)."""
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
    """Check ``changes``, each of which is valid alone, together with all other settings; return the result.

    Raises Refusal (INVALID_CONFIG) for a contradiction. A contradiction in a topic that exists before the
    change only rejects changes of that topic that do not remove it: other settings can still be changed.
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
        case ConfigResourceType.GROUP:
            _refuse_contradictions(definitions.group, after.of(resource), {})
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
    """Raise Refusal if a topic's settings contradict ``inherited``, unless they contradict ``known`` already.

    ``known`` are the inherited values before the change.
    """
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
    """Yield the values that topics inherit on a broker without own settings, and on each broker with some."""
    common = settings.of(ALL_BROKERS)
    yield inherited_of(common)
    for resource in settings.resources():
        if resource.type is ConfigResourceType.BROKER and resource.name:
            yield inherited_of(common, settings.of(resource))
