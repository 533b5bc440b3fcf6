"""The sticky assignor: every task once, balanced, where it was as far as that allows."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nilometer.groups.streams.tasks import MemberSpec, Tasks, assign_sticky
from nilometer.groups.streams_topology import ConfiguredSubtopology, Task
from support.properties import examples


def subtopology(tasks: int, *, is_stateful: bool = True) -> ConfiguredSubtopology:
    return ConfiguredSubtopology(tasks, ("t",), is_stateful, (), ())


def members(*names: str, **had: Tasks) -> dict[str, MemberSpec]:
    """Members whose process is called after the letters of their names: `a1` and `a2` are in one."""
    return {name: MemberSpec(name.rstrip("0123456789"), had.get(name, Tasks())) for name in names}


def tasks(*partitions: int, of: str = "0") -> frozenset[Task]:
    return frozenset((of, partition) for partition in partitions)


def test_tasks_are_spread_over_processes_and_their_members() -> None:
    found = assign_sticky(members("a1", "a2", "b1"), {"0": subtopology(6)}, 0)
    assert Counter(len(each.active) for each in found.values()) == Counter([2, 2, 2])
    found = assign_sticky(members("a1", "a2", "b1", "b2"), {"0": subtopology(2)}, 0)
    assert len(found["a1"].active | found["a2"].active) == 1


def test_a_task_stays_with_the_member_that_has_it() -> None:
    had = members("a", "b", a=Tasks(tasks(1, 3)), b=Tasks(tasks(0, 2)))
    found = assign_sticky(had, {"0": subtopology(4)}, 0)
    assert (found["a"].active, found["b"].active) == (tasks(1, 3), tasks(0, 2))


def test_a_new_member_gets_its_share_and_no_more_moves() -> None:
    had = members("a", "b", "c", a=Tasks(tasks(0, 1, 2)), b=Tasks(tasks(3, 4, 5)))
    found = assign_sticky(had, {"0": subtopology(6)}, 0)
    assert [len(found[name].active) for name in "abc"] == [2, 2, 2]
    assert found["a"].active < tasks(0, 1, 2)
    assert found["b"].active < tasks(3, 4, 5)


def test_a_task_of_a_member_that_has_gone_goes_where_its_standby_was() -> None:
    had = members("a", "b", "c", b=Tasks(standby=tasks(0)), c=Tasks(standby=tasks(1)))
    found = assign_sticky(had, {"0": subtopology(3)}, 1)
    assert ("0", 0) in found["b"].active
    assert ("0", 1) in found["c"].active


def test_of_several_with_state_the_one_that_has_most_of_it_gets_the_task() -> None:
    had = members("a", "b")
    had["a"] = MemberSpec("a", offsets={("0", 0): 10})
    had["b"] = MemberSpec("b", offsets={("0", 0): 90})
    assert ("0", 0) in assign_sticky(had, {"0": subtopology(1)}, 0)["b"].active


def test_a_former_active_task_becomes_the_standby_task() -> None:
    had = members("a", "b", "c", a=Tasks(tasks(0, 1, 2)))
    found = assign_sticky(had, {"0": subtopology(3)}, 1)
    moved = tasks(0, 1, 2) - found["a"].active
    assert found["a"].standby & moved


def test_who_has_its_share_gets_no_standby_task_for_what_it_had() -> None:
    """Two tasks with one standby each: one for each of the four members."""
    had = members("a", "b", "c", "d", c=Tasks(tasks(0, 1)))
    found = assign_sticky(had, {"0": subtopology(2)}, 1)
    assert [len(found[name].active) + len(found[name].standby) for name in "abcd"] == [1, 1, 1, 1]


def test_tasks_without_state_have_no_standby() -> None:
    found = assign_sticky(members("a", "b"), {"0": subtopology(2, is_stateful=False)}, 2)
    assert not any(each.standby for each in found.values())


def test_more_standby_tasks_than_processes() -> None:
    found = assign_sticky(members("a1", "a2", "b1"), {"0": subtopology(1)}, 2)
    assert sum(len(each.standby) for each in found.values()) == 1


TASKS = st.frozensets(st.tuples(st.sampled_from(["0", "1", "gone"]), st.integers(0, 6)), max_size=8)


@examples(200)
@given(
    st.dictionaries(
        st.sampled_from(["m1", "m2", "m3", "m4", "m5"]),
        st.tuples(st.sampled_from("abc"), TASKS, TASKS),
        min_size=1,
    ),
    st.integers(0, 6),
    st.integers(1, 6),
    st.integers(0, 3),
)
def test_whatever_they_had(
    had: dict[str, tuple[str, frozenset[Task], frozenset[Task]]], first: int, second: int, standbys: int
) -> None:
    specs = {
        name: MemberSpec(process, Tasks(active, standby)) for name, (process, active, standby) in had.items()
    }
    subtopologies = {"0": subtopology(first), "1": subtopology(second, is_stateful=False)}
    found = assign_sticky(specs, subtopologies, standbys)
    assert found.keys() == specs.keys()
    everything = {("0", each) for each in range(first)} | {("1", each) for each in range(second)}
    active = [task for each in found.values() for task in each.active]
    assert sorted(active) == sorted(everything)
    by_process: dict[str, list[Task]] = {}
    for name, each in found.items():
        by_process.setdefault(specs[name].process_id, []).extend([*each.active, *each.standby])
    assert all(len(each) == len(set(each)) for each in by_process.values())
    standby = Counter(task for each in found.values() for task in each.standby)
    wanted = min(standbys, len(by_process) - 1)
    assert standby == Counter({("0", each): wanted for each in range(first) if wanted})
    again = {
        name: MemberSpec(specs[name].process_id, Tasks(found[name].active, found[name].standby))
        for name in specs
    }
    once_more = assign_sticky(again, subtopologies, standbys)
    counts = [len(each.active) for each in found.values()]
    if not standbys and max(counts) - min(counts) <= 1:
        assert once_more == found
