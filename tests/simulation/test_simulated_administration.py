"""Clusters that are administered under faults: brokers come and go for good, records are deleted.

That their judges can say no, the planted faults show.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

from nilometer.simulation.checkers.history import History, Seen, check
from nilometer.simulation.plan import Kind, Plan, deleting, draw
from nilometer.simulation.run import Exit, run
from nilometer.simulation.workload.membership import MembershipPlan

SEEDS = 50
DRAWN_AT_LEAST = 5


@pytest.mark.thorough
def test_a_broker_joins_and_another_one_is_taken_out() -> None:
    plan = draw(2, 0.4, [Kind.RESET, Kind.PAUSE])
    membership = MembershipPlan(joins_at_s=3.0, leaves_at_s=6.0)
    verdict = run(dataclasses.replace(plan, membership=membership, one_machine=False))
    assert verdict.findings == []
    assert verdict.workloads["brokers joined"] == verdict.workloads["brokers removed"] == 1


def test_records_are_deleted_and_only_those_that_may_be() -> None:
    plan = draw(4, 0.5, [Kind.CRASH])
    topics = tuple(
        dataclasses.replace(topic, segment_bytes=2_000, retention_bytes=8_000, retention_ms=8_000)
        for topic in plan.topics
    )
    verdict = run(dataclasses.replace(plan, topics=topics))
    assert verdict.findings == []
    assert verdict.exit is Exit.CLEAN
    assert verdict.workloads["log start offsets advanced"] > 0


def test_what_lies_below_the_log_start_need_not_be_found() -> None:
    history = History()
    for offset in range(4):
        history.send("p", "t-0", f"v{offset}").acknowledged(offset)
    history.poll("c", [Seen("t-0", 0, "v0"), Seen("t-0", 3, "v3")])
    history.read_to_end("c")
    kinds = Counter(anomaly.kind for anomaly in check(history))
    assert kinds == {"lost-write": 2, "poll-skip": 1, "unseen": 2}
    history.log_starts["t-0"] = 2
    kinds = Counter(anomaly.kind for anomaly in check(history))
    assert kinds == {"lost-write": 1, "poll-skip": 1, "unseen": 1}
    history.log_starts["t-0"] = 3
    assert check(history) == []


def _workloads(plan: Plan) -> list[str]:
    drawn = {
        "topics come and go": plan.churn,
        "partitions move": plan.moves,
        "replicas move between directories": plan.moves_folders,
        "a broker joins": plan.membership is not None,
        "a broker is taken out": plan.membership is not None and plan.membership.leaves_at_s is not None,
        "deleted by time": any(topic.retention_ms >= 0 for topic in plan.topics),
        "deleted by size": any(topic.retention_bytes >= 0 for topic in plan.topics),
        "idempotent producers": any(writer.idempotent for writer in plan.writers),
        "plain producers": any(not writer.idempotent for writer in plan.writers),
    }
    if plan.group is not None:
        drawn[f"{plan.group.protocol} groups"] = True
    return [name for name, is_drawn in drawn.items() if is_drawn]


def test_every_workload_is_drawn_often_enough() -> None:
    times = Counter(name for seed in range(SEEDS) for name in _workloads(draw(seed, 5.0)))
    assert len(times) == 11, times
    assert min(times.values()) >= DRAWN_AT_LEAST, times


def test_a_topic_that_deletes_has_a_policy_and_small_segments() -> None:
    plan = draw(0, 1.0)
    chance = random.Random(1)
    for _ in range(20):
        topic = deleting(chance, plan.topics[0])
        assert topic.is_deleted
        assert topic.configs["internal.segment.bytes"] == str(topic.segment_bytes)
        assert {"retention.ms", "retention.bytes"} <= set(topic.configs)
