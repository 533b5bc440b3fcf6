"""Indexes and checkpoints rot in the world, invariants break, look-ups by time are judged."""

from __future__ import annotations

import random

import pytest

from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offset_queries import ListedOffset
from nilometer.runtime.runtime import SeededEntropy
from nilometer.simulation.checkers.group_ledger import GroupLedger
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.disk import FileNode, FolderNode
from nilometer.simulation.disk_faults import (
    CHECKPOINTS,
    PARTITION_METADATA,
    damage_index,
    tear_checkpoint,
    tear_topic_id,
)
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.plan import draw
from nilometer.simulation.run import run
from nilometer.simulation.workload.consumers import TimeLookups
from nilometer.simulation.world import World

MINUTES = 0.3


@pytest.mark.thorough
@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("kinds", "seed"),
    [((Kind.INDEX_DAMAGE, Kind.CRASH), 1), ((Kind.CHECKPOINT_DAMAGE,), 2), ((Kind.INVARIANT,), 1)],
)
def test_what_can_be_made_again_and_what_is_fenced_costs_nothing(kinds: tuple[Kind, ...], seed: int) -> None:
    verdict = run(draw(seed, MINUTES, kinds))
    names = ",".join(kind.value for kind in kinds)
    assert verdict.findings == [], f"nilometer simulate --seed {seed} --minutes {MINUTES} --faults {names}"
    assert all(verdict.faults[kind] > 0 for kind in kinds)


def test_damage_strikes_indexes_of_sealed_segments_and_leaves_checkpoints_that_show_it() -> None:
    cluster = Cluster(World(1), brokers=1)
    node, chance = cluster.nodes[1], random.Random(1)
    assert damage_index(node, chance) is None and tear_checkpoint(node, chance) is None
    data, folder, log = FolderNode(), FolderNode(), FolderNode()
    node.host.disk.root.entries["data"] = data
    data.entries["1"] = folder
    folder.entries["t-0"] = log
    active = [FileNode(b"\x01" * 24) for _ in range(3)]
    epochs = log.entries[CHECKPOINTS[2]] = FileNode(b"0\n1\n0 0\n")
    for suffix, file in zip((".log", ".index", ".timeindex"), active, strict=True):
        log.entries["0" * 20 + suffix] = FileNode(b"\x01" * 24)
        log.entries["7".zfill(20) + suffix] = file
    for _ in range(20):
        told = damage_index(node, chance)
        assert told is None or "/data/1/t-0/00000000000000000000." in told
    assert all(bytes(file.data) == b"\x01" * 24 for file in active)
    assert tear_checkpoint(node, chance) is not None
    assert not bytes(epochs.data).endswith(b"\n")
    assert tear_topic_id(node, chance) is None
    topic_id = log.entries[PARTITION_METADATA] = FileNode(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    assert tear_topic_id(node, chance) is not None
    assert not bytes(topic_id.data).endswith(b"\n")


class _Broker:
    """Answers look-ups by time with what it is told to."""

    def __init__(self, found: ListedOffset | None) -> None:
        self.found = found

    async def offsets_for_times(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, object]:
        return dict.fromkeys(wanted, self.found)


@pytest.mark.parametrize(
    ("offset", "timestamp", "deleted", "is_wrong"),
    [
        (5, 100, False, False),
        (4, 100, False, False),
        (6, 100, False, True),
        (5, 99, False, True),
        (6, 100, True, False),
        (6, 99, True, True),
        (None, 0, False, True),
        (None, 0, True, False),
    ],
)
def test_an_answer_to_a_search_by_time_must_fit_to_what_was_read(
    offset: int | None, timestamp: int, deleted: bool, is_wrong: bool
) -> None:
    entropy = SeededEntropy(random.Random(1))
    lookups = TimeLookups(deleted=deleted)
    lookups.note(_record(5, 100), entropy)
    found = None if offset is None else ListedOffset(offset, timestamp, 0)

    async def scenario(_: World) -> str | None:
        return await lookups.look(_Broker(found), entropy)  # type: ignore[arg-type]

    assert (World(1).run(scenario) is not None) is is_wrong


def _record(offset: int, timestamp: int) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, timestamp, 0, None, b"", (), 0)


def test_a_commit_in_the_background_that_undoes_a_later_one_is_found() -> None:
    ledger = GroupLedger("readers")
    ledger.commit_in_background("a", "t-0", 150)
    ledger.takes_over("b", ["t-0"])
    ledger.commit_in_background("b", "t-0", 100)
    assert ledger.violations() == [], "it is another owner's, who may have begun before that was known"
    ledger.takes_over("b", ["t-0"])
    ledger.commit_in_background("b", "t-0", 120)
    ledger.commit_in_background("b", "t-0", 110)
    [violation] = ledger.violations()
    assert violation.startswith("undone commit: b got an acknowledgement for offset 120")


def test_groups_that_commit_in_the_background_are_drawn() -> None:
    plans = [draw(seed, 1.0).group for seed in range(40)]
    drawn = [plan for plan in plans if plan is not None]
    assert any(plan.commits_in_background for plan in drawn)
    assert not any(plan.commits_in_background and plan.auto_commit for plan in drawn)
