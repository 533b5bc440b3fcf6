"""The judge of histories finds and names each planted violation, and nothing where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.simulation.history import History, Seen, check

P = "t-0"


def _clean() -> History:
    """Two producers; unknown sends, one of which made it; one failed; read in two polls, with a marker."""
    history = History()
    for producer, value, offset in (("a", "a1", 0), ("b", "b1", 1), ("a", "a2", 2), ("b", "b2", 5)):
        history.send(producer, P, value).acknowledged(offset)
    history.send("a", P, "in-doubt")
    history.send("a", P, "lost in doubt")
    history.send("b", P, "refused").failed()
    history.moved("r")
    history.poll("r", [Seen(P, 0, "a1"), Seen(P, 1, "b1")])
    history.poll("r", [Seen(P, 2, "a2"), Seen(P, 4, "in-doubt"), Seen(P, 5, "b2")])
    history.read_to_end("r")
    return history


def test_nothing_is_found_in_a_good_history() -> None:
    assert check(_clean()) == []


def _lost_write(history: History) -> None:
    history.send("c", P, "c1").acknowledged(3)  # 4 and 5 were read


def _aborted_read(history: History) -> None:
    history.poll("r", [Seen(P, 6, "refused")])


def _inconsistent_offsets(history: History) -> None:
    history.poll("s", [Seen(P, 1, "something else")])


def _inconsistent_with_the_acknowledgement(history: History) -> None:
    history.send("c", P, "c1").acknowledged(1)


def _duplicate(history: History) -> None:
    history.poll("r", [Seen(P, 6, "a2")])


def _duplicate_of_an_unknown(history: History) -> None:
    history.poll("r", [Seen(P, 6, "in-doubt")])


def _poll_skip(history: History) -> None:
    history.poll("s", [Seen(P, 1, "b1")])
    history.poll("s", [Seen(P, 4, "in-doubt")])


def _poll_skip_inside(history: History) -> None:
    history.poll("s", [Seen(P, 0, "a1"), Seen(P, 2, "a2")])


def _nonmonotonic_poll(history: History) -> None:
    history.poll("r", [Seen(P, 2, "a2")])


def _nonmonotonic_poll_inside(history: History) -> None:
    history.poll("s", [Seen(P, 1, "b1"), Seen(P, 0, "a1")])


def _nonmonotonic_send(history: History) -> None:
    history.send("b", P, "b3").acknowledged(7)
    history.send("b", P, "b4").acknowledged(6)
    history.poll("r", [Seen(P, 6, "b4"), Seen(P, 7, "b3")])


def _unseen(history: History) -> None:
    history.send("a", P, "a9").acknowledged(6)


def _g0(history: History) -> None:
    for partition, order in (("x-0", "12"), ("y-0", "21")):
        for offset, name in enumerate(order):
            history.send(name, partition, name, transaction=name).acknowledged(offset)
    history.poll("r", [Seen("x-0", 0, "1"), Seen("x-0", 1, "2"), Seen("y-0", 0, "2"), Seen("y-0", 1, "1")])


def _g1c(history: History) -> None:
    for name, other, partition in (("1", "2", "x-0"), ("2", "1", "y-0")):
        history.send(name, partition, name, transaction=name).acknowledged(0)
        history.poll(f"t{other}", [Seen(partition, 0, name)], transaction=other)
    history.poll("r", [Seen("x-0", 0, "1"), Seen("y-0", 0, "2")])


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (_lost_write, {"lost-write", "unseen", "poll-skip"}),
        (_aborted_read, {"aborted-read"}),
        (_inconsistent_offsets, {"inconsistent-offsets"}),
        (_inconsistent_with_the_acknowledgement, {"inconsistent-offsets", "lost-write", "unseen"}),
        (_duplicate, {"duplicate"}),
        (_duplicate_of_an_unknown, {"duplicate"}),
        (_poll_skip, {"poll-skip"}),
        (_poll_skip_inside, {"poll-skip"}),
        (_nonmonotonic_poll, {"nonmonotonic-poll"}),
        (_nonmonotonic_poll_inside, {"nonmonotonic-poll"}),
        (_nonmonotonic_send, {"nonmonotonic-send"}),
        (_unseen, {"unseen"}),
        (_g0, {"G0"}),
        (_g1c, {"G1c"}),
    ],
)
def test_each_violation_is_found_and_named(plant: Callable[[History], None], kinds: set[str]) -> None:
    history = _clean()
    plant(history)
    assert {anomaly.kind for anomaly in check(history)} == kinds


def test_a_seek_or_rebalance_is_no_skip_and_no_way_back() -> None:
    history = _clean()
    history.moved("r", P)
    history.poll("r", [Seen(P, 1, "b1")])
    history.moved("r")
    history.poll("r", [Seen(P, 5, "b2")])
    assert check(history) == []


def _back_from_the_end(history: History) -> None:
    history.poll("s", [Seen(P, 4, "in-doubt"), Seen(P, 5, "b2")])
    history.poll("s", [Seen(P, 2, "a2")])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_way_back_from_what_was_deleted_is_none(when: str) -> None:
    """Its position is out of range where it asks, and in range where it is told to begin."""
    history = _clean()
    if when == "before":
        history.log_starts_at(P, 7)
    _back_from_the_end(history)
    if when == "after":
        history.log_starts_at(P, 7)
    assert check(history) == []


def test_a_way_back_is_one_where_other_records_were_deleted() -> None:
    history = _clean()
    history.log_starts_at(P, 3)
    _back_from_the_end(history)
    history.log_starts_at(P, 6)
    history.log_starts_at(P, 7)
    assert {anomaly.kind for anomaly in check(history)} == {"nonmonotonic-poll"}


@pytest.mark.parametrize(("starts_at", "kinds"), [(3, set[str]()), (2, {"duplicate"}), (7, {"duplicate"})])
def test_a_place_that_was_deleted_before_the_record_came_again_is_forgotten(
    starts_at: int, kinds: set[str]
) -> None:
    """The log began behind the first place, 2, before it reached the second, 6."""
    history = _clean()
    history.log_starts_at(P, starts_at)
    _duplicate(history)
    assert {anomaly.kind for anomaly in check(history)} == kinds


def test_the_verdict_names_the_operations() -> None:
    history = _clean()
    _unseen(history)
    [anomaly] = check(history)
    assert "a sends a9 to t-0 at 6: ok" in anomaly.description and "r read to the end" in anomaly.description


def test_a_history_is_kept_one_operation_a_line(tmp_path: Path) -> None:
    history = _clean()
    history.save(tmp_path / "history")
    lines = [json.loads(line) for line in (tmp_path / "history").read_text().splitlines()]
    assert len(lines) == len(history.operations)
    assert lines[0] == {
        "is": "Send",
        "number": 0,
        "producer": "a",
        "partition": P,
        "value": "a1",
        "outcome": "ok",
        "offset": 0,
        "transaction": None,
        "may_repeat": False,
        "at_ms": 0,
    }


def test_a_producer_that_does_not_number_its_records_may_repeat_them() -> None:
    history = _clean()
    history.send("plain", P, "p1", may_repeat=True).acknowledged(7)
    history.poll("r", [Seen(P, 6, "p1"), Seen(P, 7, "p1")])
    assert check(history) == []
