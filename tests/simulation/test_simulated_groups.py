"""A consumer group in simulated clusters: what is judged of it, and that the judge can say no."""

from __future__ import annotations

import dataclasses

import pytest

from nilometer.client.group.assignors import Assignments, AssignmentTask, RangeAssignor
from nilometer.simulation.checkers.group_ledger import GroupLedger
from nilometer.simulation.plan import Kind, draw
from nilometer.simulation.run import Exit, Verdict, run
from nilometer.simulation.workload.consumers import CONSUMER, GroupMember, GroupPlan

MINUTES = 0.2
THREE = GroupPlan(members=3, assignor="range", static=False, auto_commit=False)


def group_run(seed: int, group: GroupPlan, *kinds: Kind) -> Verdict:
    plan = draw(seed, MINUTES, kinds)
    settings = plan.settings | group.settings
    return run(dataclasses.replace(plan, group=group, settings=settings, churn=False, moves=False))


def test_two_owners_in_one_generation_are_found_and_in_two_generations_are_none() -> None:
    ledger = GroupLedger("g")
    ledger.assigned("a", 1, ["t-0", "t-1"])
    ledger.assigned("a", 1, ["t-0", "t-1"])
    ledger.assigned("b", 2, ["t-0"])
    assert ledger.violations() == []
    ledger.assigned("b", 1, ["t-2", "t-1"])
    (violation,) = ledger.violations()
    assert "t-1 belongs to a and to b in generation 1" in violation
    assert ledger.generations == 2


def test_a_commit_that_is_forgotten_is_found_once_a_member_starts_before_it() -> None:
    ledger = GroupLedger("g")
    ledger.commit("t-0", 5)
    ledger.takes_over("a", ["t-0", "t-1"])
    ledger.read("a", "t-0", 5)
    ledger.read("a", "t-1", 0)
    ledger.read("a", "t-0", 3)  # only where it begins is promised
    assert ledger.violations() == []
    ledger.takes_over("b", ["t-0"])
    ledger.read("b", "t-0", 4)
    (violation,) = ledger.violations()
    assert "forgotten commit: 5 of t-0" in violation


def test_an_acknowledged_record_that_was_not_processed_is_found() -> None:
    ledger = GroupLedger("g")
    ledger.process("t-0", "one")
    ledger.process("t-0", "one")
    assert ledger.repeated == 1
    assert ledger.missing([("t-0", "one")]) == []
    assert len(ledger.missing([("t-0", "one"), ("t-0", "two"), ("t-1", "one")])) == 2


@pytest.mark.thorough
def test_a_group_outlives_brokers_and_members() -> None:
    cooperative = GroupPlan(members=3, assignor="cooperative-sticky", static=False, auto_commit=True)
    verdict = group_run(28, cooperative, Kind.CRASH, Kind.CLIENT_CRASH, Kind.PAUSE)
    assert verdict.findings == []
    assert verdict.generations > 1


def test_a_consumer_group_of_kip_848_outlives_brokers_and_members() -> None:
    group = GroupPlan(members=3, assignor="range", static=False, auto_commit=False, protocol=CONSUMER)
    verdict = group_run(24, group, Kind.CRASH, Kind.CLIENT_CRASH)
    assert verdict.findings == []
    assert verdict.generations > 1


def test_an_assignor_that_gives_partitions_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fair = RangeAssignor.assign

    def greedy(self: RangeAssignor, task: AssignmentTask) -> Assignments:
        found = fair(self, task)
        first = min(found)
        return {**found, first: [one for partitions in found.values() for one in partitions]}

    monkeypatch.setattr(RangeAssignor, "assign", greedy)
    monkeypatch.setattr("nilometer.simulation.run.CONVERGENCE_S", 2.0)
    verdict = group_run(22, THREE)
    assert verdict.exit is Exit.WRONG_RESULT
    assert any("two owners" in finding for finding in verdict.findings)


@pytest.mark.soak
def test_members_that_leave_records_out_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    process = GroupMember._process
    monkeypatch.setattr(GroupMember, "_process", lambda self, records: process(self, records[1:]))
    monkeypatch.setattr("nilometer.simulation.run.CONVERGENCE_S", 20.0)
    verdict = group_run(23, THREE)
    assert verdict.exit is Exit.NO_CONVERGENCE
    assert any("unprocessed" in finding for finding in verdict.findings)
