"""Two hundred members of one group, who join, leave and come back: it comes together every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.groups.group_requests import Member, wait_for_coordinator

MEMBERS = 200
GROUP = "two-hundred"
SESSION_TIMEOUT_MS = 60_000
OLD_JOIN = 3  # without the detour of being given an id first


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    overrides = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "500"}
    with NilometerBroker(tmp_path / "data", overrides) as broker:
        side = Side("Nilometer", broker.bootstrap)
        wait_for_coordinator(side, GROUP)
        yield side
        side.hang_up()
    assert "Traceback" not in broker.output


def come_together(members: Sequence[Member]) -> None:
    """All join, the leader shares out, and all have their share, in one generation."""
    answers = {member: member.hear_joined(OLD_JOIN) for member in members}
    assert {answer["error_code"] for answer in answers.values()} == {"none"}
    assert len({member.generation for member in members}) == 1
    (leader,) = [member for member in members if answers[member]["members"]]
    assert len(answers[leader]["members"]) == len(members)
    for member in members:
        if member is not leader:
            member.ask_to_sync()
    leader.ask_to_sync({member.id: member.name.encode() for member in members})
    for member in members:
        assert member.hear_synced()["assignment"] == member.name.encode()


def rebalances(member: Member) -> bool:
    return member.heartbeat_message().error_code == ErrorCode.rebalance_in_progress


def ask_to_join(members: Sequence[Member]) -> None:
    for member in members:
        member.ask_to_join(OLD_JOIN, session_timeout_ms=SESSION_TIMEOUT_MS, rebalance_timeout_ms=60_000)


def test_two_hundred_members_join_leave_and_come_back(side: Side) -> None:
    everyone = [Member(side, GROUP, f"member {number}") for number in range(MEMBERS)]
    ask_to_join(everyone)
    come_together(everyone)
    assert all(member.heartbeat_message().error_code == ErrorCode.none for member in everyone)

    leaving, staying = everyone[: MEMBERS // 2], everyone[MEMBERS // 2 :]
    for member in leaving:
        assert member.leave()["error_code"] == "none"
        member.id = ""
    eventually(lambda: rebalances(staying[0]), "the group rebalances")
    ask_to_join(staying)
    come_together(staying)

    ask_to_join(leaving)
    eventually(lambda: rebalances(staying[0]), "the group rebalances")
    ask_to_join(staying)
    come_together(everyone)
    described = side.message(ApiKey.DESCRIBE_GROUPS, 5, groups=(GROUP,), include_authorized_operations=False)
    assert (described.groups[0].group_state, len(described.groups[0].members)) == ("Stable", MEMBERS)

    for member in everyone:
        assert member.leave()["error_code"] == "none"
        member.close()
    described = side.message(ApiKey.DESCRIBE_GROUPS, 5, groups=(GROUP,), include_authorized_operations=False)
    assert described.groups[0].group_state == "Empty"
