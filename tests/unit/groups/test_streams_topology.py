"""What a topology needs of the cluster's topics: how many partitions its internal topics get, and what is
missing or cannot work.
"""

from __future__ import annotations

import pytest

from nilometer.groups.streams_topology import (
    TASKS_MAX,
    Configured,
    CopartitionGroup,
    KeyValue,
    Status,
    Subtopology,
    TopicInfo,
    Topology,
    configure,
)
from nilometer.wire.errors import ErrorCode, KafkaError


def writer(name: str, *sources: str, to: str) -> Subtopology:
    return Subtopology(name, sources, repartition_sink_topics=(to,))


def reader(
    name: str, *repartition: TopicInfo, changelog: str = "", **fields: tuple[object, ...]
) -> Subtopology:
    stores = (TopicInfo(changelog),) if changelog else ()
    return Subtopology(  # type: ignore[arg-type]
        name, repartition_source_topics=repartition, state_changelog_topics=stores, **fields
    )


def configured(*subtopologies: Subtopology, **topics: int) -> Configured:
    names = {name.replace("_", "-"): count for name, count in topics.items()}
    return configure(Topology(3, subtopologies), 7, lambda name: names.get(name, 0))


def test_a_changelog_has_as_many_partitions_as_the_largest_source_topic() -> None:
    found = configured(Subtopology("0", ("a", "b"), state_changelog_topics=(TopicInfo("log"),)), a=2, b=5)
    assert (found.status, found.detail) == (
        Status.MISSING_INTERNAL_TOPICS,
        "Internal topics are missing: log",
    )
    assert [(topic.name, topic.partitions) for topic in found.missing] == [("log", 5)]
    assert found.subtopologies["0"].tasks == 5
    assert found.subtopologies["0"].is_stateful
    assert not found.is_ready
    assert (found.epoch, found.metadata_hash) == (3, 7)


def test_all_topics_are_there() -> None:
    found = configured(
        Subtopology("0", ("a",), state_changelog_topics=(TopicInfo("log"),)),
        Subtopology("1", ("b",)),
        a=2,
        b=1,
        log=2,
    )
    assert found.is_ready
    assert not found.missing
    assert found.has_task(("0", 1))
    assert not found.has_task(("0", 2))
    assert not found.has_task(("0", -1))
    assert not found.has_task(("2", 0))
    assert not found.subtopologies["1"].is_stateful


@pytest.mark.parametrize("backwards", [False, True])
def test_repartition_topics_follow_from_what_is_known(backwards: bool) -> None:
    chain = [
        writer("0", "a", to="r1"),
        Subtopology("1", (), repartition_sink_topics=("r2",), repartition_source_topics=(TopicInfo("r1"),)),
        reader("2", TopicInfo("r2"), changelog="log"),
    ]
    found = configured(*(reversed(chain) if backwards else chain), a=4)
    assert {topic.name: topic.partitions for topic in found.missing} == {"r1": 4, "r2": 4, "log": 4}


def test_a_repartition_topic_has_the_partitions_that_it_asks_for() -> None:
    info = TopicInfo("r", 9, 2, (KeyValue("retention.ms", "-1"),))
    found = configured(writer("0", "a", to="r"), reader("1", info, changelog="log"), a=4)
    [log, topic] = found.missing
    assert (topic.name, topic.partitions, topic.replication_factor) == ("r", 9, 2)
    assert topic.topic_configs == (KeyValue("retention.ms", "-1"),)
    assert log.partitions == 9


def test_a_topic_that_exists_must_have_the_right_number_of_partitions() -> None:
    found = configured(Subtopology("0", ("a",), state_changelog_topics=(TopicInfo("log"),)), a=2, log=3)
    assert found.status is Status.INCORRECTLY_PARTITIONED_TOPICS
    assert found.detail == "Existing topic log has different number of partitions: expected 2, found 3"
    assert not found.subtopologies


def test_missing_source_topics_are_named() -> None:
    found = configured(Subtopology("0", ("a", "b", "c", "d", "e")), a=1)
    assert found.status is Status.MISSING_SOURCE_TOPICS
    assert found.detail == "Source topics b, c, d and 1 additional topics are missing."


def joined(*sources: str, repartition: tuple[TopicInfo, ...] = ()) -> Subtopology:
    group = CopartitionGroup(tuple(range(len(sources))), (), tuple(range(len(repartition))))
    return Subtopology("j", sources, repartition_source_topics=repartition, copartition_groups=(group,))


def test_joined_topics_must_have_the_same_number_of_partitions() -> None:
    found = configured(joined("a", "b"), a=2, b=3)
    assert found.status is Status.INCORRECTLY_PARTITIONED_TOPICS
    assert found.detail == "Following topics do not have the same number of partitions: [{a=2, b=3}]"
    assert configured(joined("a", "b"), a=2, b=2).is_ready


def test_a_joined_topic_that_the_application_writes_to_as_well_is_no_repartition_topic() -> None:
    found = configured(writer("0", "b", to="a"), joined("a", "b"), a=2, b=3)
    assert found.status is Status.INCORRECTLY_PARTITIONED_TOPICS


