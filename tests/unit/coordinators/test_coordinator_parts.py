"""The small parts under every shard: timers, the hash of keys, turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer import coordinators
from nilometer.broker.coordinator_shells import java_string_hash, partition_for_key
from nilometer.coordinators import KEPT, MOVED_PER_CALL_MAX, SORTED_OUT_AT_ONCE, Effects, Timers, Token, Turn
from support.properties import examples

A, B, C = "abc"


# ── SPEC C-3 ──────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("group_id", "hashed", "partition"),
    [
        ("", 0, 0),
        ("a", 97, 47),
        ("my-group", -1_906_497_762, 12),
        ("polygenelubricants", -(2**31), 0),
        ("grp😀", 100_399_368, 18),
        ("Zürich", -1_482_116_162, 12),
    ],
)
def test_c_3_a_group_is_kept_where_java_would_look_for_it(group_id: str, hashed: int, partition: int) -> None:
    assert (java_string_hash(group_id), partition_for_key(group_id, 50)) == (hashed, partition)


# ── timers ────────────────────────────────────────────────────────────────────────────────────────
def test_timers_are_due_by_time_and_then_by_age() -> None:
    timers = Timers[str]()
    for key, at_ms in ((A, 20), (B, 10), (C, 10)):
        timers.schedule(key, at_ms)
    assert timers.take_due(9) is None
    assert [timers.take_due(20) for _ in range(4)] == [B, C, A, None]
    assert timers.next_deadline_ms() is None


KEYS = st.sampled_from((A, B, C))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), KEYS, st.integers(0, 50)),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("take"), KEYS, st.integers(0, 50)),
    ),
    max_size=40,
)


@examples(200)
@given(STEPS, st.sampled_from((0, KEPT)))
def test_timers_are_a_dictionary_of_deadlines(steps: list[tuple[str, str, int]], kept: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinators, "KEPT", kept)
        patch.setattr(coordinators, "SORTED_OUT_AT_ONCE", 1)
        check_timers(steps)


def check_timers(steps: list[tuple[str, str, int]]) -> None:
    timers, model = Timers[str](), dict[str, int]()
    for what, key, at_ms in steps:
        if what == "schedule":
            timers.schedule(key, at_ms)
            model[key] = at_ms
        elif what == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            earliest = min(model.values(), default=None)
            taken = timers.take_due(at_ms)
            if earliest is None or earliest > at_ms:
                assert taken is None
            else:
                assert taken is not None
                assert model.pop(taken) == earliest
        assert timers.next_deadline_ms() == min(model.values(), default=None)
        assert {each: timers.deadline(each) for each in (A, B, C)} == {
            each: model.get(each) for each in (A, B, C)
        }


def test_a_deadline_that_moves_with_every_heartbeat_costs_no_memory() -> None:
    timers = Timers[str]()
    for at_ms in range(10_000):
        timers.schedule(A, at_ms)
    assert len(timers._heap) == 1
    assert timers.next_deadline_ms() == 9_999


def test_a_call_puts_a_bounded_number_of_moved_deadlines_in_their_place() -> None:
    """As when the first of 60,000 members sends its heartbeat after all others."""
    timers = Timers[int]()
    count = 4 * MOVED_PER_CALL_MAX
    for at_ms in (10, 20):
        for key in range(count):
            timers.schedule(key, at_ms)
    pushed = timers._pushes
    assert timers.next_deadline_ms() == 10  # early: the next call goes on
    assert timers._pushes <= pushed + MOVED_PER_CALL_MAX
    assert timers.take_due(15) is None
    calls = 2
    while timers.next_deadline_ms() == 10:
        calls += 1
    assert calls <= 5
    assert [timers.take_due(20) for _ in range(count)] == list(range(count))


def test_cancelled_deadlines_are_forgotten_before_their_time() -> None:
    timers = Timers[str]()
    timers.schedule(A, 5)
    for number in range(10_000):
        timers.schedule(f"member {number}", 1_800_000 + number)
        timers.cancel(f"member {number}")
    entries = len(timers._heap) + len(timers._former)
    assert entries == len(timers._queued) <= KEPT + 2 * KEPT // SORTED_OUT_AT_ONCE
    timers.schedule(B, 4)
    assert [timers.take_due(2_000_000) for _ in range(3)] == [B, A, None]


def test_deadlines_are_due_in_order_while_cancelled_ones_are_sorted_out() -> None:
    timers, count = Timers[int](), 4 * KEPT
    for key in range(count):
        timers.schedule(key, 10_000 + key % 7)
    cancelled = count // 4
    while not timers._former:
        timers.cancel(cancelled)
        cancelled += 1
    rest = {key: timers.deadline(key) for key in (*range(count // 4), *range(cancelled, count))}
    timers.schedule(3, 20_000)
    rest[3] = 20_000
    timers.schedule(-1, 10_001)
    rest[-1] = 10_001
    taken: list[int] = []
    while (due := timers.take_due(30_000)) is not None or timers.next_deadline_ms() is not None:
        taken += [] if due is None else [due]
    assert taken == sorted(rest, key=lambda key: (rest[key], key == -1, key))


def test_a_deadline_is_cancelled_at_the_same_cost_however_many_others_there_are() -> None:
    hashed = 0

    class Member(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal hashed
            hashed += 1
            return super().__hash__()

    timers, count = Timers[Member](), 3_000
    members = [Member(number) for number in range(count)]
    for member in members:
        timers.schedule(member, 5)
    hashed = 0
    most = 0
    for member in members:
        before = hashed
        timers.cancel(member)
        timers.cancel(member)
        most = max(most, hashed - before)
    assert hashed < 10 * count
    assert most <= 3 * SORTED_OUT_AT_ONCE + 2


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────
def test_a_turn_gathers_records_replies_and_actions_in_order() -> None:
    turn = Turn[str, str, str](1, 2)
    turn.write("a")
    turn.write_all(("b", "c"))
    turn.resolve(Token(1), "first")
    turn.act("send")
    turn.resolve(Token(2), "second")
    waiting = {Token(1), Token(2), Token(3)}
    assert turn.effects(waiting) == Effects(
        ("a", "b", "c"), ((Token(1), "first"), (Token(2), "second")), ("send",)
    )
    assert waiting == {3}


def test_a_reply_that_was_forgotten_is_left_out_and_its_records_are_not() -> None:
    turn = Turn[str, str, str](1, 2)
    turn.write("a")
    turn.resolve(Token(1), "gone")
    assert turn.effects(set()) == Effects(("a",))
