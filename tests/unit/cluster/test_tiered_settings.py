"""Which settings of a tiered topic are accepted (KIP-405, KIP-950); what is said of others, as in Kafka."""

from __future__ import annotations

import json

import pytest
from cluster_harness import ClusterWorld
from msgspec import structs

from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig
from nilometer.cluster.controller.configs import (
    AlterResource,
    ConfigAlteration,
    ConfigDefinitions,
    ConfigOperation,
    decide_alter_configs,
)
from nilometer.cluster.controller.decision import Outcome
from nilometer.cluster.controller.features import FeatureUpdate, UpgradeType, decide_update_features
from nilometer.cluster.controller.topics import NewTopic, TopicDefaults, decide_create_topics
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.entries import decode_snapshot, encode_snapshot, sign
from nilometer.cluster.features import LEVELS_OF_NEW_CLUSTERS, METADATA_FORMAT
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    TIERED_TOPICS_FORMAT_VERSION,
    TOKENS_FORMAT_VERSION,
    ConfigChanged,
    ConfigResourceType,
)
from nilometer.config import ConfigError
from nilometer.groups import settings
from nilometer.identifiers import EntryNumber, TopicId
from nilometer.storage.topic_config import TOPIC_CONFIG, LogConfig
from nilometer.wire.errors import ErrorCode

PLAIN = {"node.id": "1"}
TIERED = {
    **PLAIN,
    "remote.log.storage.system.enable": "true",
    "nilometer.tier.uri": "file:///srv/tier",
    "log.retention.ms": "1000",
}


def create(world: ClusterWorld, configs: dict[str, str], *, name: str = "t", file: BrokerConfig) -> Outcome:
    decision = decide_create_topics(
        world.image,
        [NewTopic(name=name, configs=configs)],
        config_definition=TOPIC_CONFIG,
        inherited_of=file.topic_defaults,
        chance=world.chance,
        defaults=TopicDefaults(),
    )
    (created,) = world.enact(decision)
    return created.outcome


def alter(world: ClusterWorld, texts: dict[str, str | None], *, name: str = "t") -> Outcome:
    file = BrokerConfig(TIERED)
    definitions = ConfigDefinitions(
        topic=TOPIC_CONFIG,
        broker=BROKER_CONFIG_DEFINITION,
        group=settings.definition_of(file.groups),
        inherited_of=file.topic_defaults,
    )
    alterations = [
        ConfigAlteration(key, ConfigOperation.DELETE if text is None else ConfigOperation.SET, text)
        for key, text in texts.items()
    ]
    request = AlterResource(ConfigResource(ConfigResourceType.TOPIC, name), alterations)
    ((_, outcome),) = world.enact(decide_alter_configs(world.image, [request], definitions=definitions))
    return outcome


def refused(outcome: Outcome) -> str:
    assert outcome.error is ErrorCode.invalid_config
    return str(outcome.message)


ENABLED = {"remote.storage.enable": "true"}
COMPACTED = (
    "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty "
    "list."
)
NOT_COPIED = (
    "When `remote.log.copy.disable` is set to true, the `local.retention.{0}` and `retention.{0}` must be "
    "set to the identical value because there will be no more logs copied to the remote storage."
)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"cleanup.policy": "compact"}, COMPACTED),
        ({"cleanup.policy": "compact,delete"}, COMPACTED),
        (
            {"local.retention.ms": "1001"},
            "Invalid value 1001 for configuration local.retention.ms: "
            "Value must not be more than retention.ms property value: 1000",
        ),
        (
            {"local.retention.ms": "-1"},
            "Invalid value -1 for configuration local.retention.ms: "
            "Value must not be -1 as retention.ms value is set as 1000.",
        ),
        (
            {"retention.bytes": "5", "local.retention.bytes": "6"},
            "Invalid value 6 for configuration local.retention.bytes: "
            "Value must not be more than retention.bytes property value: 5",
        ),
        (
            {"retention.bytes": "5", "local.retention.bytes": "-1"},
            "Invalid value -1 for configuration local.retention.bytes: "
            "Value must not be -1 as retention.bytes value is set as 5.",
        ),
        ({"remote.log.copy.disable": "true", "local.retention.ms": "999"}, NOT_COPIED.format("ms")),
        ({"remote.log.copy.disable": "true", "local.retention.bytes": "9"}, NOT_COPIED.format("bytes")),
    ],
)
def test_what_a_tiered_topic_may_not_have(world: ClusterWorld, configs: dict[str, str], message: str) -> None:
    file = BrokerConfig(TIERED)
    assert refused(create(world, {**configs, **ENABLED}, file=file)) == message
    assert create(world, configs, file=file).ok, "of a topic that is not tiered"
    assert refused(alter(world, {**ENABLED})) == message


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": "delete"},
        {"local.retention.ms": "1000", "local.retention.bytes": "5"},
        {
            "local.retention.ms": "-2",
            "retention.ms": "-1",
            "retention.bytes": "7",
            "local.retention.bytes": "0",
        },
        {"local.retention.ms": "-1", "retention.ms": "-1"},
        {"remote.log.copy.disable": "true", "local.retention.ms": "1000", "local.retention.bytes": "-1"},
    ],
)
def test_what_a_tiered_topic_may_have(world: ClusterWorld, configs: dict[str, str]) -> None:
    assert create(world, {**configs, **ENABLED}, file=BrokerConfig(TIERED)).ok
    assert world.image.is_tiered("t")


