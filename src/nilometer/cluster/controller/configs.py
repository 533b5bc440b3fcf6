"""Changing settings of topics, brokers and groups: SET, DELETE, APPEND and SUBTRACT (KIP-339), and the checks
of a change.

All changes of a resource are applied, or none. Lowering ``min.insync.replicas`` lets leaders commit with
fewer replicas, so an eligible leader replica, which is safe only as long as the high watermark cannot advance
without it, is no longer safe: the affected ELRs are removed *before* the new value is in force.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal
from nilometer.cluster.controller.features import check_format
from nilometer.cluster.controller.partition_change import RequestedChange, change_partition
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.entries import Unit
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    REMOTE_STORAGE_ENABLE,
    ConfigChanged,
    ConfigResourceType,
    format_version_of,
    format_version_of_config,
)
from nilometer.cluster.states import INTERNAL_TOPICS, Topic, why_invalid_name
from nilometer.cluster.tables import min_insync_replicas_of
from nilometer.config import ConfigDefinition, ConfigError, ConfigKind, ConfigValue
from nilometer.identifiers import TopicIdPartition
from nilometer.wire.errors import ErrorCode

# The checks: each value by itself, and all values of a topic together.
#
# A topic inherits from the brokers' settings those that it does not set, so the same topic settings may be
# valid on one broker and contradict each other on another. A change is accepted only if every broker could
# apply the result: each broker with settings of its own is checked, and a broker without. Of the brokers'
# configuration files, only the controller's is known here; a broker whose file differs ignores values that it
# cannot apply (``ConfigDefinition.resolve``).

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
            why = definitions.topic.why_not_changed(before.of(resource), after.of(resource))
            if why is not None:
                raise Refusal(ErrorCode.invalid_config, why)
            _refuse_tiered(definitions.topic, resource.name, after.of(resource))
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


def _refuse_tiered(definition: ConfigDefinition, topic: str, texts: Mapping[str, str]) -> None:
    if topic in INTERNAL_TOPICS and definition.readable(texts).get(REMOTE_STORAGE_ENABLE) is True:
        raise Refusal(ErrorCode.invalid_config, f"Remote log storage is unsupported for {topic}")


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


_CLUSTER = ConfigResource(ConfigResourceType.CLUSTER, "")
MIN_INSYNC_REPLICAS = "min.insync.replicas"
CLUSTER_WIDE_KEYS = (MIN_INSYNC_REPLICAS, "unclean.leader.election.enable")
"""Keys that the controller and all leaders read from the image and must agree on. So they can be set for a
topic or for all brokers, and are rejected for a single broker (Kafka rejects the first one while ELR is
enabled)."""


class ConfigOperation(enum.IntEnum):
    """The operations of IncrementalAlterConfigs, with its numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigAlteration(msgspec.Struct, frozen=True):
    key: str
    operation: ConfigOperation
    value: str | None = None


class AlterResource(msgspec.Struct, frozen=True):
    resource: ConfigResource
    alterations: Sequence[ConfigAlteration]


def check_configs(
    image: ClusterImage,
    definition: ConfigDefinition,
    inherited_of: InheritedOf,
    configs: Mapping[str, str | None],
    topic: str,
) -> dict[str, str]:
    """Check and return the settings of the new ``topic``. Raises Refusal."""
    absent = sorted(key for key, value in configs.items() if value is None)
    if absent:
        raise Refusal(
            ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(absent)}"
        )
    given = {key: value for key, value in configs.items() if value is not None}
    _refuse_tiered(definition, topic, given)
    for key, value in given.items():
        check_format(image, format_version_of_config(ConfigResourceType.TOPIC, key, value))
    check_topic_settings(image, definition, inherited_of, given)
    return given


