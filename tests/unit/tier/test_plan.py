"""What is copied, what is given up, and what local logs may delete."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from msgspec import structs

from nilometer.steps import at_once
from nilometer.tier import format as tier_format
from nilometer.tier import plan
from nilometer.tier.format import SEGMENTS_OF_A_LINE, Dropped, Manifest, RemoteSegment, manifest_name
from nilometer.tier.plan import (
    LateManifest,
    LocalSegment,
    LogView,
    Retention,
    bounding,
    divergent,
    due_removals,
    epochs_within,
    expiring,
    inherited_log_start,
    late_manifest,
    next_log_start,
    next_to_copy,
    orphans,
    removing,
    still_local,
)
from support.tier.remote_segments import manifest, segment

UNLIMITED = Retention(-1, -1)


def bound(held: Manifest | None, log: LogView) -> int:
    return at_once(bounding(held, log))


def is_lost(held: Manifest | None, log: LogView) -> bool:
    return bound(held, log) < log.local_start_offset


def expired(held: Manifest, log: LogView, retention: Retention, now_ms: int) -> tuple[RemoteSegment, ...]:
    return at_once(expiring(held, log, retention, now_ms))


def view(
    *ends: int, base: int = 0, start: int | None = None, lso: int | None = None, end: int | None = None,
    epochs: tuple[tuple[int, int], ...] = ((0, 0),),
) -> LogView:  # fmt: skip
    """Return a log with sealed segments of 100 bytes up to each of ``ends``, and an active one of 50."""
    starts = (base, *ends[:-1])[: len(ends)]
    sealed = [LocalSegment(one, until, 100) for one, until in zip(starts, ends, strict=True)]
    end = (ends[-1] if ends else base) + 5 if end is None else end
    log_start = base if start is None else start
    return LogView(log_start, base, end, end if lso is None else lso, epochs, sealed, 100 * len(sealed) + 50)


def test_sealed_segments_are_copied_in_order() -> None:
    log = view(10, 20, 30)
    assert next_to_copy(manifest(), log) == log.sealed[0]
    assert next_to_copy(manifest(segment(0, 9)), log) == log.sealed[1]
    assert next_to_copy(manifest(segment(0, 9), segment(10, 29)), log) is None


def test_a_segment_is_copied_when_all_its_transactions_are_decided() -> None:
    assert next_to_copy(manifest(), view(10, 20, lso=9)) is None
    assert next_to_copy(manifest(), view(10, 20, lso=10)) == LocalSegment(0, 10, 100)
    assert next_to_copy(manifest(segment(0, 9)), view(10, 20, lso=19)) is None


def test_a_leader_copies_from_the_segment_that_has_the_first_missing_offset() -> None:
    """Leaders roll their segments at different offsets, so the copies may overlap."""
    assert next_to_copy(manifest(segment(0, 14)), view(10, 20, 30)) == LocalSegment(10, 20, 100)


def test_a_segment_without_records_is_copied_and_expires_with_what_is_before_it() -> None:
    """Compaction may have left it. Without it the tier would have a gap: nothing behind it could be deleted
    locally."""
    log = view(10, 20, 30)
    log = log._replace(sealed=(log.sealed[0], LocalSegment(10, 20, 0), log.sealed[2]), size=250)
    held = manifest(segment(0, 9))
    assert next_to_copy(held, log) == LocalSegment(10, 20, 0)
    empty = structs.replace(segment(10, 19), log_bytes=0, max_timestamp=-1)
    held = manifest(segment(0, 9, max_timestamp=1), empty, segment(20, 29, max_timestamp=5))
    assert bound(held, log) == 30
    assert expired(held, log, Retention(10, -1), 10) == ()
    assert expired(held, log, Retention(10, -1), 11) == held.segments[:2]
    assert expired(held, log, Retention(10, -1), 15) == held.segments


def test_what_deleted_records_left_is_not_copied() -> None:
    assert next_to_copy(manifest(log_start=20), view(10, 20, 30, start=20)) == LocalSegment(20, 30, 100)
    assert next_to_copy(manifest(), view(10, 20, 30, start=25)) == LocalSegment(20, 30, 100)


def test_a_local_log_deletes_what_the_tier_has_without_a_gap() -> None:
    held = manifest(segment(0, 9), segment(5, 19), segment(30, 39))
    assert bound(held, view(10, 20)) == 20
    assert bound(manifest(segment(5, 9)), view(10, 20)) == 0
    assert bound(manifest(), view(10, 20)) == 0
    assert bound(manifest(segment(0, 9)), view(20, base=10, start=3)) == 10


def test_the_whole_retention_counts_bytes_once() -> None:
    held = manifest(segment(0, 9), segment(10, 19))
    log = view(10, 20, 30)  # 200 bytes in the tier, 150 that are local only
    assert expired(held, log, UNLIMITED, 0) == ()
    assert expired(held, log, Retention(-1, 351), 0) == ()
    assert expired(held, log, Retention(-1, 251), 0) == ()
    assert expired(held, log, Retention(-1, 250), 0) == held.segments[:1]
    assert expired(held, log, Retention(-1, 150), 0) == held.segments


def test_the_whole_retention_by_time_stops_at_the_first_younger_segment() -> None:
    held = manifest(
        segment(0, 9, max_timestamp=100), segment(10, 19, max_timestamp=300), segment(20, 29, max_timestamp=1)
    )
    assert expired(held, view(30), Retention(50, -1), 149) == ()
    assert expired(held, view(30), Retention(50, -1), 150) == held.segments[:1]
    assert expired(held, view(30), Retention(50, -1), 350) == held.segments


def test_deleted_records_take_their_remote_segments_with_them() -> None:
    held = manifest(segment(0, 9), segment(10, 19), segment(20, 29))
    assert expired(held, view(30, start=20), UNLIMITED, 0) == held.segments[:2]
    assert expired(held, view(30, start=19), UNLIMITED, 0) == held.segments[:1]


def test_what_is_in_the_tier_is_not_counted_as_local_because_segments_begin_elsewhere() -> None:
    held = manifest(segment(0, 9), segment(10, 19))
    for log in (view(), view(5), view(5, 25)):  # the tier ends within the active segment, or a sealed one
        begins_behind = 50 if len(log.sealed) == 2 else 0
        assert expired(held, log, Retention(-1, 101 + begins_behind), 0) == ()
        assert expired(held, log, Retention(-1, 100 + begins_behind), 0) == held.segments[:1]


def test_what_expired_of_many_is_found_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SEGMENTS_OF_A_LINE", 2)
    held = manifest(*(segment(at, at + 1) for at in range(7)))
    assert list(expiring(held, view(7, start=7), UNLIMITED, 0)) == [2, 2, 2]
    assert expired(held, view(7, start=7), UNLIMITED, 0) == held.segments[:6]
    assert expired(held, view(8, start=8), UNLIMITED, 0) == held.segments


def test_a_quarter_of_what_is_dropped_is_removed_before_a_manifest_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "REMOVED_AT_ONCE", 2)
    held = manifest(*(segment(at, at + 1) for at in range(8)))
    held = held.without(held.segments, 0)
    counts = list[int]()
    while due := at_once(due_removals(held, 5, 1)):
        counts.append(len(due))
        held = at_once(removing(held, due))
    assert counts == [4, 3, 2, 2, 2, 2, 1]


def test_the_log_starts_behind_what_expired() -> None:
    held = manifest(segment(0, 9), segment(10, 19))
    assert next_log_start((), view(20, start=5)) == 5
    assert next_log_start(held.segments[:1], view(20, start=5)) == 10
    assert next_log_start(held.segments[:1], view(20, start=15)) == 15


def test_a_leader_inherits_the_log_start_unless_its_records_are_others() -> None:
    held, log = manifest(log_start=12), view(30, end=35, epochs=((0, 0), (3, 15)))
    assert inherited_log_start(held, log, 3, 20) == 12
    assert inherited_log_start(manifest(log_start=16), log, 3, 20) == 0
    assert inherited_log_start(manifest(log_start=16), log, 4, 20) == 16
    assert inherited_log_start(manifest(log_start=36), log, 4, 20) == 0
    local = view(30, base=10, start=2, end=35, epochs=((0, 0),))
    assert inherited_log_start(manifest(log_start=36), local, 4, 0) == 10, "what is below is gone"
    assert inherited_log_start(manifest(log_start=3), view(30, start=5), 0, 0) == 5


def test_a_leader_keeps_what_it_has_itself_and_did_not_compare() -> None:
    local = view(30, base=10, start=2, end=35, epochs=((0, 0),))
    starts = [inherited_log_start(manifest(log_start=at), local, 4, 12) for at in (5, 11, 20)]
    assert starts == [5, 11, 12]
    assert inherited_log_start(manifest(log_start=20), local, 4, 0) == 10


def test_records_of_another_lineage_are_cut_with_all_that_follow() -> None:
    held = manifest(
        segment(0, 9, epochs=((0, 0),)),
        segment(10, 19, epochs=((0, 10), (1, 15))),
        segment(20, 29, epochs=((1, 20),)),
    )
    assert divergent(held, view(30, epochs=((0, 0), (1, 15)))) == ()
    assert divergent(held, view(30, epochs=((0, 0), (2, 15)))) == held.segments[1:]
    assert divergent(held, view(30, epochs=((0, 0), (1, 14)))) == held.segments[1:]
    assert divergent(held, view(30, epochs=((0, 0), (1, 15), (2, 25)))) == held.segments[2:]
    assert divergent(held, view(20, end=25, epochs=((0, 0), (1, 15)))) == held.segments[2:]
    assert divergent(held, view(30, epochs=((3, 0),))) == held.segments


def test_what_was_found_to_be_the_same_is_not_compared_again() -> None:
    log = view(10, 20, 30, epochs=((0, 0), (2, 20)))
    held = manifest(segment(0, 9, epochs=((1, 0),)), segment(10, 19), segment(20, 29))
    assert divergent(held, log) == held.segments
    assert divergent(held, log, 9) == held.segments
    assert divergent(held, log, 10) == held.segments[2:]
    assert divergent(held, log, 30) == ()


def test_what_a_log_no_longer_knows_is_no_divergence() -> None:
    held = manifest(segment(0, 9, epochs=((0, 0), (1, 5))), segment(10, 19, epochs=((1, 10),)))
    assert divergent(held, view(20, base=8, start=8, epochs=((1, 8),))) == ()
    assert divergent(held, view(20, base=8, start=8, epochs=((2, 8),))) == held.segments
    assert divergent(held, view(20, base=8, start=0, epochs=((1, 6),))) == ()


def test_epochs_within_a_range() -> None:
    epochs = ((0, 0), (1, 10), (4, 20))
    assert epochs_within(epochs, 0, 30) == epochs
    assert epochs_within(epochs, 10, 20) == ((1, 10),)
    assert epochs_within(epochs, 15, 21) == ((1, 15), (4, 20))
    assert epochs_within(((1, 10),), 5, 20) == ((1, 10),)


def test_a_tier_that_lacks_what_was_deleted_locally_is_lost() -> None:
    log = view(20, base=10, start=0)
    assert is_lost(None, log)
    assert is_lost(manifest(), log)
    assert is_lost(manifest(segment(0, 8)), log)
    assert is_lost(manifest(segment(1, 20)), log)
    assert is_lost(manifest(segment(0, 4), segment(6, 20)), log)
    assert not is_lost(manifest(segment(0, 9)), log)
    assert not is_lost(None, view(20))


def test_objects_are_removed_when_the_grace_period_is_over() -> None:
    held = manifest(segment(0, 9), segment(10, 19))
    later = held.without(held.segments[:1], 1_000)
    assert later.segments == held.segments[1:]
    assert at_once(due_removals(later, 1_999, 1_000)) == ()
    names = at_once(due_removals(later, 2_000, 1_000))
    assert sorted(names) == sorted((held.segments[0].log_name, held.segments[0].index_name))
    assert at_once(removing(later, names)) == structs.replace(later, dropped=())


def test_the_grace_period_begins_when_a_manifest_appears_that_is_late_by_a_tenth_of_it() -> None:
    assert late_manifest(1_000, 1_100, 1_000) is None
    late = late_manifest(1_000, 1_101, 1_000)
    assert late == LateManifest(900, 1_000, 1_101)
    held = manifest(segment(0, 9), segment(10, 19), segment(20, 29), segment(30, 39))
    for at, since_ms in enumerate((899, 900, 1_000, 1_001)):
        held = held.without(held.segments[:1], since_ms)
        assert len(held.dropped) == 2 * (at + 1)
    first, second, third, fourth = [{one.name for one in held.dropped[at : at + 2]} for at in (0, 2, 4, 6)]

    def due(now_ms: int) -> set[str]:
        return set(at_once(due_removals(held, now_ms, 1_000, (late,))))

    assert due(1_999) == first
    assert due(2_001) == first | fourth
    assert due(2_101) == first | second | third | fourth


@pytest.mark.parametrize(
    ("start", "local", "count"),
    [(0, 0, 4), (0, 10, 3), (0, 12, 2), (0, 15, 2), (0, 16, 1), (12, 12, 3), (20, 20, 1), (0, 40, 0)],
)
def test_what_the_log_has_itself_is_not_needed_also_if_it_begins_before_that(
    start: int, local: int, count: int
) -> None:
    held = manifest(segment(0, 9), segment(10, 14), segment(12, 19), segment(20, 29))
    log = view(50, base=local, start=start)
    assert still_local(held, log) == held.segments[len(held.segments) - count :]


def test_what_no_manifest_names_is_found_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_format, "SEGMENTS_OF_A_LINE", 2)
    held = manifest(*(segment(10 * at, 10 * at + 9) for at in range(4)))
    held = structs.replace(held.without(held.segments[:1], 1_000), oldest=3)
    named = [name for one in held.segments for name in (one.log_name, one.index_name)]
    dropped = [one.name for one in held.dropped]
    listed = [*named, *dropped, "head", manifest_name(2), manifest_name(3), "00000000000000000000-b.log"]
    steps = orphans(held, iter(listed))
    assert at_once(orphans(held, iter(listed))) == (manifest_name(2), "00000000000000000000-b.log")
    assert list(steps) == [2, 2, 1, *[2] * 6]


class Counted(tuple[Any, ...]):
    """Counts the elements that are taken one by one."""

    taken = 0

    def __iter__(self) -> Iterator[Any]:
        for one in super().__iter__():
            self.taken += 1
            yield one

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        if isinstance(place, slice):
            found = Counted(found)
            self.slices.append(found)
        return found

    @property
    def slices(self) -> list[Counted]:
        return self.__dict__.setdefault("slices_made", [])

    @property
    def total(self) -> int:
        return self.taken + sum(one.total for one in self.slices)


def test_one_step_walks_over_a_thousand_dropped_objects_at_most() -> None:
    dropped = Counted(Dropped(f"{at}", 0) for at in range(2 * SEGMENTS_OF_A_LINE + 1))
    walked = list[int]()
    for _ in due_removals(structs.replace(manifest(), dropped=dropped), 0, 1):
        walked.append(dropped.total)
    assert walked == [SEGMENTS_OF_A_LINE, 2 * SEGMENTS_OF_A_LINE, 2 * SEGMENTS_OF_A_LINE + 1]


@pytest.mark.parametrize(
    "steps",
    [
        lambda held: held.summing(),
        lambda held: bounding(held, view(start=0, base=10 * len(held.segments))),
        lambda held: expiring(held, view(10 * len(held.segments)), Retention(-1, 0), 0),
        lambda held: expiring(held, view(10 * len(held.segments)), Retention(0, -1), 1 << 40),
    ],
    ids=["sums", "bound", "size", "time"],
)
def test_one_step_walks_over_a_thousand_segments_at_most(
    steps: Callable[[Manifest], Generator[int, None, object]],
) -> None:
    segments = Counted(segment(10 * at, 10 * at + 9) for at in range(2 * SEGMENTS_OF_A_LINE + 1))
    walked = 0
    for _ in steps(structs.replace(manifest(), segments=segments)):
        assert segments.total - walked <= SEGMENTS_OF_A_LINE + 1
        walked = segments.total
    assert walked >= 2 * SEGMENTS_OF_A_LINE
