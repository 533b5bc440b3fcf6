"""What the controller accepts, every broker can apply; what a broker cannot apply, it does without.

The definitions are those of the product: a topic's and a broker's keys, and the rules between them.
"""

from __future__ import annotations

import pytest
from cluster_harness import ClusterWorld
from hypothesis import given
from hypothesis import strategies as st

from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig
from nilometer.cluster.controller.configs import (
    AlterResource,
    ConfigAlteration,
    ConfigDefinitions,
    ConfigOperation,
    decide_alter_configs,
)
from nilometer.cluster.controller.decision import Outcome
from nilometer.cluster.controller.topics import NewTopic, TopicDefaults, decide_create_topics
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.config import ConfigError
from nilometer.groups import settings
from nilometer.storage.topic_config import LONG_MAX, TOPIC_CONFIG, LogConfig
from nilometer.wire.errors import ErrorCode
from support.properties import examples

FILE = BrokerConfig({"node.id": "1"})
DEFINITIONS = ConfigDefinitions(
    topic=TOPIC_CONFIG,
    broker=BROKER_CONFIG_DEFINITION,
    group=settings.definition_of(FILE.groups),
    inherited_of=FILE.topic_defaults,
)
TOPIC = ConfigResource(ConfigResourceType.TOPIC, "t")
ALL_BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
MIN, MAX = "min.compaction.lag.ms", "max.compaction.lag.ms"
MIN_OF_BROKERS, MAX_OF_BROKERS = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"


def create(world: ClusterWorld, name: str = "t", **configs: str) -> Outcome:
    topic = NewTopic(name=name, configs={key.replace("_", "."): text for key, text in configs.items()})
    decision = decide_create_topics(
        world.image,
        [topic],
        config_definition=TOPIC_CONFIG,
        inherited_of=FILE.topic_defaults,
        chance=world.chance,
        defaults=TopicDefaults(),
    )
    (created,) = world.enact(decision)
    return created.outcome


def alter(world: ClusterWorld, resource: ConfigResource, **texts: str | None) -> Outcome:
    alterations = [
        ConfigAlteration(
            key.replace("_", "."), ConfigOperation.DELETE if text is None else ConfigOperation.SET, text
        )
        for key, text in texts.items()
    ]
    request = AlterResource(resource, alterations)
    ((_, outcome),) = world.enact(decide_alter_configs(world.image, [request], definitions=DEFINITIONS))
    return outcome


def test_a_topic_is_not_created_with_settings_that_contradict_each_other(world: ClusterWorld) -> None:
    outcome = create(world, min_compaction_lag_ms="100", max_compaction_lag_ms="1")
    assert outcome.error is ErrorCode.invalid_config
    assert MIN in str(outcome.message) and MAX in str(outcome.message)
    assert world.image.topics() == []
    assert create(world, min_compaction_lag_ms="100", max_compaction_lag_ms="100").ok


def test_a_change_is_judged_together_with_what_is_set_already(world: ClusterWorld) -> None:
    create(world)
    assert alter(world, TOPIC, min_compaction_lag_ms="100").ok
    before = world.image.snapshot()
    assert alter(world, TOPIC, max_compaction_lag_ms="99").error is ErrorCode.invalid_config
    assert world.image.snapshot() == before
    assert alter(world, TOPIC, max_compaction_lag_ms="99", min_compaction_lag_ms="3").ok
    assert alter(world, TOPIC, max_compaction_lag_ms=None, min_compaction_lag_ms="100").ok


def test_a_setting_for_all_brokers_is_judged_together_with_every_topic(world: ClusterWorld) -> None:
    create(world, name="u")
    create(world, min_compaction_lag_ms="100")
    refused = alter(world, ALL_BROKERS, log_cleaner_max_compaction_lag_ms="99")
    assert refused.error is ErrorCode.invalid_config
    assert "topic t" in str(refused.message)
    assert alter(world, ALL_BROKERS, log_cleaner_max_compaction_lag_ms="100").ok
    assert create(world, name="v", min_compaction_lag_ms="101").error is ErrorCode.invalid_config
    assert alter(world, TOPIC, min_compaction_lag_ms="101").error is ErrorCode.invalid_config
    assert alter(world, TOPIC, min_compaction_lag_ms="101", max_compaction_lag_ms="102").ok


def test_the_resources_of_one_request_are_judged_together(world: ClusterWorld) -> None:
    create(world)
    requests = [
        AlterResource(TOPIC, [ConfigAlteration(MIN, ConfigOperation.SET, "100")]),
        AlterResource(ALL_BROKERS, [ConfigAlteration(MAX_OF_BROKERS, ConfigOperation.SET, "1")]),
    ]
    first, second = world.enact(decide_alter_configs(world.image, requests, definitions=DEFINITIONS))
    assert first[1].ok
    assert second[1].error is ErrorCode.invalid_config
    assert world.image.config(*ALL_BROKERS) == {}


