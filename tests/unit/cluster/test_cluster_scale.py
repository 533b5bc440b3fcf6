"""Ten thousand partitions: what a change costs does not grow with them, and every entry stays small."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from cluster_harness import TOPIC_CONFIGS, ClusterWorld

from nilometer.cluster.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.controller.access import decide_create_acls, decide_delete_acls
from nilometer.cluster.controller.brokers import (
    decide_broker_up,
    decide_brokers_down,
    decide_controlled_shutdown,
)
from nilometer.cluster.controller.controllership import decide_repair
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.isr_changes import IsrChange, IsrMember, decide_alter_partitions
from nilometer.cluster.controller.reassignments import (
    ElectionType,
    Reassignment,
    decide_alter_reassignments,
    decide_elect_leaders,
    decide_preferred_leaders,
)
from nilometer.cluster.controller.topics import (
    MorePartitions,
    NewTopic,
    TopicDefaults,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)
from nilometer.cluster.entries import (
    ENTRY_BYTES_MAX,
    ENTRY_BYTES_TARGET,
    RECORDS_TARGET,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    entries_of,
)
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import BrokerId, EntryNumber, TopicId
from support.calls import counted_calls

R = TypeVar("R")

TOPICS, PARTITIONS = 10, 1000


def big_world(topics: int = TOPICS) -> ClusterWorld:
    world = ClusterWorld().with_brokers(1, 2, 3, 4, 5)
    for index in range(topics):
        created = world.create(f"topic-{index}", num_partitions=PARTITIONS, replication_factor=3)
        assert created.outcome.ok
    return world


PATTERNS = (PatternType.LITERAL, PatternType.PREFIXED)
STEP_CALLS_MAX = 3_000
"""In each step of what takes long; all of it has more than ten times as many."""


def calls_of_steps(steps: Generator[int, None, R]) -> tuple[list[int], R]:
    """Return how many functions each step calls, and the result of all."""
    found: list[int] = []
    while True:
        with counted_calls() as calls:
            try:
                next(steps)
            except StopIteration as done:
                return [*found, calls[0]], done.value
        found.append(calls[0])


def fold_in_steps(world: ClusterWorld, decision: Decision[object]) -> None:
    """Append the one entry of ``decision``, prepared in steps; nothing takes long at once."""
    (entry,) = entries_of(decision.units, world.image.controllership, ENTRY_BYTES_MAX)
    calls, prepared = calls_of_steps(world.image.prepare(entry))
    assert sum(calls) > 10 * STEP_CALLS_MAX
    assert max(calls) < STEP_CALLS_MAX
    number, before = EntryNumber(len(world.log)), world.image.snapshot()
    with counted_calls() as at_once:
        world.image.check_entry(number, entry, prepared)
    assert at_once[0] < STEP_CALLS_MAX
    assert world.image.snapshot() == before
    with counted_calls() as at_once:
        world.image.apply_entry(number, entry, prepared)
    assert at_once[0] < STEP_CALLS_MAX
    world.log.append(encode_entry(entry))
    assert world.refold() == world.image


def test_a_topic_of_thousands_of_partitions_is_made_changed_and_deleted_in_short_steps() -> None:
    world = ClusterWorld().with_brokers(1, 2, 3)
    image, count = world.image, 6_000
    topic = NewTopic(name="wide", num_partitions=count, replication_factor=2)
    how: Any = {"config_definition": TOPIC_CONFIGS, "chance": world.chance, "defaults": TopicDefaults()}
    deciding = decide_create_topics.steps(image, [topic], **how)
    calls, created = calls_of_steps(deciding)
    assert created.reply[0].outcome.ok
    assert sum(calls) > 10 * STEP_CALLS_MAX
    assert max(calls) < STEP_CALLS_MAX
    fold_in_steps(world, created)
    moves = [Reassignment("wide", partition, (3, 1)) for partition in range(count)]
    for steps in (
        decide_alter_reassignments.steps(image, moves),
        decide_elect_leaders.steps(image, ElectionType.PREFERRED, None),
        decide_preferred_leaders.steps(image),
        decide_brokers_down.steps(image, [BrokerId(1)]),
    ):
        calls, made = calls_of_steps(steps)
        assert sum(calls) > 4 * count
        assert max(calls) < 2 * count  # one look at each partition
    fold_in_steps(world, made)
    more = MorePartitions(name="wide", count=count + 3_000)
    calls, added = calls_of_steps(decide_create_partitions.steps(image, [more], chance=world.chance))
    assert added.reply[0][1].ok
    assert max(calls) < STEP_CALLS_MAX
    fold_in_steps(world, added)
    fold_in_steps(world, decide_delete_topics(image, [created.reply[0].topic_id or TopicId("")]))
    assert image.partitions_count == 0
    assert image.partitions_on(BrokerId(2)) == []


def test_thousands_of_acls_are_selected_and_deleted_in_short_steps() -> None:
    world, count = ClusterWorld(), 9_000
    users = [f"User:{number % 50}" for number in range(count)]
    acls = [
        Acl(
            ResourceType.TOPIC,
            f"t{number}",
            PATTERNS[number % 2],
            user,
            "*",
            Operation.READ,
            Permission.ALLOW,
        )
        for number, user in enumerate(users)
    ]
    world.enact(decide_create_acls(world.image, acls, chance=world.chance))
    for wanted in (
        AclFilter(principal="User:7"),
        AclFilter(resource_name="t10"),
        AclFilter(resource_name="t1000", pattern_type=PatternType.MATCH),
        AclFilter(resource_name="t1", pattern_type=PatternType.PREFIXED),
        AclFilter(resource_name="*", pattern_type=PatternType.LITERAL),
    ):
        calls, found = calls_of_steps(world.image.acls.select(wanted))
        assert list(found.values()) == sorted(acl for acl in acls if wanted.matches(acl))
        assert max(calls) < STEP_CALLS_MAX
        assert wanted.resource_name is None or sum(calls) < STEP_CALLS_MAX, "found by name"
    calls, decision = calls_of_steps(decide_delete_acls.steps(world.image, [AclFilter()]))
    assert sum(calls) > 2 * count
    assert max(calls) < count + STEP_CALLS_MAX  # one look at each
    entries = list(entries_of(decision.units, world.image.controllership))
    assert [len(entry.records) for entry in entries] == [RECORDS_TARGET] * 9
    world.enact(decision)
    assert len(world.image.acls) == 0


def shrink(world: ClusterWorld) -> int:
    """The work of one AlterPartition: decided, encoded, decoded, folded."""
    state = world.state("topic-0", 7)
    request = IsrChange(
        partition=world.key("topic-0", 7),
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        new_isr=tuple(IsrMember(r) for r in state.isr[:2]),
    )
    epoch = world.epoch(state.leader)
    with counted_calls() as calls:
        world.enact(decide_alter_partitions(world.image, state.leader, epoch, [request]))
    assert len(world.state("topic-0", 7).isr) == 2
    return calls[0]


def test_n1_one_change_costs_the_same_among_ten_times_as_many_partitions() -> None:
    few, many = shrink(big_world(1)), shrink(big_world(TOPICS))
    assert few == many


@pytest.fixture(scope="module")
def lossy() -> ClusterWorld:
    return big_world()


def test_k3_a_broker_with_ten_thousand_partitions_around_it_goes_and_comes(lossy: ClusterWorld) -> None:
    world = lossy
    assert world.image.partitions_count == TOPICS * PARTITIONS
    hosted = {key for key, _ in world.image.partitions_on(BrokerId(1))}
    assert len(hosted) == TOPICS * PARTITIONS * 3 // 5
    decision = decide_brokers_down(world.image, [BrokerId(1)])
    entries = list(entries_of(decision.units, world.image.controllership))
    assert len(entries) > 1
    touched = set()
    for entry in entries:
        assert len(encode_entry(entry)) <= ENTRY_BYTES_TARGET
        delta = world.append(entry)
        assert not touched.intersection(delta.partitions)
        touched.update(delta.partitions)
    assert touched == hosted
    leaders = [state.leader for _, state in world.image.partitions()]
    assert 1 not in leaders
    for broker in (2, 3, 4, 5):  # what one broker led is spread over all others
        assert leaders.count(broker) == TOPICS * PARTITIONS // 4
    world.enact(decide_broker_up(world.image, world.registration(1)))
    assert not decide_repair(world.image)
    shutdown = decide_controlled_shutdown(world.image, BrokerId(2), world.epoch(2))
    assert shutdown.reply.leaderships == TOPICS * PARTITIONS // 4
    world.enact(shutdown)
    assert all(state.leader != 2 for _, state in world.image.partitions())


def test_k1_a_snapshot_of_ten_thousand_partitions_is_the_fold(lossy: ClusterWorld) -> None:
    data = encode_snapshot(lossy.image.snapshot())
    image = ClusterImage.from_snapshot(decode_snapshot(data))
    assert image == lossy.image
    assert image.partitions_on(BrokerId(3)) == lossy.image.partitions_on(BrokerId(3))
    refolded = lossy.refold()
    assert refolded == lossy.image
    assert all(len(entry) < 900_000 for entry in lossy.log)
    assert decode_entry(lossy.log[0]).controller_epoch == 1