def test_a_topic_is_tiered_only_where_brokers_have_remote_storage(world: ClusterWorld) -> None:
    message = refused(create(world, {**ENABLED}, file=BrokerConfig(PLAIN)))
    assert message == (
        "Tiered Storage functionality is disabled in the broker. "
        "Topic cannot be configured with remote log storage."
    )


def test_internal_topics_are_not_tiered(world: ClusterWorld) -> None:
    file = BrokerConfig(TIERED)
    assert "unsupported" in refused(create(world, {**ENABLED}, name="__share_group_state", file=file))
    assert create(world, {"cleanup.policy": "delete"}, name="__share_group_state", file=file).ok
    assert "unsupported" in refused(alter(world, {**ENABLED}, name="__share_group_state"))


@pytest.mark.parametrize("off", ["false", None])
def test_remote_storage_is_left_only_if_what_is_there_may_be_deleted(
    world: ClusterWorld, off: str | None
) -> None:
    assert create(world, {**ENABLED}, file=BrokerConfig(TIERED)).ok
    assert refused(alter(world, {"remote.storage.enable": off})) == (
        "It is invalid to disable remote storage without deleting remote data. If you want to keep the "
        "remote data and turn to read only, please set "
        "`remote.storage.enable=true,remote.log.copy.disable=true`. If "
        "you want to disable remote storage and delete all remote data, please set "
        "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
    )
    assert alter(world, {"remote.storage.enable": off, "remote.log.delete.on.disable": "true"}).ok
    assert not world.image.is_tiered("t")
    assert alter(world, {"remote.log.delete.on.disable": None}).ok


def test_the_metadata_say_since_when_a_topic_is_tiered(world: ClusterWorld) -> None:
    """Also to a broker that begins with a snapshot, and was down when the topic was tiered again."""

    def since() -> int:
        image = ClusterImage.from_snapshot(decode_snapshot(encode_snapshot(world.image.snapshot())))
        topic = image.topic("t")
        assert topic is not None and image == world.image == world.refold()
        return image.tiered_since(topic.id)

    assert create(world, {}, file=BrokerConfig(TIERED)).ok
    assert since() == -1
    assert alter(world, {**ENABLED}).ok
    assert since() == (first := world.image.number) > 0
    assert alter(world, {**ENABLED, "retention.bytes": "7"}).ok
    assert since() == first
    assert alter(world, {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}).ok
    assert since() == first
    again = ConfigChanged(
        resource_type=ConfigResourceType.TOPIC, resource_name="t", key="remote.storage.enable", value="true"
    )
    world.image.check_entry(EntryNumber(world.image.number + 1), sign([again], world.image.controllership))
    assert since() == first
    assert alter(world, {**ENABLED}).ok
    assert since() == world.image.number > first


