"""Versions of rows: named cases, and drawn histories of a table beside a model in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nilometer.pipeline.changes.change_events import SNAPSHOT_SEQ, Change
from nilometer.pipeline.changes.changed_rows import Emptied, Version, versions_of


def change(op, lsn, row=None, *, seq=0, key="1", **more):
    seq = SNAPSHOT_SEQ if op == "r" else seq
    return Change(op=op, table="t", key=key, row=row, lsn=lsn, seq=seq, snapshot=op == "r", at_us=lsn, **more)


def rows(outcome):
    """The rows of the versions in their order, with the times from and until which they were valid."""
    ordered = sorted(outcome.versions, key=lambda one: (one.key, one.position))
    return [(one.row, one.valid_from, one.valid_until) for one in ordered if not one.deleted]


def newest(outcome):
    return [one for one in outcome.versions if one.newest]


def test_an_update_at_the_position_of_its_snapshot_is_not_lost():
    outcome = versions_of([], [change("r", 5, "a"), change("u", 5, "b")], [])
    assert rows(outcome) == [("a", 5, 5), ("b", 5, None)]
    assert outcome.repeated == []


def test_a_change_of_a_transaction_that_was_open_at_the_snapshot_counts():
    outcome = versions_of([], [change("r", 100, "old"), change("u", 90, "new")], [])
    assert [one.row for one in newest(outcome)] == ["new"]
    again = versions_of(newest(outcome), [change("r", 100, "old"), change("u", 90, "new")], [])
    assert again.repeated == [0, 1] and newest(again) == newest(outcome)
    later = versions_of(newest(outcome), [change("u", 95, "newer"), change("d", 101)], [])
    assert rows(later) == [("new", 90, 95), ("newer", 95, 101)]


def test_a_late_change_below_a_truncate_does_not_come_back():
    truncate = Emptied(10, 0, 10)
    outcome = versions_of([], [change("c", 5, "late")], [truncate])
    assert rows(outcome) == [("late", 5, 10)]
    assert [one.deleted for one in newest(outcome)] == [True]
    back = versions_of(newest(outcome), [change("c", 12, "back")], [truncate])
    assert rows(back) == [("back", 12, None)]


def test_changes_that_arrive_after_a_later_truncate_are_versions_too():
    truncate = Emptied(10, 0, 10)
    known = newest(versions_of([], [change("c", 5, "a")], [truncate]))
    outcome = versions_of(known, [change("u", 7, "b"), change("d", 8), change("c", 12, "c")], [truncate])
    assert rows(outcome) == [("b", 7, 8), ("c", 12, None)]
    assert outcome.repeated == []


def test_versions_follow_one_another_when_times_are_equal_or_go_back():
    changes = [change("c", 1, "a"), change("u", 2, "b"), change("u", 3, "c")]
    object.__setattr__(changes[2], "at_us", 0)
    outcome = versions_of([], changes, [])
    assert [one.row for one in newest(outcome)] == ["c"]


def test_a_later_snapshot_ends_the_rows_that_it_does_not_have():
    known = newest(versions_of([], [change("c", 5, "a")], []))
    snapshot = Emptied(50, -2, 50, known_only=True)
    assert rows(versions_of(known, [], [snapshot])) == [("a", 5, 50)]
    there = versions_of(known, [change("r", 50, "a2")], [snapshot])
    assert rows(there) == [("a", 5, 50), ("a2", 50, None)]
    new = versions_of([], [change("c", 45, "of an open transaction")], [snapshot])
    assert [one.deleted for one in newest(new)] == [False]


def test_missing_columns_are_those_before_also_of_the_old_key():
    first = change("c", 1, '{"a":1,"b":"large"}')
    second = change("u", 2, '{"a":2}', missing=["b"])
    moved = change("c", 3, '{"a":3}', key="2", missing=["b"], old_key="1")
    gone = change("d", 3)
    outcome = versions_of([], [first, second, gone, moved], [])
    assert rows(outcome)[1:] == [('{"a":2,"b":"large"}', 2, 3), ('{"a":3,"b":"large"}', 3, None)]
    deleted = [one for one in versions_of([], [first, gone], []).versions if one.newest]
    later = versions_of(deleted, [moved], [])
    assert [one.row for one in newest(later) if not one.deleted] == ['{"a":3,"b":"large"}']


def test_a_row_that_got_another_key_waits_for_its_version_under_the_old_one():
    moved = change("c", 3, '{"a":3}', key="2", missing=["b"], old_key="1")
    after = change("u", 4, '{"a":4,"b":"small"}', key="2")
    first = versions_of([], [moved, after], [])
    assert (first.waiting, first.versions) == ([0, 1], [])
    then = versions_of([], [change("c", 1, '{"a":1,"b":"large"}'), moved, after], [])
    assert then.waiting == [1, 2]
    both = versions_of([], [change("c", 1, '{"a":1,"b":"large"}'), change("d", 3), moved, after], [])
    assert not both.waiting
    assert [one.row for one in newest(both) if not one.deleted] == ['{"a":4,"b":"small"}']
    # The old key has got another row since: its last version is not known any more.
    other = newest(versions_of([], [change("d", 3), change("c", 5, '{"a":5,"b":"other"}')], []))
    assert versions_of(other, [moved], []).rejected == [0]


def test_missing_columns_that_no_version_has_are_rejected():
    outcome = versions_of([], [change("u", 2, '{"a":2}', missing=["b"])], [])
    assert outcome.rejected == [0] and outcome.versions == []
    known = newest(versions_of([], [change("c", 1, '{"a":1}')], []))
    outcome = versions_of(known, [change("u", 2, '{"a":2}', missing=["b"])], [])
    assert outcome.rejected == [0] and newest(outcome) == known


# --- drawn histories


@dataclass
class Table:
    """A table, the changes that its database logs, and every version that its rows had."""

    lsn: int = 0
    now: dict[str, tuple[str, int]] = field(default_factory=dict)
    log: list[Any] = field(default_factory=list)
    closed: list[tuple[str, str, int, int]] = field(default_factory=list)

    def end(self, key):
        row, since = self.now.pop(key)
        self.closed.append((key, row, since, self.lsn))

    def apply(self, op, key):
        self.lsn += 1
        if op == "t":
            for one in list(self.now):
                self.end(one)
            self.log.append(Emptied(self.lsn, 0, self.lsn))
        elif op == "d" and key in self.now:
            self.end(key)
            self.log.append(change("d", self.lsn, key=key))
        elif op == "u":
            kind = "u" if key in self.now else "c"
            if key in self.now:
                self.end(key)
            self.now[key] = (str(self.lsn), self.lsn)
            self.log.append(change(kind, self.lsn, str(self.lsn), key=key))


OPS = st.lists(st.tuples(st.sampled_from("uuuuudt"), st.sampled_from("abc")), max_size=30)


@given(
    OPS, st.lists(st.integers(0, 30), max_size=5), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)))
)
def test_rows_and_their_versions_are_those_of_the_table_in_any_batches_with_repeats(ops, cuts, repeats):
    table = Table()
    for op, key in ops:
        table.apply(op, key)
    sent = list(table.log)
    for at, count in repeats:  # a producer that was killed sends the same again, later
        sent[at + count : at + count] = sent[at : at + count]
    known: dict[str, Version] = {}
    emptied: list[Emptied] = []
    closed: list[tuple[str, str | None, int, int | None]] = []
    bounds = [0, *sorted(cuts), len(sent)]
    for first, last in pairwise(bounds):
        batch = sent[first:last]
        emptied += [one for one in batch if isinstance(one, Emptied) and one not in emptied]
        emptied.sort(key=lambda one: one.position)
        for key in "abc":
            changes = [one for one in batch if isinstance(one, Change) and one.key == key]
            outcome = versions_of([known[key]] if key in known else [], changes, emptied)
            for one in outcome.versions:
                if one.newest:
                    known[key] = one
                elif not one.deleted:
                    closed.append((key, one.row, one.valid_from, one.valid_until))
    present = {key: (one.row, one.valid_from) for key, one in known.items() if not one.deleted}
    assert present == table.now
    assert sorted(closed) == sorted(table.closed)