def test_taking_a_setting_back_is_judged_by_what_is_inherited_then(world: ClusterWorld) -> None:
    create(world, min_compaction_lag_ms="100", max_compaction_lag_ms="200")
    assert alter(world, ALL_BROKERS, log_cleaner_max_compaction_lag_ms="50").ok
    assert alter(world, TOPIC, max_compaction_lag_ms=None).error is ErrorCode.invalid_config
    assert alter(world, TOPIC, max_compaction_lag_ms=None, min_compaction_lag_ms=None).ok


def test_a_broker_with_settings_of_its_own_can_apply_what_is_accepted(world: ClusterWorld) -> None:
    broker = ConfigResource(ConfigResourceType.BROKER, "2")
    assert alter(world, broker, log_cleaner_max_compaction_lag_ms="50").ok
    assert create(world, min_compaction_lag_ms="51").error is ErrorCode.invalid_config
    assert create(world, min_compaction_lag_ms="50").ok
    assert alter(world, broker, log_cleaner_max_compaction_lag_ms="49").error is ErrorCode.invalid_config


def test_a_contradiction_that_is_there_already_can_be_mended_and_does_not_stop_others(
    world: ClusterWorld,
) -> None:
    """It may have come from an earlier version, which judged keys one by one."""
    create(world, min_compaction_lag_ms="100")
    world.image._configs._values[TOPIC][MAX] = "1"  # type: ignore[attr-defined]
    assert alter(world, ALL_BROKERS, log_retention_ms="5000").ok
    assert create(world, name="u", min_compaction_lag_ms="7").ok
    assert alter(world, TOPIC, retention_ms="5").error is ErrorCode.invalid_config
    assert alter(world, TOPIC, max_compaction_lag_ms=None).ok
    assert alter(world, TOPIC, retention_ms="5").ok


@pytest.mark.parametrize("key", ["min.insync.replicas", "unclean.leader.election.enable"])
def test_what_all_must_agree_on_is_not_set_for_one_broker(world: ClusterWorld, key: str) -> None:
    value = {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}[key]
    create(world)
    one = ConfigResource(ConfigResourceType.BROKER, "1")
    underscored = key.replace(".", "_")
    assert alter(world, one, **{underscored: value}).error is ErrorCode.invalid_config
    assert world.image.config(*one) == {}
    assert alter(world, ALL_BROKERS, **{underscored: value}).ok
    in_force = {
        "min.insync.replicas": str(world.image.min_insync_replicas("t")),
        "unclean.leader.election.enable": str(world.image.unclean_leader_election_enabled("t")).lower(),
    }
    assert in_force[key] == value
    assert alter(world, one, **{underscored: None}).ok, "one that was accepted by an earlier version"


def test_a_broker_does_not_start_with_a_contradiction_in_its_file() -> None:
    with pytest.raises(ConfigError, match=r"max\.compaction\.lag\.ms"):
        BrokerConfig({"node.id": "1", MIN_OF_BROKERS: "100", MAX_OF_BROKERS: "1"})


def test_a_contradiction_keeps_the_last_good_values() -> None:
    good = TOPIC_CONFIG.resolve({MIN: "5", MAX: "10", "retention.ms": "7"})
    assert not good.errors
    resolved = TOPIC_CONFIG.resolve({MIN: "100", MAX: "1", "retention.ms": "8"}, last_good=good.values)
    assert [error.key for error in resolved.errors] == [MIN]
    assert (resolved.values[MIN], resolved.values[MAX], resolved.values["retention.ms"]) == (5, 10, 8)
    config = LogConfig.of(resolved.values)
    assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms, config.retention_ms) == (5, 10, 8)


def test_without_last_good_values_a_contradiction_leaves_what_is_inherited() -> None:
    resolved = TOPIC_CONFIG.resolve({MIN: "100", MAX: "1"}, {MIN: 3, MAX: 4})
    assert (resolved.values[MIN], resolved.values[MAX]) == (3, 4)
    resolved = TOPIC_CONFIG.resolve({"retention.ms": "5"}, {MIN: 4, MAX: 3})
    assert (resolved.values[MIN], resolved.values[MAX], resolved.values["retention.ms"]) == (0, LONG_MAX, 5)
    assert len(resolved.errors) == 1


def test_a_text_of_a_newer_version_keeps_the_last_good_value() -> None:
    good = TOPIC_CONFIG.resolve({"retention.ms": "7"})
    texts = {"retention.ms": "a week", "no.such.key": "1", "cleanup.policy": "compact"}
    resolved = TOPIC_CONFIG.resolve(texts, last_good=good.values)
    assert {error.key for error in resolved.errors} == {"retention.ms", "no.such.key"}
    assert resolved.values["retention.ms"] == 7
    assert resolved.values["cleanup.policy"] == ("compact",)
    assert "no.such.key" not in resolved.values


