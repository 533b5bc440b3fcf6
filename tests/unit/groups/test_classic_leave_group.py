"""Members that leave a classic group, or are removed from it."""

from __future__ import annotations

from group_harness import (
    DELAY_MS,
    GroupWorld,
    group_record,
)

from nilometer.groups.requests import JoinGroupResult
from nilometer.wire.errors import ErrorCode


def test_several_leave_at_once_each_by_the_name_it_has() -> None:
    world = GroupWorld()
    world.join(client="a", instance="i")
    world.join(client="b", instance="j")
    world.join(client="c")
    world.join(client="d")
    world.pass_time(3 * DELAY_MS)
    assert world.leave(("", "i"), ("j-2", "j"), "c-3", ("", "k"), "who-9", ("d-4", "i"), ("", None)) == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    assert world.state() == "PreparingRebalance"
    reply = world.joined(world.join("d-4"))
    assert (reply.generation_id, reply.leader) == (2, "d-4")


def test_leaving_while_others_wait_answers_the_leaver_and_lets_them_go_on() -> None:
    world = GroupWorld()
    world.stable("a", "b")
    leaver, waiting = world.join("a-1"), world.join(client="c")
    world.join("b-2")
    assert world.is_answered(leaver)
    assert world.is_answered(waiting)
    parked = world.join(client="d")
    assert world.leave("b-2", "c-3") == [ErrorCode.none] * 2
    reply = world.joined(world.join("a-1"))
    assert world.joined(parked).generation_id == reply.generation_id == 3


def test_a_client_joins_while_the_first_rebalance_waits_though_all_others_have_left() -> None:
    world = GroupWorld()
    world.join(client="a")
    assert world.leave("a-1") == [ErrorCode.none]
    assert world.state() == "PreparingRebalance"
    joining = world.join(client="b")
    world.pass_time(3 * DELAY_MS)
    assert world.joined(joining).error_code == ErrorCode.none


def test_a_member_taken_out_while_its_join_waits_is_told() -> None:
    world = GroupWorld()
    world.stable("a", "b", instance=None)
    parked = world.join("a-1")
    assert world.leave("a-1") == [ErrorCode.none]
    assert world.joined(parked) == JoinGroupResult(ErrorCode.unknown_member_id)


def test_the_last_one_to_leave_writes_that_the_group_is_empty() -> None:
    world = GroupWorld()
    world.stable("a")
    world.leave("a-1")
    record = group_record(world)
    assert (record.generation, record.protocol, record.leader, record.members) == (2, None, None, ())
    assert record.protocol_type == "consumer"


def test_leave_of_no_member_is_an_answer_too() -> None:
    world = GroupWorld()
    world.stable("a")
    assert world.leave() == []
    assert world.state() == "Stable"
