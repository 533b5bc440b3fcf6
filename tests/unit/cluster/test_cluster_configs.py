"""Settings: incremental changes, and what min.insync.replicas means for who is safe."""

from __future__ import annotations

import msgspec
import pytest
from cluster_harness import BROKER_CONFIGS, TOPIC_CONFIGS, ClusterWorld

from nilometer.cluster.controller.configs import (
    TOO_LONG,
    VALUE_CHARACTERS_MAX,
    AlterResource,
    ConfigAlteration,
    ConfigDefinitions,
    ConfigOperation,
    decide_alter_configs,
)
from nilometer.cluster.controller.controllership import decide_cluster_defaults
from nilometer.cluster.controller.decision import Outcome
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.records import (
    GROUP_CONFIGS_FORMAT_VERSION,
    ConfigChanged,
    ConfigResourceType,
    PartitionChanged,
    format_version_of,
)
from nilometer.groups import settings
from nilometer.groups.settings import GroupConfig
from nilometer.identifiers import BrokerId
from nilometer.storage.topic_config import TOPIC_CONFIG
from nilometer.wire.errors import ErrorCode

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
DEFINITIONS = ConfigDefinitions(
    topic=TOPIC_CONFIGS, broker=BROKER_CONFIGS, group=settings.definition_of(GroupConfig())
)
TOPIC = ConfigResource(ConfigResourceType.TOPIC, "t")
ALL_BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
GROUP = ConfigResource(ConfigResourceType.GROUP, "g")


def alter(
    world: ClusterWorld, resource: ConfigResource, *alterations: tuple[str, ConfigOperation, str | None]
) -> Outcome:
    request = AlterResource(resource, [ConfigAlteration(*alteration) for alteration in alterations])
    ((_, outcome),) = world.enact(decide_alter_configs(world.image, [request], definitions=DEFINITIONS))
    return outcome


def test_k4_set_delete_append_subtract(world: ClusterWorld) -> None:
    world.create()
    assert alter(world, TOPIC, ("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact")).ok
    assert world.image.config(*TOPIC) == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    assert alter(world, TOPIC, ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None)).ok
    assert world.image.config(*TOPIC) == {"cleanup.policy": "compact"}
    assert alter(world, TOPIC, ("cleanup.policy", APPEND, "compact")).ok
    assert world.image.config(*TOPIC) == {"cleanup.policy": "compact"}
    assert alter(world, TOPIC, ("cleanup.policy", DELETE, None)).ok
    assert world.image.config(*TOPIC) == {}
    assert world.refold() == world.image


def test_a_list_that_is_appended_to_is_no_longer_than_a_value_may_be(world: ClusterWorld) -> None:
    """Each broker parses the whole list whenever it changes."""
    world.create()
    definitions = msgspec.structs.replace(DEFINITIONS, topic=TOPIC_CONFIG)
    name = "leader.replication.throttled.replicas"

    def change(operation: ConfigOperation, *numbers: int) -> Outcome:
        value = ",".join(f"{number:09}:1" for number in numbers)
        request = AlterResource(TOPIC, [ConfigAlteration(name, operation, value)])
        ((_, outcome),) = world.enact(decide_alter_configs(world.image, [request], definitions=definitions))
        return outcome

    fits = (VALUE_CHARACTERS_MAX + 1) // len("000000000:1,")
    assert change(APPEND, *range(2_000)).ok
    assert change(APPEND, *range(1_000, fits)).ok
    refused = change(APPEND, fits)
    assert (refused.error, refused.message) == (ErrorCode.invalid_config, TOO_LONG)
    assert change(SUBTRACT, 0).ok
    assert change(APPEND, fits).ok


def test_an_unknown_setting_can_be_removed(world: ClusterWorld) -> None:
    """It may be left from a version that knew it."""
    world.create()
    before = world.image.number
    assert alter(world, TOPIC, ("nonsense", DELETE, None)).ok
    assert world.image.number == before


