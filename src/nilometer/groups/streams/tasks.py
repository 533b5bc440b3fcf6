"""The tasks of streams groups (KIP-1071): which member gets which, and how a member gets from its current to
its target assignment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Set
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from nilometer.groups.records import AssignedTaskIds
from nilometer.groups.streams_topology import ConfiguredSubtopology, Task, TaskIds
from nilometer.wire.errors import ErrorCode, KafkaError

# The tasks of a member of a streams group by role, and how the member gets from its current to its target
# assignment.
#
# It revokes tasks first: another member gets an active task only when no member runs it any more, and a
# standby task only when no other member of its process has the task. (Members of one process share its disk.)

_NO_ACTIVE: Final[Mapping[Task, int]] = MappingProxyType({})


class Tasks(msgspec.Struct, frozen=True):
    """Tasks by role."""

    active: frozenset[Task] = frozenset()
    standby: frozenset[Task] = frozenset()
    warmup: frozenset[Task] = frozenset()

    def __len__(self) -> int:
        return len(self.active) + len(self.standby) + len(self.warmup)


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
    """Return the active tasks of a record with their assignment epochs; the member's, if it has none."""
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
    """The state, epoch and tasks of a member after its next step towards its target assignment."""

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


# The sticky assignor of streams groups (KIP-1071): the load is balanced over processes and members, and
# tasks stay where they are as far as that allows.
#
# An active task goes to the member that had it, or else to one that had a standby task for it; a standby task
# to a member that had the active one or a standby one, never to a process that has the task already.


class MemberSpec(msgspec.Struct, frozen=True):
    """A member as the assignor sees it."""

    process_id: str
    had: Tasks = Tasks()
    """Its current assignment."""
    offsets: Mapping[Task, int] = msgspec.field(default_factory=dict[Task, int])
    """How far it says that it has the state of tasks: the sum of their changelog offsets."""