@pytest.mark.parametrize("text", ["1_000", "٣", "nan", "1e999", "", " ", "0x10", "1.5", "9" * 5000])
def test_what_kafka_does_not_read_as_a_number_is_none(text: str) -> None:
    for name in ("retention.ms", "min.cleanable.dirty.ratio"):
        if (name, text) != ("min.cleanable.dirty.ratio", "1.5"):
            with pytest.raises(ConfigError) as refused:
                TOPIC_CONFIG.key(name).parse(text)
            assert len(str(refused.value)) < 400, "a refusal does not repeat a text of any length"


# ── any settings ────────────────────────────────────────────────────────────────────────────────────
LAGS = st.integers(0, 4).map(str)
WORDS = (
    "0,1,2,-1,-2,true,false,delete,compact,*,0:1,nan,gzip,producer,LogAppendTime,1e3,1_0,٣,,"
    f"{'x' * 40},{LONG_MAX},{LONG_MAX + 1}"
)
TEXTS = st.sampled_from([*WORDS.split(","), "delete,compact"])
TOPIC_TEXTS = st.dictionaries(st.sampled_from([*TOPIC_CONFIG.keys, "nonsense"]), TEXTS, max_size=4)
TOPIC_SETTINGS = st.tuples(TOPIC_TEXTS, st.dictionaries(st.sampled_from([MIN, MAX]), LAGS, max_size=2)).map(
    lambda both: {**both[0], **both[1]}
)
BROKER_SETTINGS = st.tuples(
    st.dictionaries(st.sampled_from([*BROKER_CONFIG_DEFINITION.keys, "nonsense"]), TEXTS, max_size=3),
    st.dictionaries(st.sampled_from([MIN_OF_BROKERS, MAX_OF_BROKERS]), LAGS, max_size=2),
).map(lambda both: {**both[0], **both[1]})
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just(TOPIC), TOPIC_SETTINGS),
        st.tuples(st.just(TOPIC._replace(name="u")), TOPIC_SETTINGS),
        st.tuples(st.just(ALL_BROKERS), BROKER_SETTINGS),
        st.tuples(st.just(ALL_BROKERS._replace(name="2")), BROKER_SETTINGS),
        st.tuples(st.just(ALL_BROKERS._replace(name="9")), BROKER_SETTINGS),
    ),
    max_size=8,
)


def problems_on(image: ClusterImage, broker_id: int, topic: str) -> tuple[ConfigError, ...]:
    inherited = FILE.topic_defaults(
        image.config(*ALL_BROKERS), image.config(ConfigResourceType.BROKER, str(broker_id))
    )
    return TOPIC_CONFIG.resolve(image.config(ConfigResourceType.TOPIC, topic), inherited).errors


@examples(200)
@given(created=TOPIC_SETTINGS, changes=CHANGES, deletes=st.lists(st.booleans(), min_size=8, max_size=8))
def test_what_the_controller_accepts_every_broker_applies(
    created: dict[str, str], changes: list[tuple[ConfigResource, dict[str, str]]], deletes: list[bool]
) -> None:
    world = ClusterWorld().with_brokers(1, 2, 3)
    create(world, name="u")
    if not create(world, **dict(created.items())).ok:
        assert world.image.topic("t") is None
        create(world)
    for (resource, texts), delete in zip(changes, deletes, strict=False):
        before = world.image.snapshot()
        given_texts = {key: None if delete else text for key, text in texts.items()}
        if not alter(world, resource, **given_texts).ok:
            assert world.image.snapshot() == before, "a rejected request changes nothing"
        for topic in ("t", "u"):
            for broker_id in (1, 2, 3):
                assert problems_on(world.image, broker_id, topic) == ()
            assert world.image.min_insync_replicas(topic) >= 1
    assert world.refold() == world.image


@examples(300)
@given(texts=TOPIC_SETTINGS, inherited=BROKER_SETTINGS, before=TOPIC_SETTINGS)
def test_any_texts_can_be_settled_and_what_is_judged_sound_is_applied_as_it_is(
    texts: dict[str, str], inherited: dict[str, str], before: dict[str, str]
) -> None:
    defaults = FILE.topic_defaults(inherited)
    last_good = TOPIC_CONFIG.resolve(before, defaults).values
    resolved = TOPIC_CONFIG.resolve(texts, defaults, last_good)
    LogConfig.of(resolved.values)
    assert set(resolved.values) == set(TOPIC_CONFIG.keys)
    assert all(rule.why_broken(resolved.values) is None for rule in TOPIC_CONFIG.rules)
    try:
        judged = TOPIC_CONFIG.judge(texts, defaults)
    except ConfigError:
        pass
    else:
        assert resolved.values == judged or TOPIC_CONFIG.contradictions({}, defaults)
