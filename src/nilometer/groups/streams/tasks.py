"""The tasks of a member of a streams group by role, and how the member gets from its current to its target
assignment.

It revokes tasks first: another member gets an active task only when no member runs it any more, and a standby
task only when no other member of its process has the task. (Members of one process share its disk.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from nilometer.groups.records import AssignedTaskIds
from nilometer.groups.streams_topology import Task, TaskIds
from nilometer.wire.errors import ErrorCode, KafkaError

_NO_ACTIVE: Final[Mapping[Task, int]] = MappingProxyType({})


class Tasks(msgspec.Struct, frozen=True):
    """Tasks by role."""

    active: frozenset[Task] = frozenset()
    standby: frozenset[Task] = frozenset()
    warmup: frozenset[Task] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)


NO_TASKS: Final = Tasks()


class Owned(msgspec.Struct, frozen=True):
    """The tasks that a member has, the active ones with the member epoch in which they were assigned."""

    active: Mapping[Task, int] = msgspec.field(default_factory=lambda: _NO_ACTIVE)
    standby: frozenset[Task] = frozenset()
    warmup: frozenset[Task] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)

    def tasks(self) -> Tasks:
        return Tasks(frozenset(self.active), self.standby, self.warmup)

    def shares(self, claimed: Tasks) -> bool:
        """Whether some of the claimed tasks are among these, in the same role."""
        return not (
            claimed.active.isdisjoint(self.active)
            and claimed.standby.isdisjoint(self.standby)
            and claimed.warmup.isdisjoint(self.warmup)
        )

    def covers(self, claimed: Tasks) -> bool:
        """Whether all claimed tasks are among these, in the same role."""
        return (
            claimed.active <= self.active.keys()
            and claimed.standby <= self.standby
            and claimed.warmup <= self.warmup
        )


NOTHING_OWNED: Final = Owned()


# ── the forms in messages and records ───────────────────────────────────────────────────────────
def tasks_of(found: Iterable[TaskIds | AssignedTaskIds]) -> frozenset[Task]:
    return frozenset((each.subtopology_id, partition) for each in found for partition in each.partitions)


def task_ids(tasks: Iterable[Task]) -> tuple[TaskIds, ...]:
    return tuple(TaskIds(name, tuple(partitions)) for name, partitions in _by_subtopology(tasks).items())


def _by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """Return the partitions of each subtopology, in order."""
    found: dict[str, list[int]] = {}
    for subtopology_id, partition in tasks:
        found.setdefault(subtopology_id, []).append(partition)
    return {subtopology_id: sorted(found[subtopology_id]) for subtopology_id in sorted(found)}


def in_record(tasks: Iterable[Task]) -> tuple[AssignedTaskIds, ...]:
    return tuple(
        AssignedTaskIds(name, tuple(partitions)) for name, partitions in _by_subtopology(tasks).items()
    )


def active_in_record(active: Mapping[Task, int]) -> tuple[AssignedTaskIds, ...]:
    return tuple(
        AssignedTaskIds(name, tuple(partitions), tuple(active[name, each] for each in partitions))
        for name, partitions in _by_subtopology(active).items()
    )


def active_of_record(found: Iterable[AssignedTaskIds], member_epoch: int) -> dict[Task, int]:
    """Convert from the form in records; without epochs, tasks count as assigned in the member's epoch."""
    active: dict[Task, int] = {}
    for each in found:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = (member_epoch,) * len(each.partitions)
        for partition, epoch in zip(each.partitions, epochs, strict=True):
            active[each.subtopology_id, partition] = epoch
    return active


# ── reconciliation ──────────────────────────────────────────────────────────────────────────────
class MemberState(IntEnum):
    STABLE = 1
    """The member has exactly its target assignment, as of its epoch."""
    UNREVOKED_TASKS = 2
    """The member must revoke tasks and has not confirmed it; until then its epoch does not advance."""
    UNRELEASED_TASKS = 3
    """The member is in the target's epoch, but other members still have some of its target tasks."""
    UNKNOWN = 127
    """The state in a record of a later version is not known: the member must join again."""


