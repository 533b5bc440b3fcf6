"""What is decided from the offsets and leader epochs of segments: compared with slow and simple versions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from nilometer.pipeline.archive.archiver import (
    SourceLog,
    covers,
    decide_copies,
    diverging,
    in_order,
    lost,
    sealed,
)
from nilometer.tier.format import RemoteSegment
from nilometer.tier.segment_ranges import chain, divergence, epochs_of, gaps, runs
from support.properties import examples

ANY_TIME = examples(150)
OFFSETS = some.integers(0, 1 << 60)


def segment(base, end, *, epochs=((0, None),)):
    found = tuple((epoch, base if offset is None else offset) for epoch, offset in epochs)
    return RemoteSegment(base, end - 1, 5, 10 * (end - base), 50, False, f"{end}", found)


# --- ranges

RANGES = some.lists(some.tuples(some.integers(0, 40), some.integers(1, 15)), max_size=12)


@ANY_TIME
@given(RANGES)
def test_a_chain_has_all_offsets_and_no_segment_too_many(ranges):
    listed = [segment(base, base + size) for base, size in ranges]
    linked = chain(listed)
    offsets = {offset for one in listed for offset in range(one.base_offset, one.end_offset)}
    assert {offset for one in linked for offset in range(one.base_offset, one.end_offset)} == offsets
    bases, ends = [one.base_offset for one in linked], [one.end_offset for one in linked]
    assert bases == sorted(set(bases)) and ends == sorted(set(ends))
    for before, after in zip(linked, linked[2:], strict=False):
        assert before.end_offset < after.base_offset, "the segment between them is not needed"
    missing = {offset for low, high in gaps(linked) for offset in range(low, high)}
    assert missing == set(range(min(bases, default=0), max(ends, default=0))) - offsets
    assert [one for run in runs(linked) for one in run] == linked
    assert len(runs(linked)) == (len(gaps(linked)) + 1 if linked else 0)


@ANY_TIME
@given(RANGES, some.integers(0, 50), some.integers(0, 20))
def test_covered_is_what_has_every_offset(ranges, start, size):
    held = {offset for base, length in ranges for offset in range(base, base + length)}
    found = covers([(base, base + length) for base, length in ranges], start, start + size)
    assert found == (set(range(start, start + size)) <= held)


# --- leader epochs

EPOCHS = some.lists(some.integers(0, 4), min_size=1, max_size=25).map(sorted)


def runs_of(epochs, first):
    found = []
    for offset, epoch in enumerate(epochs, first):
        if not found or found[-1][0] != epoch:
            found.append((epoch, offset))
    return found


@ANY_TIME
@given(EPOCHS, EPOCHS, some.integers(0, 12), some.integers(0, 12))
def test_logs_diverge_at_the_first_offset_with_two_epochs(mine, theirs, my_start, their_start):
    my_end, their_end = my_start + len(mine), their_start + len(theirs)
    common = range(max(my_start, their_start), min(my_end, their_end))
    expected = next((n for n in common if mine[n - my_start] != theirs[n - their_start]), None)
    if not common:
        first, last = (mine, theirs) if my_end <= their_start else (theirs, mine)
        expected = (max(my_start, their_start)) if last[0] < first[-1] else None
    found = divergence(runs_of(mine, my_start), my_end, runs_of(theirs, their_start), their_end)
    assert found == expected


def test_epochs_of_batches_that_have_none_diverge_from_nothing():
    assert divergence([(-1, 0)], 10, [(3, 0)], 10) is None
    assert divergence([], 10, [(3, 0)], 10) is None


def test_the_epochs_of_a_chain_are_those_of_its_offsets():
    first = segment(0, 10, epochs=((0, 0), (2, 6)))
    overlapping = segment(4, 20, epochs=((0, 4), (2, 6), (5, 15)))
    later = segment(30, 40, epochs=((5, 30),))
    assert epochs_of([first, overlapping, later]) == [(0, 0), (2, 6), (5, 15)]


# --- what is copied


def source(bases, high_watermark, *, log_start=0, epochs=((0, 0),), name="broker 1"):
    return SourceLog(name, tuple(bases), max(log_start, bases[0]), high_watermark, epochs)


def copied(sources, archived=()):
    return [(one.base_offset, one.end_offset) for one in decide_copies(sources, archived)]


def test_sealed_segments_below_the_high_watermark_are_copied_and_the_active_one_is_not():
    assert sealed(source([0, 10, 20], 30)) == [(0, 10), (10, 20)]
    assert copied([source([0, 10, 20], 30)]) == [(0, 10), (10, 20)]
    assert copied([source([0, 10, 20], 19)]) == [(0, 10)]
    assert copied([source([0], 30)]) == []


def test_a_rerun_copies_only_what_is_missing():
    assert copied([source([0, 10, 20, 30], 40)], [(0, 10), (20, 30)]) == [(10, 20)]
    assert copied([source([0, 10, 20, 30], 40)], [(0, 30)]) == []


def test_records_below_the_log_start_are_not_wanted():
    log = source([0, 10, 20], 30, log_start=10)
    assert copied([log]) == [(10, 20)]
    (inside,) = decide_copies([source([0, 10], 30, log_start=4)], [])
    assert (inside.base_offset, inside.start_offset) == (0, 4)
    assert copied([source([0, 10], 30, log_start=4)], [(4, 10)]) == []


def test_what_one_replica_has_no_longer_comes_from_another_one():
    behind = source([0, 15, 25], 20, name="broker 2")
    assert copied([source([10, 20, 30], 40), behind]) == [(0, 15), (10, 20), (20, 30)]


def test_the_replica_with_the_newest_epoch_comes_first_and_one_that_diverges_is_not_used():
    stale = source([0, 5, 10, 50], 60, epochs=((0, 0), (1, 8)), name="stale")
    current = source([0, 20, 40], 45, epochs=((0, 0), (3, 8)), name="current")
    assert in_order([stale, current]) == [1, 0]
    assert {number: one.offset for number, one in diverging([stale, current]).items()} == {0: 8}
    assert copied([stale, current]) == [(0, 20), (20, 40)]


@ANY_TIME
@given(
    some.lists(
        some.tuples(some.lists(some.integers(0, 60), min_size=1, max_size=8, unique=True), OFFSETS),
        min_size=1,
        max_size=3,
    ),
    RANGES,
    some.data(),
)
def test_after_copying_the_archive_has_every_offset_of_a_sealed_segment(replicas, ranges, data):
    sources = [
        source(sorted(bases), data.draw(some.integers(0, 70)), log_start=data.draw(some.integers(0, 30)))
        for bases, _ in replicas
    ]
    archived = [(base, base + size) for base, size in ranges]
    copies = decide_copies(sources, archived)
    after = [*archived, *((one.base_offset, one.end_offset) for one in copies)]
    for one in sources:
        for base, end in sealed(one):
            assert covers(after, max(base, one.log_start), end)
            assert end <= one.high_watermark
    assert decide_copies(sources, after) == []
    for one in copies:
        assert not covers(archived, one.start_offset, one.end_offset), "it was in the archive"


def test_what_was_deleted_before_it_was_archived_is_found():
    assert lost(100, [source([150, 200], 200)], 100) == [(100, 150)]
    assert lost(100, [source([150, 200], 200), source([90, 120], 200)], 100) == []
    assert lost(None, [source([150, 200], 200)], 0) == []
    assert lost(100, [source([150, 200], 200)], 200) == [], "the archive shows the gap itself"