@pytest.mark.parametrize(
    ("resource", "alteration", "error"),
    [
        (TOPIC, ("nonsense", SET, "1"), ErrorCode.invalid_config),
        (TOPIC, ("retention.ms", SET, "-2"), ErrorCode.invalid_config),
        (TOPIC, ("retention.ms", SET, None), ErrorCode.invalid_request),
        (TOPIC, ("retention.ms", APPEND, "1"), ErrorCode.invalid_config),
        (TOPIC, ("cleanup.policy", APPEND, "shred"), ErrorCode.invalid_config),
        (TOPIC._replace(name="none"), ("retention.ms", SET, "1"), ErrorCode.unknown_topic_or_partition),
        (ALL_BROKERS, ("log.dirs", SET, "/x"), ErrorCode.invalid_request),
        (ALL_BROKERS._replace(name="9"), ("min.insync.replicas", SET, "1"), ErrorCode.invalid_request),
        (ALL_BROKERS._replace(name="x"), ("min.insync.replicas", SET, "1"), ErrorCode.invalid_request),
        (GROUP, ("retention.ms", SET, "1"), ErrorCode.invalid_config),
        (GROUP, ("consumer.session.timeout.ms", SET, "44999"), ErrorCode.invalid_config),
        (GROUP, ("consumer.session.timeout.ms", SET, "60001"), ErrorCode.invalid_config),
        (GROUP, ("consumer.session.timeout.ms", SET, "soon"), ErrorCode.invalid_config),
        (GROUP, ("consumer.heartbeat.interval.ms", SET, "4999"), ErrorCode.invalid_config),
        (GROUP, ("consumer.assignment.interval.ms", SET, "-1"), ErrorCode.invalid_config),
        (GROUP, ("consumer.session.timeout.ms", APPEND, "1"), ErrorCode.invalid_config),
        (GROUP, ("consumer.session.timeout.ms", SET, None), ErrorCode.invalid_request),
        (GROUP, ("streams.session.timeout.ms", SET, "44999"), ErrorCode.invalid_config),
        (GROUP, ("streams.num.standby.replicas", SET, "3"), ErrorCode.invalid_config),
        (GROUP, ("streams.num.standby.replicas", SET, "-1"), ErrorCode.invalid_config),
        (GROUP, ("streams.assignor.name", SET, "random"), ErrorCode.invalid_config),
        (GROUP, ("streams.rack.aware.assignment.tags", SET, "a,b,a"), ErrorCode.invalid_config),
        (GROUP._replace(name=""), ("consumer.session.timeout.ms", SET, "50000"), ErrorCode.invalid_request),
        (
            ConfigResource(ConfigResourceType.CLUSTER, ""),
            ("retention.ms", SET, "1"),
            ErrorCode.invalid_request,
        ),
    ],
)
def test_a_bad_setting_is_refused_and_changes_nothing(
    world: ClusterWorld,
    resource: ConfigResource,
    alteration: tuple[str, ConfigOperation, str | None],
    error: ErrorCode,
) -> None:
    world.create()
    before = world.image.snapshot()
    assert alter(world, resource, alteration).error is error
    assert world.image.snapshot() == before


def test_a_resource_changes_altogether_or_not_at_all(world: ClusterWorld) -> None:
    world.create()
    outcome = alter(world, TOPIC, ("retention.ms", SET, "5"), ("min.insync.replicas", SET, "0"))
    assert outcome.error is ErrorCode.invalid_config
    assert alter(world, TOPIC, ("retention.ms", SET, "5"), ("retention.ms", SET, "6")).error is (
        ErrorCode.invalid_request
    )
    assert world.image.config(*TOPIC) == {}


def test_a_resource_named_twice_is_refused(world: ClusterWorld) -> None:
    world.create()
    request = AlterResource(TOPIC, [ConfigAlteration("retention.ms", SET, "5")])
    decision = decide_alter_configs(world.image, [request, request], definitions=DEFINITIONS)
    assert not decision
    assert {outcome.error for _, outcome in decision.reply} == {ErrorCode.invalid_request}


def test_kafka_14136_brokers_are_told_of_an_unchanged_value(world: ClusterWorld) -> None:
    request = AlterResource(ALL_BROKERS, [ConfigAlteration("min.insync.replicas", SET, "2")])
    for _ in range(2):
        decision = decide_alter_configs(world.image, [request], definitions=DEFINITIONS)
        assert len(list(decision.records)) == 1
        world.enact(decision)
    world.create()
    topic = AlterResource(TOPIC, [ConfigAlteration("retention.ms", SET, "5")])
    world.enact(decide_alter_configs(world.image, [topic], definitions=DEFINITIONS))
    assert not decide_alter_configs(world.image, [topic], definitions=DEFINITIONS)


