"""The steps of a member of a streams group towards its target assignment."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import pytest

from nilometer.groups.streams.tasks import (
    NO_TASKS,
    NOTHING_OWNED,
    MemberState,
    Owned,
    Step,
    Tasks,
    active_in_record,
    active_of_record,
    next_step,
    task_ids,
    tasks_of,
)
from nilometer.groups.streams_topology import Task, TaskIds
from nilometer.wire.errors import ErrorCode, KafkaError

STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED_TASKS, MemberState.UNRELEASED_TASKS


def t(*partitions: int) -> frozenset[Task]:
    return frozenset(("0", partition) for partition in partitions)


@dataclass
class Member:
    assigned: Owned = NOTHING_OWNED
    pending_revocation: Owned = NOTHING_OWNED
    state: MemberState = STABLE
    member_epoch: int = 5


@dataclass
class Others:
    running: frozenset[Task] = frozenset()
    running_here: frozenset[Task] = frozenset()
    replicas_here: frozenset[Task] = frozenset()

    def held(self, tasks: Set[Task]) -> Set[Task]:
        return tasks & (self.running | self.running_here | self.replicas_here)

    def run(self, task: Task) -> bool:
        return task in self.running | self.running_here

    def run_here(self, task: Task) -> bool:
        return task in self.running_here

    def have_replica_here(self, task: Task) -> bool:
        return task in self.replicas_here


def owned(*partitions: int, since: int = 5, standby: frozenset[Task] = frozenset()) -> Owned:
    return Owned(dict.fromkeys(t(*partitions), since), standby)


def step(
    member: Member,
    target: Tasks,
    others: Others | None = None,
    claimed: Tasks | None = NO_TASKS,
    epoch: int = 6,
) -> Step | None:
    return next_step(member, epoch, target, others or Others(), claimed)


def test_new_tasks_are_given_at_once() -> None:
    assert step(Member(owned(0)), Tasks(t(0, 1))) == Step(STABLE, 6, Owned({("0", 0): 5, ("0", 1): 6}))


def test_a_member_in_the_targets_epoch_has_nothing_to_do() -> None:
    assert step(Member(owned(0)), Tasks(t(1)), epoch=5) is None


@pytest.mark.parametrize("claimed", [None, Tasks(t(0, 1)), Tasks(t(1))])
def test_tasks_are_revoked_before_others_are_given(claimed: Tasks | None) -> None:
    found = step(Member(owned(0, 1)), Tasks(t(0, 2)), claimed=claimed)
    assert found == Step(UNREVOKED, 5, owned(0), owned(1))


def test_what_a_member_does_not_claim_needs_no_revocation() -> None:
    found = step(Member(owned(0, 1)), Tasks(t(0, 2)), claimed=Tasks(t(0)))
    assert found == Step(STABLE, 6, Owned({("0", 0): 5, ("0", 2): 6}))


def test_a_member_that_has_not_revoked_stays_where_it_is() -> None:
    member = Member(owned(0), owned(1), UNREVOKED)
    assert step(member, Tasks(t(0, 2)), claimed=None) is None
    assert step(member, Tasks(t(0, 2)), claimed=Tasks(t(0, 1))) is None
    assert step(member, Tasks(t(0, 2)), claimed=Tasks(t(0))) == Step(
        STABLE, 6, Owned({("0", 0): 5, ("0", 2): 6})
    )


def test_a_newer_target_may_have_it_revoke_more() -> None:
    member = Member(owned(0, 2), owned(1), UNREVOKED)
    found = step(member, Tasks(t(0)), claimed=Tasks(t(0, 2)), epoch=9)
    assert found == Step(UNREVOKED, 6, owned(0), owned(2))


def test_a_task_that_runs_elsewhere_is_waited_for() -> None:
    found = step(Member(owned(0)), Tasks(t(0, 1, 2)), Others(running=t(1)))
    assert found == Step(UNRELEASED, 6, Owned({("0", 0): 5, ("0", 2): 6}))
    waiting = Member(found.assigned, state=UNRELEASED, member_epoch=6)
    assert step(waiting, Tasks(t(0, 1, 2)), Others(running=t(1))) is None
    assert step(waiting, Tasks(t(0, 1, 2))) == Step(STABLE, 6, Owned({("0", 0): 5, ("0", 1): 6, ("0", 2): 6}))


def test_a_replica_in_the_same_process_is_waited_for() -> None:
    assert step(Member(), Tasks(t(0)), Others(replicas_here=t(0))) == Step(UNRELEASED, 6, NOTHING_OWNED)


@pytest.mark.parametrize("others", [Others(running_here=t(0)), Others(replicas_here=t(0))])
def test_a_standby_task_waits_for_its_own_process_only(others: Others) -> None:
    target = Tasks(standby=t(0))
    assert step(Member(), target, others) == Step(UNRELEASED, 6, NOTHING_OWNED)
    assert step(Member(), target, Others(running=t(0))) == Step(STABLE, 6, Owned({}, t(0)))


def test_a_standby_task_becomes_active_without_a_break() -> None:
    member = Member(owned(0, standby=t(1)))
    target = Tasks(t(0, 1))
    claimed = Tasks(t(0), t(1))
    waits = step(member, target, Others(running=t(1)), claimed)
    assert waits == Step(UNRELEASED, 6, owned(0, standby=t(1)))
    assert step(member, target, claimed=claimed) == Step(STABLE, 6, Owned({("0", 0): 5, ("0", 1): 6}))


def test_while_other_tasks_are_revoked_the_standby_task_stays() -> None:
    member = Member(owned(0, standby=t(1)))
    found = step(member, Tasks(t(1)), claimed=Tasks(t(0), t(1)))
    assert found == Step(UNREVOKED, 5, Owned({}, t(1)), owned(0))


def test_an_active_task_becomes_a_standby_task_while_it_is_revoked() -> None:
    found = step(Member(owned(0)), Tasks(standby=t(0)), claimed=Tasks(t(0)))
    assert found == Step(UNREVOKED, 5, Owned({}, t(0)), owned(0))


def test_a_standby_task_is_revoked() -> None:
    found = step(Member(owned(0, standby=t(1))), Tasks(t(0)), claimed=Tasks(t(0), t(1)))
    assert found == Step(UNREVOKED, 5, owned(0), Owned({}, t(1)))


def test_warm_up_tasks_of_another_coordinator_are_taken_back_or_become_standby_tasks() -> None:
    member = Member(Owned({}, frozenset(), t(0, 1)))
    found = step(member, Tasks(standby=t(0)), claimed=Tasks(warmup=t(0, 1)))
    assert found == Step(UNREVOKED, 5, Owned({}, t(0)), Owned({}, frozenset(), t(1)))


def test_a_member_whose_state_is_unknown_must_have_nothing() -> None:
    member = Member(state=MemberState.UNKNOWN)
    for claimed in (None, Tasks(t(0))):
        with pytest.raises(KafkaError) as refusal:
            step(member, Tasks(t(0)), claimed=claimed)
        assert refusal.value.code is ErrorCode.fenced_member_epoch
    assert step(member, Tasks(t(0))) == Step(STABLE, 6, owned(0, since=6))


def test_tasks_in_records() -> None:
    active = {("1", 2): 7, ("0", 3): 4, ("1", 0): 5}
    written = active_in_record(active)
    assert [(each.subtopology_id, each.partitions, each.assignment_epochs) for each in written] == [
        ("0", (3,), (4,)),
        ("1", (0, 2), (5, 7)),
    ]
    assert active_of_record(written, 9) == active
    assert active_of_record([type(written[0])("0", (1, 2))], 9) == {("0", 1): 9, ("0", 2): 9}
    assert active_of_record([type(written[0])("0", (1, 2), (3,))], 9) == {("0", 1): 9, ("0", 2): 9}
    assert task_ids(active) == (TaskIds("0", (3,)), TaskIds("1", (0, 2)))
    assert tasks_of(task_ids(active)) == active.keys()