def decide_alter_configs(
    image: ClusterImage,
    requests: Sequence[AlterResource],
    *,
    definitions: ConfigDefinitions,
    denied: Mapping[ConfigResource, Outcome] | None = None,
    validate_only: bool = False,
) -> Decision[tuple[tuple[ConfigResource, Outcome], ...]]:
    """Decide changes of settings; each resource gets its own outcome.

    A resource is checked together with those accepted before it in the same request. ``denied``: of those
    that the client may not alter. Settings named twice or without a value are an error also for such a
    client, as in Kafka; whether a broker exists is said only to others (Kafka 4.4).
    """
    settings = SettingsAfter(image)
    accepted: dict[ConfigResource, Mapping[str, str | None]] = {}
    reply: list[tuple[ConfigResource, Outcome]] = []
    resources = Counter(request.resource for request in requests)
    for request in requests:
        try:
            if resources[request.resource] > 1:
                raise Refusal(ErrorCode.invalid_request, "Each resource must appear at most once.")
            _check_form(request)
            if denied is not None and request.resource in denied:
                reply.append((request.resource, denied[request.resource]))
                continue
            _check_broker(image, request.resource)
            changes = _changes(image, request, definitions)
            check_format(image, format_version_of(_records(request.resource, changes)))
            settings = check_together(settings, definitions, request.resource, changes)
        except Refusal as refusal:
            reply.append((request.resource, refusal.outcome))
            continue
        accepted[request.resource] = changes
        reply.append((request.resource, OK))
    return Decision(() if validate_only else tuple(config_units(image, accepted)), tuple(reply))


def config_units(
    image: ClusterImage, changes: Mapping[ConfigResource, Mapping[str, str | None]]
) -> list[Unit]:
    """Return the records that make ``changes``, in an order that may be interrupted at any point."""
    units = _forget_eligible_replicas(image, changes)
    for resource, texts in changes.items():
        if texts:
            units.append(_records(resource, texts))
    return units


def _records(resource: ConfigResource, texts: Mapping[str, str | None]) -> Unit:
    return tuple(
        ConfigChanged(resource_type=resource.type, resource_name=resource.name, key=key, value=value)
        for key, value in texts.items()
    )


def _forget_eligible_replicas(
    image: ClusterImage, changes: Mapping[ConfigResource, Mapping[str, str | None]]
) -> list[Unit]:
    """Return records that remove ELRs that will be unsafe because min.insync.replicas is lowered.

    Each partition gets one record at most, for the lowest value that is effective at any time while
    ``changes`` are applied one by one.
    """
    settings, stages = SettingsAfter(image), list[SettingsAfter]()
    names: set[str] | None = set()
    for resource, texts in changes.items():
        settings.put(resource, texts)
        if MIN_INSYNC_REPLICAS not in texts:
            continue
        stages.append(settings.copy())
        if resource.type is not ConfigResourceType.TOPIC:
            names = None  # of all topics
        elif names is not None:
            names.add(resource.name)
    units: list[Unit] = []
    for topic in _affected_topics(image, names):
        lowest = min(_min_insync_replicas(stage, topic.name) for stage in stages)
        units.extend(_forget_eligible_replicas_of(image, topic, lowest))
    return units


def _affected_topics(image: ClusterImage, names: set[str] | None) -> Sequence[Topic]:
    if names is None:
        return image.topics()
    return [topic for name in sorted(names) if (topic := image.topic(name)) is not None]


def _forget_eligible_replicas_of(image: ClusterImage, topic: Topic, min_insync_replicas: int) -> list[Unit]:
    units: list[Unit] = []
    for index, state in enumerate(topic.partitions):
        if not state.elr:
            continue
        change = change_partition(
            TopicIdPartition(topic.id, index),
            state,
            RequestedChange(),
            may_lead=image.is_active,
            min_insync_replicas=min_insync_replicas,
        )
        if change is not None:
            units.append((change,))
    return units


def _min_insync_replicas(settings: SettingsAfter, topic: str) -> int:
    for resource in (ConfigResource(ConfigResourceType.TOPIC, topic), ALL_BROKERS, _CLUSTER):
        text = settings.of(resource).get(MIN_INSYNC_REPLICAS)
        if text is not None and (number := min_insync_replicas_of(text)) is not None:
            return number
    return 1


def _check_broker(image: ClusterImage, resource: ConfigResource) -> None:
    """Raise Refusal if the resource is a broker that is not registered."""
    is_broker = resource.type is ConfigResourceType.BROKER
    if is_broker and resource.name and not _is_registered(image, resource.name):
        raise Refusal(ErrorCode.invalid_request, f"No broker with id {resource.name} is registered.")


def _check_form(request: AlterResource) -> None:
    """Raise Refusal for what is wrong with the request, with all rights or none."""
    keys = Counter(alteration.key for alteration in request.alterations)
    if any(times > 1 for times in keys.values()):
        raise Refusal(ErrorCode.invalid_request, "Error due to duplicate config keys")
    for alteration in request.alterations:
        if alteration.value is None and alteration.operation is not ConfigOperation.DELETE:
            raise Refusal(ErrorCode.invalid_request, f"Null value not supported for : {alteration.key}")