def test_a_short_topology_has_no_more_tasks_than_can_be_handed_out() -> None:
    half = TASKS_MAX // 2 - 1  # the subtopologies are named, too
    two = Subtopology("0", ("a",)), Subtopology("1", ("a",))
    assert configured(*two, a=half).is_ready
    found = configured(*two, a=half + 1)
    assert found.status is Status.INCORRECTLY_PARTITIONED_TOPICS
    assert found.detail.startswith(f"The topology has {TASKS_MAX} tasks ")
    assert not found.subtopologies


def test_what_a_topology_takes_in_memory_counts_all_its_texts_and_indexes() -> None:
    short = Topology(0, (Subtopology("0", ("a",)),)).bytes()
    assert Topology(0, (Subtopology("0" * 30_000, ("a",)),)).bytes() >= short + 29_999
    indexes = CopartitionGroup(source_topic_regex=(300,) * 5_000)
    assert Topology(0, (Subtopology("0", ("a",), copartition_groups=(indexes,)),)).size() >= 5_000


def test_a_joined_repartition_topic_has_the_partitions_of_the_other_topic() -> None:
    found = configured(writer("0", "wide", to="r"), joined("a", repartition=(TopicInfo("r"),)), a=2, wide=8)
    assert [(topic.name, topic.partitions) for topic in found.missing] == [("r", 2)]


def test_a_joined_repartition_topic_with_another_number_is_refused() -> None:
    found = configured(writer("0", "a", to="r"), joined("a", repartition=(TopicInfo("r", 5),)), a=2)
    assert found.status is Status.INCORRECTLY_PARTITIONED_TOPICS
    assert "[5] of repartition topic [r] doesn't match number of partitions [2]" in found.detail


def test_joined_repartition_topics_have_the_number_that_one_asks_for_or_the_largest() -> None:
    both = (TopicInfo("r"), TopicInfo("s"))
    writers = writer("0", "a", to="r"), writer("1", "b", to="s")
    found = configured(*writers, joined(repartition=both), a=2, b=6)
    assert {topic.name: topic.partitions for topic in found.missing} == {"r": 6, "s": 6}
    fixed = (TopicInfo("r", 3), TopicInfo("s"))
    found = configured(*writers, joined(repartition=fixed), a=2, b=6)
    assert {topic.name: topic.partitions for topic in found.missing} == {"r": 3, "s": 3}


def test_a_number_that_another_group_asks_for_does_not_matter() -> None:
    found = configured(
        writer("0", "a", to="r"),
        joined(repartition=(TopicInfo("r", 3),)),
        Subtopology("1", repartition_source_topics=(TopicInfo("other", 7),)),
        a=2,
    )
    assert {topic.name: topic.partitions for topic in found.missing} == {"r": 3, "other": 7}


@pytest.mark.parametrize(
    ("subtopologies", "why"),
    [
        ((Subtopology("0"),), "No source topics found for subtopology 0"),
        ((reader("0", TopicInfo("r")),), "a repartition source topic is never used as a sink topic"),
        (
            (Subtopology("0", (), (), (), ("r",), (TopicInfo("r"),)),),
            "There may be loops in the topology that cannot be resolved",
        ),
        (
            (Subtopology("0", ("a",), copartition_groups=(CopartitionGroup((1,)),)),),
            "A co-partition group of subtopology 0 names no topic.",
        ),
        (
            (Subtopology("0", ("a",), copartition_groups=(CopartitionGroup((-1,)),)),),
            "A co-partition group of subtopology 0 names no topic.",
        ),
    ],
)
def test_a_topology_that_can_never_run_is_refused(subtopologies: tuple[Subtopology, ...], why: str) -> None:
    with pytest.raises(KafkaError, match=why) as refusal:
        configured(*subtopologies, a=1)
    assert refusal.value.code is ErrorCode.streams_invalid_topology


def test_a_wrong_index_is_found_before_the_source_topics_exist() -> None:
    """A group keeps its first topology: it must not be one that can never run."""
    wrong = Subtopology("0", ("a",), copartition_groups=(CopartitionGroup((1,)),))
    with pytest.raises(KafkaError, match="names no topic"):
        configured(wrong)


def test_a_long_chain_takes_as_many_steps_as_it_has_links() -> None:
    """A round for each link, over all links, would hold the event loop."""
    calls = 0

    def count_of(name: str) -> int:
        nonlocal calls
        calls += 1
        return 4 if name == "a" else 0

    links = 1_000
    chain = [writer("0", "a", to="r0")]
    chain += [
        Subtopology(
            f"{link:04}",
            (),
            repartition_sink_topics=(f"r{link}",),
            repartition_source_topics=(TopicInfo(f"r{link - 1}"),),
        )
        for link in range(1, links)
    ]
    found = configure(Topology(0, tuple(reversed(chain))), 0, count_of)
    assert len(found.missing) == links - 1
    assert calls < 20 * links