class Reconcilable(Protocol):
    """What of a member changes on its way to its target assignment."""

    @property
    def state(self) -> MemberState: ...

    @property
    def member_epoch(self) -> int: ...

    @property
    def assigned(self) -> Owned: ...

    @property
    def pending_revocation(self) -> Owned: ...


class Step(msgspec.Struct, frozen=True):
    """What a member has after its next step."""

    state: MemberState
    member_epoch: int
    assigned: Owned
    pending_revocation: Owned = NOTHING_OWNED


class Others(Protocol):
    """Which tasks the other members of the group have, or have not yet revoked."""

    def held(self, tasks: Set[Task]) -> Set[Task]:
        """Return those of the tasks that a member has in any role, this one included: few of thousands."""
        ...

    def run(self, task: Task) -> bool:
        """Whether one of them has the active task."""
        ...

    def run_here(self, task: Task) -> bool:
        """Whether one of them in the same process has the active task."""
        ...

    def have_replica_here(self, task: Task) -> bool:
        """Whether one of them in the same process has the standby or warm-up task."""
        ...


def next_step(
    member: Reconcilable, target_epoch: int, target: Tasks, others: Others, claimed: Tasks | None
) -> Step | None:
    """Return the member's next step towards ``target``, which was made for ``target_epoch``; None if there is
    nothing to do.

    ``claimed``: the tasks that the member says it has; None if it does not say. Raises KafkaError
    (FENCED_MEMBER_EPOCH) if the member's state is unknown and it claims tasks, or does not say which.
    """
    epoch = member.member_epoch
    if member.state is MemberState.STABLE:
        if epoch == target_epoch:
            return None
    elif member.state is MemberState.UNREVOKED_TASKS:
        if claimed is None or member.pending_revocation.shares(claimed):
            return None
        epoch += 1
    elif member.state is MemberState.UNKNOWN:
        if claimed is None or claimed:
            raise KafkaError(
                ErrorCode.fenced_member_epoch,
                "The streams group member is in an unknown state. "
                "The member must abandon all its tasks and rejoin.",
            )
        epoch = target_epoch
    step = _towards(member.assigned, epoch, target_epoch, target, others, claimed)
    same = (step.state, step.member_epoch, step.assigned, step.pending_revocation) == (
        member.state,
        member.member_epoch,
        member.assigned,
        member.pending_revocation,
    )
    return None if same else step


def _towards(
    mine: Owned, epoch: int, target_epoch: int, target: Tasks, others: Others, claimed: Tasks | None
) -> Step:
    wanted, wanted_standby = target.active - mine.active.keys(), target.standby - mine.standby
    granted = wanted - {
        task for task in others.held(wanted) if others.run(task) or others.have_replica_here(task)
    }
    granted_standby = wanted_standby - {
        task
        for task in others.held(wanted_standby)
        if others.run_here(task) or others.have_replica_here(task)
    }
    waits = len(granted) + len(granted_standby) < len(wanted) + len(wanted_standby)

    # A task whose role changes is not revoked: the member keeps what it has of the state.
    changing = granted_standby & (mine.active.keys() | mine.warmup)
    excess = Owned(
        {task: since for task, since in mine.active.items() if task not in target.active},
        mine.standby - target.standby - target.active,
        mine.warmup - changing - target.active,
    )
    revokes = bool(excess) and (claimed is None or excess.shares(claimed))
    # So does a replica of a task that is to become active, until the active task is given.
    promoted = target.active if revokes else target.active - granted
    kept = Owned(
        {task: since for task, since in mine.active.items() if task in target.active},
        (mine.standby & (target.standby | promoted)) | changing,
        mine.warmup & promoted,
    )
    if revokes:
        return Step(MemberState.UNREVOKED_TASKS, epoch, kept, excess)
    active = {**kept.active, **dict.fromkeys(sorted(granted), target_epoch)}
    state = MemberState.UNRELEASED_TASKS if waits else MemberState.STABLE
    return Step(state, target_epoch, Owned(active, kept.standby | granted_standby, kept.warmup))