def _changes(
    image: ClusterImage, request: AlterResource, definitions: ConfigDefinitions
) -> dict[str, str | None]:
    resource = request.resource
    definition = _definition(image, resource, definitions)
    present = image.config(*resource)
    changes: dict[str, str | None] = {}
    for alteration in request.alterations:
        new = _altered(definition, alteration, present.get(alteration.key))
        if resource.type is ConfigResourceType.BROKER:
            _refuse_static(definition, alteration)
            _refuse_for_one_broker(resource, alteration)
        # An unchanged value of a broker is written, too: it makes the broker reload files that the value
        # names, such as key stores (KAFKA-14136).
        if new != present.get(alteration.key) or resource.type is ConfigResourceType.BROKER:
            changes[alteration.key] = new
    return changes


def _definition(
    image: ClusterImage, resource: ConfigResource, definitions: ConfigDefinitions
) -> ConfigDefinition:
    match resource.type:
        case ConfigResourceType.TOPIC:
            if (error := why_invalid_name(resource.name)) is not None:
                raise Refusal(ErrorCode.invalid_topic_exception, error)
            if image.topic(resource.name) is None:
                raise Refusal(
                    ErrorCode.unknown_topic_or_partition, f"The topic '{resource.name}' does not exist."
                )
            return definitions.topic
        case ConfigResourceType.BROKER:
            return definitions.broker
        case ConfigResourceType.GROUP:
            if not resource.name:
                raise Refusal(
                    ErrorCode.invalid_request,
                    "A group must be named: the defaults of all groups are group.* settings of the brokers.",
                )
            return definitions.group
        case ConfigResourceType.CLUSTER:
            raise Refusal(ErrorCode.invalid_request, "The controller's own settings come from its file.")


def _is_registered(image: ClusterImage, name: str) -> bool:
    return any(str(broker.id) == name for broker in image.brokers())


def _refuse_static(definition: ConfigDefinition, alteration: ConfigAlteration) -> None:
    key = definition.keys.get(alteration.key)
    if key is not None and not key.dynamic:
        raise Refusal(ErrorCode.invalid_request, f"Cannot update these configs dynamically: {alteration.key}")


def _refuse_for_one_broker(resource: ConfigResource, alteration: ConfigAlteration) -> None:
    if resource.name and alteration.key in CLUSTER_WIDE_KEYS:
        if alteration.operation is ConfigOperation.DELETE:
            return  # a value left by a version that accepted it can be removed
        raise Refusal(
            ErrorCode.invalid_config,
            f"Broker-level {alteration.key} cannot be altered: set it for a topic, or for all brokers "
            "(the default of the entity type brokers).",
        )


VALUE_CHARACTERS_MAX = 32_767
"""Of a setting, also of a list that is appended to, as in Kafka: each broker parses the whole list whenever
it changes."""
TOO_LONG = (
    "The configuration value cannot be added because it exceeds the maximum value size of "
    f"{VALUE_CHARACTERS_MAX} bytes."
)


def _altered(definition: ConfigDefinition, alteration: ConfigAlteration, present: str | None) -> str | None:
    """Return the key's new value after checking it; None removes the key. Raises Refusal."""
    if alteration.operation is ConfigOperation.DELETE:
        return None  # also for an unknown key: a value that another version accepted can be removed
    try:
        key = definition.key(alteration.key)
        new = alteration.value or ""
        if alteration.operation is not ConfigOperation.SET:
            if key.kind is not ConfigKind.LIST:
                raise Refusal(
                    ErrorCode.invalid_config,
                    f"Can't {alteration.operation.name} to key {key.name} because its type is not LIST.",
                )
            inherited = "" if key.default is None else key.format(key.default)
            new = _combined(alteration, inherited if present is None else present)
        if len(new) > VALUE_CHARACTERS_MAX and alteration.operation is not ConfigOperation.SUBTRACT:
            raise Refusal(ErrorCode.invalid_config, TOO_LONG)
        key.parse(new)
    except ConfigError as error:
        raise Refusal(ErrorCode.invalid_config, str(error)) from error
    return new


def _combined(alteration: ConfigAlteration, present: str) -> str:
    parts = [part for part in present.split(",") if part]
    named = [part for part in (alteration.value or "").split(",") if part]
    if alteration.operation is ConfigOperation.APPEND:
        known = set(parts)  # there may be thousands
        return ",".join([*parts, *(part for part in named if part not in known)])
    removed = set(named)
    return ",".join(part for part in parts if part not in removed)
