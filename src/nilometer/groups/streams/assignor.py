"""The sticky assignor of streams groups (KIP-1071): the load is balanced over processes and members, and
tasks stay where they are as far as that allows.

An active task goes to the member that had it, or else to one that had a standby task for it; a standby task
to a member that had the active one or a standby one, never to a process that has the task already.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

import msgspec

from nilometer.groups.streams.tasks import Tasks
from nilometer.groups.streams_topology import ConfiguredSubtopology, Task


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
