"""What follows from a record waits until it is committed: replies only for some time, actions without end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nilometer.broker.coordinator_shell import WaitingEffects
from nilometer.broker.replicas.delayed_requests import CommitWait
from nilometer.coordinators import Token
from nilometer.wire.errors import ErrorCode

ONE, TWO, THREE = Token(1), Token(2), Token(3)


@dataclass
class Log:
    high_watermark: int = 0
    held: list[tuple[int, CommitWait]] = field(default_factory=list[tuple[int, CommitWait]])

    def hold(self, offset: int, wait: CommitWait) -> None:
        assert offset > self.high_watermark, "there is nothing to wait for"
        self.held.append((offset, wait))

    def commit(self, offset: int) -> None:
        self.high_watermark = offset
        due, self.held = (
            [one for one in self.held if one[0] <= offset],
            [one for one in self.held if one[0] > offset],
        )
        for _, wait in due:
            wait.release()

    def resign(self) -> None:
        held, self.held = self.held, []
        for _, wait in held:
            wait.release(ErrorCode.not_leader_or_follower)


class Waits:
    def __init__(self) -> None:
        self.log = Log()
        self.left: list[object] = []
        self.effects = WaitingEffects[str, str](self.log, self.log.hold, self._give, self.left.extend)

    def _give(self, replies: Sequence[tuple[Token, str]]) -> None:
        self.left.extend(replies)


def test_what_is_committed_already_leaves_at_once() -> None:
    waits = Waits()
    waits.log.high_watermark = 5
    waits.effects.add(5, [(ONE, "yes")], ["send"], 100)
    assert waits.left == [(ONE, "yes"), "send"]


def test_an_action_waits_for_the_high_watermark_as_a_reply_does() -> None:
    waits = Waits()
    waits.effects.add(5, [(ONE, "yes")], ["send"], 100)
    waits.effects.add(5, [], ["send more"], 100)
    waits.effects.add(7, [(TWO, "yes")], ["later"], 100)
    waits.log.commit(4)
    assert waits.left == []
    waits.log.commit(5)
    assert waits.left == [(ONE, "yes"), "send", "send more"]
    waits.log.commit(7)
    assert waits.left[3:] == [(TWO, "yes"), "later"]


def test_what_needs_no_record_waits_behind_what_does() -> None:
    waits = Waits()
    waits.effects.add(5, [], ["first"], 100)
    waits.effects.add(5, [(ONE, "read")], [], 100)
    assert waits.left == []
    waits.log.commit(5)
    assert waits.left == [(ONE, "read"), "first"], "the replies of an offset are given first"


def test_replies_are_given_up_when_their_time_is_over_and_actions_are_not() -> None:
    waits = Waits()
    waits.effects.add(5, [(ONE, "yes")], ["send"], 100)
    waits.effects.add(7, [(TWO, "yes")], [], 150)
    waits.effects.add(9, [(THREE, "yes")], ["last"], 200)
    assert waits.effects.take_overdue(99) == []
    assert waits.effects.take_overdue(150) == [ONE, TWO]
    assert waits.effects.next_deadline_ms() == 200
    waits.log.commit(9)
    assert waits.left == ["send", (THREE, "yes"), "last"]


def test_a_reply_behind_an_overdue_action_has_its_own_time() -> None:
    waits = Waits()
    waits.effects.add(5, [(ONE, "yes")], ["send"], 100)
    assert waits.effects.take_overdue(100) == [ONE]
    waits.effects.add(5, [(TWO, "yes")], [], 250)
    assert (waits.effects.take_overdue(249), waits.effects.next_deadline_ms()) == ([], 250)
    assert waits.effects.take_overdue(250) == [TWO]


def test_nothing_leaves_when_the_leader_resigns_or_the_shard_is_dropped() -> None:
    waits = Waits()
    waits.effects.add(5, [(ONE, "yes")], ["send"], 100)
    waits.log.resign()
    waits.effects.clear()
    waits.effects.add(6, [(TWO, "yes")], ["other"], 100)
    assert waits.left == []
    waits.log.commit(6)
    assert waits.left == [(TWO, "yes"), "other"]


def _with_a_release_put_off() -> tuple[Waits, CommitWait]:
    """Both are committed, and one is released; the release of the other follows in a slice."""
    waits = Waits()
    waits.effects.add(5, [(ONE, "yes")], [], 100)
    waits.effects.add(6, [(TWO, "yes")], [], 100)
    (_, first), (_, second) = waits.log.held
    waits.log.held, waits.log.high_watermark = [], 7
    first.release()
    assert waits.left == [(ONE, "yes")]
    return waits, second


def test_what_is_committed_already_leaves_after_those_whose_release_is_put_off() -> None:
    waits, second = _with_a_release_put_off()
    waits.effects.add(7, [(THREE, "yes")], ["send"], 200)
    assert waits.left == [(ONE, "yes")]
    second.release()
    assert waits.left == [(ONE, "yes"), (TWO, "yes"), (THREE, "yes"), "send"]


def test_a_reply_is_not_given_up_while_its_release_is_put_off() -> None:
    waits, second = _with_a_release_put_off()
    waits.effects.add(8, [(THREE, "yes")], [], 100)
    assert waits.effects.take_overdue(100) == []
    second.release()
    assert waits.left == [(ONE, "yes"), (TWO, "yes")]
    assert waits.effects.take_overdue(100) == [THREE], "its record is not committed"
