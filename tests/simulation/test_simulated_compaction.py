"""A compacted topic in the simulated world: rounds happen during crashes; nothing is lost or comes back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from nilometer.simulation.checkers.cleanup import table_of
from nilometer.simulation.checkers.logs import StoredBatch, StoredReplica
from nilometer.simulation.plan import Kind, draw
from nilometer.simulation.run import Exit, run
from nilometer.simulation.workload.compacted_topic import CompactedTopicWriter
from nilometer.wire.records import BatchBuilder


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [3])
def test_logs_are_compacted_during_crashes(seed: int) -> None:
    plan = replace(draw(seed, 0.3, [Kind.CRASH]), compacts=True)
    verdict = run(plan)
    assert verdict.exit is Exit.CLEAN, verdict.findings
    assert verdict.workloads["writes to a compacted topic"] > 0
    assert verdict.workloads["records compacted away"] > 0


def writer() -> CompactedTopicWriter:
    found = CompactedTopicWriter.__new__(CompactedTopicWriter)
    found.acknowledged = {"a": "2", "b": None}
    found.uncertain = defaultdict(set, {"b": {"7"}})
    return found


@pytest.mark.parametrize(
    ("table", "problems"),
    [
        ({"a": "2"}, 0),
        ({"a": "2", "b": "7"}, 0),
        ({"a": "1"}, 1),
        ({}, 1),
        ({"a": "2", "b": "5"}, 1),
        ({"a": "2", "c": "9"}, 1),
    ],
)
def test_the_judge_knows_a_lost_value_from_one_that_is_back(table: dict[str, str], problems: int) -> None:
    assert len(writer().judge(table)) == problems


def test_a_table_is_what_is_left_of_the_records_of_a_replica() -> None:
    builder = BatchBuilder()
    for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", None), (b"b", b"3")):
        builder.append(1, key, value)
    batch = StoredBatch(0, 3, 0, builder.build())
    assert table_of(StoredReplica(1, (batch,), ())) == {"b": "3"}