def test_kip_966_lowering_min_insync_replicas_forgets_who_was_safe_only_because_of_it(
    world: ClusterWorld,
) -> None:
    world.topic([1, 2, 3], min_isr=2)
    world.down(1)
    world.down(2)
    assert (world.state().isr, world.state().elr) == ((3,), (2,))
    request = AlterResource(TOPIC, [ConfigAlteration("min.insync.replicas", SET, "1")])
    decision = decide_alter_configs(world.image, [request], definitions=DEFINITIONS)
    records = list(decision.records)
    # Interrupted between the two, no broker may trust broker 2 while the leader commits without it.
    assert [type(record) for record in records] == [PartitionChanged, ConfigChanged]
    world.enact(decision)
    assert (world.state().isr, world.state().elr) == ((3,), ())


@pytest.mark.parametrize("where", ["all brokers", "cluster"])
def test_kip_966_lowering_the_inherited_value_counts_too(world: ClusterWorld, where: str) -> None:
    world.enact(decide_cluster_defaults(world.image, {"min.insync.replicas": "2"}))
    world.create("inherits", assignments={0: [1, 2, 3]})
    world.topic([1, 2, 3], min_isr=2)
    world.down(1)
    world.down(2)
    if where == "cluster":
        world.enact(decide_cluster_defaults(world.image, {}))
    else:
        assert alter(world, ALL_BROKERS, ("min.insync.replicas", SET, "1")).ok
    assert world.state("inherits").elr == ()
    assert world.state("t").elr == (2,)


def test_kip_966_raising_min_insync_replicas_makes_no_replica_safe_afterwards(world: ClusterWorld) -> None:
    world.topic([1, 2, 3], min_isr=1)
    world.down(1)
    assert world.state().elr == ()
    assert alter(world, TOPIC, ("min.insync.replicas", SET, "3")).ok
    assert world.state().elr == ()
    world.down(2)
    assert (world.state().isr, world.state().elr) == ((3,), (2,))
    # 2 of 3 would do now for a high watermark that moves, but the ISR has one: still held, still safe.
    assert alter(world, TOPIC, ("min.insync.replicas", SET, "2")).ok
    assert world.state().elr == (2,)


def test_edge_44_min_insync_replicas_counts_up_to_the_number_of_replicas(world: ClusterWorld) -> None:
    world.topic([1], min_isr=2)
    world.down(1)
    world.up(1, clean=True)
    assert (world.state().leader, world.state().isr, world.state().elr) == (1, (1,), ())
    assert world.image.min_insync_replicas("t") == 2
    assert world.image.is_active(BrokerId(1))


def test_a_group_has_settings_of_its_own(world: ClusterWorld) -> None:
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    assert alter(world, GROUP, (session, SET, "50000"), (heartbeat, SET, "15000")).ok
    assert world.image.config(*GROUP) == {session: "50000", heartbeat: "15000"}
    assert alter(world, GROUP, (session, DELETE, None), ("left by another version", DELETE, None)).ok
    assert world.image.config(*GROUP) == {heartbeat: "15000"}
    assert world.refold() == world.image


def test_a_groups_session_must_be_longer_than_its_heartbeat_interval(world: ClusterWorld) -> None:
    bounds = GroupConfig(group_consumer_max_heartbeat_interval_ms=60_000)
    definitions = ConfigDefinitions(
        topic=TOPIC_CONFIGS, broker=BROKER_CONFIGS, group=settings.definition_of(bounds)
    )
    for text, error in (("44999", ErrorCode.none), ("45000", ErrorCode.invalid_config)):
        change = ConfigAlteration("consumer.heartbeat.interval.ms", SET, text)
        decision = decide_alter_configs(
            world.image, [AlterResource(GROUP, [change])], definitions=definitions
        )
        ((_, outcome),) = decision.reply
        assert outcome.error is error, text


def test_settings_of_groups_need_a_newer_format(world: ClusterWorld) -> None:
    """A broker that does not know them must not go on without them."""
    world.create()
    assert alter(world, TOPIC, ("retention.ms", SET, "5")).ok
    before = world.image.snapshot().version
    assert before < GROUP_CONFIGS_FORMAT_VERSION
    changed = ConfigChanged(resource_type=ConfigResourceType.GROUP, resource_name="g", key="k", value="1")
    assert format_version_of([changed]) == GROUP_CONFIGS_FORMAT_VERSION
    assert alter(world, GROUP, ("consumer.session.timeout.ms", SET, "50000")).ok
    assert world.image.snapshot().version == GROUP_CONFIGS_FORMAT_VERSION
    assert alter(world, GROUP, ("consumer.session.timeout.ms", DELETE, None)).ok
    assert world.image.snapshot().version == before
