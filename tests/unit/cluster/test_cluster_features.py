"""Finalized levels of features: decided by the controller, folded by every broker, kept in snapshots."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from cluster_harness import BROKER_CONFIGS, TOPIC_CONFIGS, ClusterWorld

from nilometer.cluster.controller.brokers import check_registration, decide_broker_up
from nilometer.cluster.controller.configs import (
    AlterResource,
    ConfigAlteration,
    ConfigDefinitions,
    ConfigOperation,
    decide_alter_configs,
)
from nilometer.cluster.controller.decision import Outcome
from nilometer.cluster.controller.features import FeatureUpdate, UpgradeType, decide_update_features
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.entries import decode_entry, decode_snapshot, encode_entry, encode_snapshot, entries_of
from nilometer.cluster.features import (
    GROUP_VERSION,
    LEVELS_OF_NEW_CLUSTERS,
    METADATA_FORMAT,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
)
from nilometer.cluster.features import TRANSACTION_VERSION as TV
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    FORMAT_VERSION,
    ConfigResourceType,
    FeatureLevelChanged,
    SupportedFeature,
)
from nilometer.groups import settings
from nilometer.groups.settings import GroupConfig
from nilometer.wire.errors import ErrorCode

UP, DOWN, UNSAFE = UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE


def world() -> ClusterWorld:
    return ClusterWorld().with_brokers(1, 2)


def before_features() -> ClusterWorld:
    """A cluster of a version that kept no levels, one of whose brokers says what it supports."""
    old = ClusterWorld()
    old.become_controller(1)
    snapshot = old.image.snapshot()
    old.image = ClusterImage.from_snapshot(msgspec.structs.replace(snapshot, features=None, version=1))
    old.up(1)
    return old


def update(
    world: ClusterWorld, *updates: tuple[str, int, int], validate_only: bool = False
) -> tuple[str, str]:
    asked = [FeatureUpdate(*each) for each in updates]
    outcome = world.enact(decide_update_features(world.image, asked, validate_only=validate_only))
    return outcome.error.name, outcome.message or ""


def test_a_new_cluster_has_the_newest_levels() -> None:
    assert world().image.finalized_features == LEVELS_OF_NEW_CLUSTERS


@pytest.mark.parametrize("kind", [DOWN, UNSAFE])
def test_a_level_is_lowered_and_raised(kind: UpgradeType) -> None:
    cluster = world()
    assert update(cluster, (TV, 0, kind)) == ("none", "")
    assert cluster.image.feature_level(TV) == 0
    assert update(cluster, (TV, 2, UP), (GROUP_VERSION, 1, UP)) == ("none", "")
    assert cluster.image.finalized_features == LEVELS_OF_NEW_CLUSTERS


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ((TV, 1, UP), "without setting the upgrade type"),
        ((TV, 3, UP), "only supports versions 0-2"),
        ((TV, -1, DOWN), "cannot be less than 0"),
        ((TV, 2, 0), "does not support the given upgrade type"),
        ((TV, 2, 9), "does not support the given upgrade type"),
        ((METADATA_VERSION, 29, DOWN), "only supports versions 30-33"),
        ((METADATA_FORMAT, 2, UNSAFE), f"only supports versions 3-{FORMAT_VERSION}"),
        ((METADATA_FORMAT, FORMAT_VERSION - 1, DOWN), "never lowered"),
        ((METADATA_FORMAT, FORMAT_VERSION - 1, UNSAFE), "never lowered"),
        (("streams.version", 2, UP), "only supports versions 0-1"),
        (("kraft.version", 0, DOWN), "only supports versions 1-1"),
        (("test.feature.version", 1, UP), "Local controller 0 does not support this feature"),
        (("test.feature.version", 0, DOWN), "Feature test.feature.version not found"),
        (("share.version", 3, UP), "only supports versions 0-2"),
    ],
)
def test_what_is_refused_changes_nothing(refused: tuple[str, int, int], why: str) -> None:
    cluster = world()
    number = cluster.image.number
    error, message = update(cluster, (GROUP_VERSION, 0, DOWN), refused)
    assert error == "invalid_update_version"
    assert why in message
    assert cluster.image.number == number


def test_a_downgrade_does_not_raise_a_level() -> None:
    cluster = world()
    update(cluster, (TV, 1, DOWN))
    assert "to a newer version" in update(cluster, (TV, 2, DOWN))[1]


def test_only_validated_updates_and_levels_in_force_write_nothing() -> None:
    cluster = world()
    number = cluster.image.number
    assert update(cluster, (TV, 0, DOWN), validate_only=True) == ("none", "")
    assert update(cluster, (TV, 2, UP), (GROUP_VERSION, 1, DOWN)) == ("none", "")
    assert cluster.image.number == number


def test_of_two_updates_of_a_feature_the_last_one_counts() -> None:
    cluster = world()
    assert update(cluster, (TV, 1, DOWN), (TV, 0, DOWN)) == ("none", "")
    assert cluster.image.feature_level(TV) == 0


def test_levels_are_part_of_snapshots() -> None:
    cluster = world()
    update(cluster, (TV, 1, DOWN))
    data = encode_snapshot(cluster.image.snapshot())
    assert json.loads(data)["version"] == 2
    assert ClusterImage.from_snapshot(decode_snapshot(data)) == cluster.image


def test_an_entry_that_cannot_be_folded_changes_no_level() -> None:
    cluster = world()
    image = cluster.image
    unit = (FeatureLevelChanged(name=TV, level=1), FeatureLevelChanged(name=GROUP_VERSION, level=0))
    (entry,) = entries_of([unit], image.controllership)
    image.check_entry(type(image.number)(image.number + 1), entry)
    assert image.finalized_features == LEVELS_OF_NEW_CLUSTERS


# ── a cluster that is being upgraded ────────────────────────────────────────────────────────────────
def test_a_cluster_from_before_goes_on_at_the_levels_that_its_brokers_had() -> None:
    image = before_features().image
    assert (image.feature_level(TV), image.feature_level(GROUP_VERSION)) == (0, 1)
    assert json.loads(encode_snapshot(image.snapshot()))["version"] == 1, "older brokers read it"


def test_older_brokers_can_read_all_entries_until_a_level_is_changed() -> None:
    cluster = before_features()
    cluster.with_brokers(2)
    upgraded = len(cluster.log)
    update(cluster, (TV, 2, UP))
    versions = [json.loads(data)["version"] for data in cluster.log[1:]]
    assert versions == [1] * (upgraded - 1) + [2]
    for data in cluster.log:
        entry = decode_entry(data)
        assert decode_entry(encode_entry(entry)) == entry


def test_no_level_is_raised_while_a_broker_of_an_older_version_is_registered() -> None:
    cluster = before_features()
    older = replace(cluster.registration(2), features=())
    assert check_registration(cluster.image, older).ok
    cluster.up(2)
    known = cluster.image.broker(older.broker_id)
    assert known is not None
    cluster.image._brokers[known.id] = msgspec.structs.replace(known, features=())
    error, message = update(cluster, (TV, 2, UP))
    assert (error, "Broker 2 does not support this feature" in message) == ("invalid_update_version", True)
    cluster.image._brokers[known.id] = known
    assert update(cluster, (TV, 2, UP)) == ("none", "")


@pytest.mark.parametrize("features", [(), (SupportedFeature(TV, 0, 1),)])
def test_a_broker_that_does_not_support_a_finalized_level_may_not_register(
    features: tuple[SupportedFeature, ...],
) -> None:
    cluster = world()
    refused = check_registration(cluster.image, replace(cluster.registration(3), features=features))
    assert refused.error is ErrorCode.unsupported_version
    assert "Broker 3 does not support" in (refused.message or "")


# ── records that an earlier version cannot read ─────────────────────────────────────────────────────
def before_formats() -> ClusterWorld:
    """A cluster whose brokers kept levels, but none of the format: broker 1 is upgraded, and 2 is not."""
    cluster = ClusterWorld()
    features = {name: level for name, level in LEVELS_OF_NEW_CLUSTERS.items() if name != METADATA_FORMAT}
    snapshot = msgspec.structs.replace(cluster.image.snapshot(), features=features)
    cluster.image = ClusterImage.from_snapshot(snapshot)
    cluster.up(1)
    assert register_earlier_version(cluster, 2).ok
    return cluster


def register_earlier_version(cluster: ClusterWorld, broker: int) -> Outcome:
    known = tuple(feature for feature in SUPPORTED_FEATURES if feature.name != METADATA_FORMAT)
    earlier = replace(cluster.registration(broker), features=known)
    return cluster.enact(decide_broker_up(cluster.image, earlier))


def alter_group(
    cluster: ClusterWorld, operation: ConfigOperation = ConfigOperation.SET, *, validate_only: bool = False
) -> Outcome:
    definitions = ConfigDefinitions(
        topic=TOPIC_CONFIGS, broker=BROKER_CONFIGS, group=settings.definition_of(GroupConfig())
    )
    value = "50000" if operation is ConfigOperation.SET else None
    change = ConfigAlteration("consumer.session.timeout.ms", operation, value)
    group = AlterResource(ConfigResource(ConfigResourceType.GROUP, "g"), [change])
    retention = ConfigAlteration("retention.ms", ConfigOperation.SET, str(cluster.image.number))
    topic = AlterResource(ConfigResource(ConfigResourceType.TOPIC, "t"), [retention])
    decision = decide_alter_configs(
        cluster.image, [group, topic], definitions=definitions, validate_only=validate_only
    )
    (_, of_group), (_, of_topic) = cluster.enact(decision)
    assert of_topic.ok, "other changes of the request do not wait for an upgrade"
    return of_group


@pytest.mark.parametrize("fenced", [False, True])
def test_settings_of_groups_wait_until_every_registered_broker_can_read_them(fenced: bool) -> None:
    cluster = before_formats()
    cluster.create("t")
    if fenced:
        cluster.down(2)  # it may return
    for validate_only in (True, False):
        refused = alter_group(cluster, validate_only=validate_only)
        assert refused.error is ErrorCode.unsupported_version
        assert "kafka-features.sh upgrade --feature nilometer.metadata.format=3" in (refused.message or "")
    error, message = update(cluster, (METADATA_FORMAT, 3, UP))
    assert (error, "Broker 2 does not support this feature" in message) == ("invalid_update_version", True)
    assert {json.loads(data)["version"] for data in cluster.log} <= {1, 2}, "the earlier version reads it all"

    cluster.down(2)
    cluster.up(2)
    assert alter_group(cluster).error is ErrorCode.unsupported_version, "until the level is raised"
    assert update(cluster, (METADATA_FORMAT, 3, UP)) == ("none", "")
    assert alter_group(cluster).ok
    assert json.loads(cluster.log[-1])["version"] == 3
    assert cluster.image.config(ConfigResourceType.GROUP, "g") == {"consumer.session.timeout.ms": "50000"}
    assert alter_group(cluster, ConfigOperation.DELETE).ok
    cluster.down(2)
    assert register_earlier_version(cluster, 2).error is ErrorCode.unsupported_version


def test_removing_a_setting_that_is_not_there_writes_no_record() -> None:
    cluster = before_formats()
    cluster.create("t")
    assert alter_group(cluster, ConfigOperation.DELETE).ok
    assert {json.loads(data)["version"] for data in cluster.log} <= {1, 2}
