"""A member of a group is described when the response is encoded, as it was when the group was asked for."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from consumer_group_harness import ConsumerWorld, no_wait_config
from share_group_harness import ShareWorld
from streams_group_harness import AT_ONCE, COUNTING, StreamsWorld

from nilometer.groups import share_groups
from nilometer.groups.consumer import consumer_groups
from nilometer.groups.requests import TaskOffset
from nilometer.groups.streams import streams_groups


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members that were described."""
    members: list[str] = []

    def watch(module: ModuleType, name: str) -> None:
        make: Callable[..., Any] = getattr(module, name)

        def note(*args: Any) -> Any:
            described = make(*args)
            members.append(described.member_id)
            return described

        monkeypatch.setattr(module, name, note)

    watch(consumer_groups, "_member")
    watch(share_groups, "_described")
    watch(streams_groups, "_described")
    return members


def test_members_of_a_consumer_group(made: list[str]) -> None:
    world = ConsumerWorld(config=no_wait_config())
    world.create("t", 2)
    epoch = world.enter("A", "t").member_epoch
    described = world.describe_consumer()
    assert (len(described.members), described.group_epoch, made) == (1, 2, [])
    world.enter("B", "t")
    world.beat("A", epoch)
    (member,) = described.members
    assert (made, member.member_epoch) == (["A"], epoch)
    assert [topic.partitions for topic in (*member.assignment, *member.target_assignment)] == 2 * [(0, 1)]
    assert [member.member_id for member in world.describe_consumer().members] == ["A", "B"]


def test_members_of_a_share_group(made: list[str]) -> None:
    world = ShareWorld()
    for name in ("t", "gone"):
        world.create(name, 1)
    member = world.share_member("A", "t", "gone")
    world.share_settle(member)
    described = world.describe_share()
    assert (len(described.members), made) == (1, [])
    world.delete("gone")
    member.leave()
    (was,) = described.members
    assert (made, was.member_epoch) == (["A"], described.group_epoch)
    assert [topic.topic_name for topic in was.assignment] == ["t"], "of the topics that exist now"
    assert not world.describe_share().members


def test_members_of_a_streams_group(made: list[str]) -> None:
    world = StreamsWorld(config=AT_ONCE)
    for name in ("t", "0-changelog"):
        world.create(name, 2)
    told = (TaskOffset("0", 1, 5), TaskOffset("0", 0, 4))
    world.streams_beat("A", 0, topology=COUNTING, task_offsets=told, task_end_offsets=told[:1])
    described = world.describe_streams()
    assert (len(described.members), made) == (1, [])
    world.streams_beat("A", -1)
    (member,) = described.members
    assert made == ["A"]
    assert (tuple(member.task_offsets), tuple(member.task_end_offsets)) == (told, told[:1])
    assert [each.partitions for each in member.target_assignment.active_tasks] == [(0, 1)]
    assert not world.describe_streams().members