def test_a_snapshot_of_an_earlier_version_does_not_say_it(world: ClusterWorld) -> None:
    assert create(world, {**ENABLED}, file=BrokerConfig(TIERED)).ok
    earlier = json.loads(encode_snapshot(world.image.snapshot()))
    assert earlier["topics"][0].pop("tiered_since") > 0
    image = ClusterImage.from_snapshot(decode_snapshot(json.dumps(earlier).encode()))
    assert [image.tiered_since(topic.id) for topic in image.topics()] == [-1]
    assert image.tiered_since(TopicId("none")) == -1


def test_a_topic_that_is_created_without_deletion_is_not_one_that_leaves(world: ClusterWorld) -> None:
    assert create(world, {"remote.storage.enable": "false"}, file=BrokerConfig(TIERED)).ok


def test_a_broker_whose_file_contradicts_a_tiered_topic_takes_it_for_tiered_all_the_same() -> None:
    file = BrokerConfig({**PLAIN, "log.retention.ms": "10", "log.cleanup.policy": "compact"})
    texts = {**ENABLED, "local.retention.ms": "500", "local.retention.bytes": "-1"}
    resolved = TOPIC_CONFIG.resolve(texts, file.topic_defaults())
    assert resolved.errors == ()
    config = LogConfig.of(resolved.values)
    assert (config.is_copied_to_tier, config.is_compacted, config.local_ms) == (True, False, 10)
    assert config.local_bytes == -1


def test_a_broker_has_the_settings_of_its_remote_storage() -> None:
    assert BrokerConfig(PLAIN).tier is None
    tier = BrokerConfig({**TIERED, "remote.fetch.max.wait.ms": "7", "log.local.retention.ms": "900"}).tier
    assert tier is not None
    assert (tier.uri, tier.fetch_wait_max_ms, tier.copies_at_once) == ("file:///srv/tier", 7, 10)
    assert (
        BrokerConfig({**TIERED, "remote.log.manager.copier.thread.pool.size": "3"}).tier.copies_at_once == 3
    )


@pytest.mark.parametrize(
    ("texts", "key", "message"),
    [
        ({"nilometer.tier.uri": ""}, "nilometer.tier.uri", "must say where the remote storage is"),
        ({"log.local.retention.ms": "1001"}, "log.local.retention.ms", "must not be more than retention.ms"),
        (
            {"log.local.retention.bytes": "-1", "log.retention.bytes": "5"},
            "log.local.retention.bytes",
            "must not be -1",
        ),
        ({"log.local.retention.bytes": "-3"}, "log.local.retention.bytes", "must be at least -2"),
    ],
)
def test_a_broker_does_not_start_with_settings_that_do_not_fit(
    texts: dict[str, str], key: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        BrokerConfig({**TIERED, **texts})
    assert raised.value.key == key


def test_a_tiered_topic_waits_until_every_broker_knows_where_its_log_begins(world: ClusterWorld) -> None:
    """An earlier version would take the records that are only in remote storage for deleted."""
    earlier = {**LEVELS_OF_NEW_CLUSTERS, METADATA_FORMAT: TOKENS_FORMAT_VERSION}
    world.image = ClusterImage.from_snapshot(structs.replace(world.image.snapshot(), features=earlier))
    file = BrokerConfig(TIERED)
    level = "kafka-features.sh upgrade --feature nilometer.metadata.format=8"
    refused = create(world, ENABLED, file=file)
    assert refused.error is ErrorCode.unsupported_version
    assert level in (refused.message or "")
    assert create(world, {"remote.storage.enable": "false"}, file=file).ok
    assert alter(world, {**ENABLED}).error is ErrorCode.unsupported_version
    assert alter(world, {"retention.ms": "2000"}).ok, "other settings need no newer format"
    assert world.image.snapshot().version < TIERED_TOPICS_FORMAT_VERSION
    assert all(json.loads(data)["version"] < TIERED_TOPICS_FORMAT_VERSION for data in world.log)

    update = FeatureUpdate(METADATA_FORMAT, TIERED_TOPICS_FORMAT_VERSION, UpgradeType.UPGRADE)
    assert world.enact(decide_update_features(world.image, [update], validate_only=False)).ok
    assert alter(world, {"remote.storage.enable": "True"}).ok
    assert json.loads(world.log[-1])["version"] == TIERED_TOPICS_FORMAT_VERSION
    assert world.image.snapshot().version == TIERED_TOPICS_FORMAT_VERSION