class _Process:
    """A process and its members, with the tasks that they have been given so far."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """By member id."""
        self.tasks: set[Task] = set()

    @property
    def load(self) -> float:
        return sum(self.counts.values()) / len(self.counts)

    def least_loaded(self) -> str:
        return min(self.counts, key=self.counts.__getitem__)


class _Quota:
    """How many tasks a member may get before others have as many: rounded up, and less for the others once
    a member has got so many."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.each = self._share()

    def _share(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0

    def given(self, count: int) -> None:
        """Note that a member has ``count`` tasks now."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self.each = self._share()


class _Round:
    """One computation of an assignment."""

    def __init__(
        self,
        members: Mapping[str, MemberSpec],
        subtopologies: Mapping[str, ConfiguredSubtopology],
        standbys: int,
    ) -> None:
        self.members = members
        self.standbys = standbys
        self.processes: dict[str, _Process] = {}
        self.active: dict[str, set[Task]] = {member_id: set() for member_id in members}
        self.standby: dict[str, set[Task]] = {member_id: set() for member_id in members}
        self.had_active: dict[Task, str] = {}
        for member_id in sorted(members):
            member = members[member_id]
            self.processes.setdefault(member.process_id, _Process()).counts[member_id] = 0
            self.had_active |= dict.fromkeys(member.had.active, member_id)
        self.had_standby = _ranked(members)
        self.tasks = [(name, each) for name, found in subtopologies.items() for each in range(found.tasks)]
        self.stateful = [task for task in self.tasks if subtopologies[task[0]].is_stateful]
        count = len(self.tasks)
        self.active_quota = _Quota(count, len(members))
        self.quota = _Quota(count + standbys * len(self.stateful), len(members))

    def process_of(self, member_id: str) -> _Process:
        return self.processes[self.members[member_id].process_id]

    def count_of(self, member_id: str) -> int:
        return self.process_of(member_id).counts[member_id]

    def give(self, member_id: str, task: Task, *, is_active: bool) -> None:
        process = self.process_of(member_id)
        process.tasks.add(task)
        process.counts[member_id] += 1
        (self.active if is_active else self.standby)[member_id].add(task)
        count = process.counts[member_id]
        if is_active:
            self.active_quota.given(count)
        self.quota.given(count)

    def least_loaded(self, members: Iterable[str], unless_has: Task | None = None) -> str | None:
        """Return the first of ``members``, or a later one whose process and itself have less to do; never one
        of a process that has the task ``unless_has``."""
        best: str | None = None
        loads = (0.0, 0)
        for member_id in members:
            process = self.process_of(member_id)
            if unless_has is not None and unless_has in process.tasks:
                continue
            its = (process.load, process.counts[member_id])
            if best is None or (its[0] < loads[0] and its[1] < loads[1]):
                best, loads = member_id, its
        return best

    # ── active tasks ────────────────────────────────────────────────────────────────────────────
    def assign_active(self) -> None:
        tasks = sorted(self.tasks, key=_by_partition)
        tasks = self._give_back(tasks, self.had_active.get)
        tasks = self._give_back(tasks, lambda task: self.least_loaded(self.had_standby.get(task, ())))
        heap = self._by_load()
        for task in sorted(tasks):
            _, process_id = heapq.heappop(heap)
            process = self.processes[process_id]
            self.give(process.least_loaded(), task, is_active=True)
            heapq.heappush(heap, (process.load, process_id))

    def _give_back(self, tasks: list[Task], had: Callable[[Task], str | None]) -> list[Task]:
        """Give tasks to the members that had them, as far as their quotas allow; return the others."""
        rest: list[Task] = []
        for task in tasks:
            member_id = had(task)
            if member_id is not None and self.count_of(member_id) < self.active_quota.each:
                self.give(member_id, task, is_active=True)
            else:
                rest.append(task)
        return rest

    def _by_load(self) -> list[tuple[float, str]]:
        heap = [(process.load, process_id) for process_id, process in self.processes.items()]
        heapq.heapify(heap)
        return heap

    # ── standby tasks ───────────────────────────────────────────────────────────────────────────
    def assign_standby(self) -> None:
        rest: list[tuple[Task, int]] = []
        for task in sorted(self.stateful, key=_by_partition, reverse=True):
            for given in range(self.standbys):
                member_id = self._had_state(task)
                if member_id is None:
                    rest.append((task, self.standbys - given))
                    break
                self.give(member_id, task, is_active=False)
        heap = self._by_load()
        for task, missing in sorted(rest, reverse=True):
            for _ in range(missing):
                if not self._give_standby(heap, task):
                    break  # there are not enough processes

    def _had_state(self, task: Task) -> str | None:
        """Return a member that had the task in some role, and may have it as a standby task."""
        before = self.had_active.get(task)
        if (
            before is not None
            and task not in self.process_of(before).tasks
            and self.count_of(before) < self.quota.each
        ):
            return before
        before = self.least_loaded(self.had_standby.get(task, ()), unless_has=task)
        return before if before is not None and self.count_of(before) < self.quota.each else None

    def _give_standby(self, heap: list[tuple[float, str]], task: Task) -> bool:
        """Give a standby task to the process with the least load that does not have the task."""
        passed: list[tuple[float, str]] = []
        found = False
        while heap and not found:
            entry = heapq.heappop(heap)
            process = self.processes[entry[1]]
            found = task not in process.tasks
            if found:
                self.give(process.least_loaded(), task, is_active=False)
                entry = (process.load, entry[1])
            passed.append(entry)
        for entry in passed:
            heapq.heappush(heap, entry)
        return found


def _by_partition(task: Task) -> tuple[int, str]:
    return task[1], task[0]


def _ranked(members: Mapping[str, MemberSpec]) -> dict[Task, list[str]]:
    """Return, for each task, the members that have a standby task for it, and then those that say they have
    some of its state; those with more of it first."""
    found: dict[Task, list[tuple[bool, int, str]]] = {}
    for member_id in sorted(members):
        member = members[member_id]
        for task in member.had.standby:
            found.setdefault(task, []).append((False, -member.offsets.get(task, 0), member_id))
        for task, offset in member.offsets.items():
            if task not in member.had.standby:
                found.setdefault(task, []).append((True, -offset, member_id))
    return {task: [member_id for _, _, member_id in sorted(ranks)] for task, ranks in found.items()}


def assign_sticky(
    members: Mapping[str, MemberSpec], subtopologies: Mapping[str, ConfiguredSubtopology], standbys: int
) -> dict[str, Tasks]:
    """Return the tasks of each member, by member id.

    ``standbys``: how many standby tasks each task with state has, if there are enough processes.
    """
    if not members:
        return {}
    round_ = _Round(members, subtopologies, standbys)
    round_.assign_active()
    if standbys:
        round_.assign_standby()
    return {
        member_id: Tasks(frozenset(round_.active[member_id]), frozenset(round_.standby[member_id]))
        for member_id in members
    }
