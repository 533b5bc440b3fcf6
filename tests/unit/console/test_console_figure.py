"""The figure of a partition: places, epochs, and the magnified end of long logs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nilometer.console.views.partition import EPOCH_COLOURS, Figure, ReplicaOffsets, figures


def replica(
    broker: int, start: int | None, end: int | None, high: int | None, **more: object
) -> ReplicaOffsets:
    values = {"epoch_chain": ((0, start or 0),), "last_stable_offset": high, **more}
    return ReplicaOffsets(
        broker_id=broker, log_start_offset=start, log_end_offset=end, high_watermark=high, **values
    )


def test_the_three_replicas_of_the_scenario() -> None:
    """LEOs 5, 3 and 5, HW 3 (SPEC R-13): one record takes a fifth of the axis."""
    (found,) = figures([replica(1, 0, 5, 3), replica(2, 0, 3, 3), replica(3, 0, 5, 3)])
    assert (found.low, found.high, found.cells) == (0, 5, (20.0, 40.0, 60.0, 80.0))
    first, lagging, _ = found.tracks
    assert (first.log_x, first.log_width, first.high_watermark_x) == (0.0, 100.0, 60.0)
    assert (first.uncommitted_x, first.uncommitted_width) == (60.0, 40.0)
    assert (lagging.log_width, lagging.uncommitted_x) == (60.0, None)
    assert [tick.offset for tick in found.ticks] == [0, 1, 2, 3, 4, 5]


def test_the_end_of_a_long_log_is_magnified() -> None:
    whole, end = figures([replica(1, 0, 1_000_000, 999_990), replica(2, 0, 999_990, 999_990)])
    assert (whole.low, whole.high) == (0, 1_000_000)
    assert end.high == 1_000_000
    assert 999_900 < end.low <= 999_982
    assert end.tracks[1].end_x is not None
    assert end.tracks[1].end_x < 60
    assert whole.tracks[1].log_width > 99.9


def test_a_replica_far_behind_does_not_hide_the_others() -> None:
    _, end = figures(
        [replica(1, 0, 1_000_000, 999_998), replica(2, 0, 999_998, 999_998), replica(3, 0, 17, 17)]
    )
    assert end.low > 999_900
    assert (end.tracks[2].log_x, end.tracks[2].end_x) == (None, None)


def test_epochs_are_runs_with_one_colour_in_every_track() -> None:
    chain = ((0, 0), (2, 4), (3, 6), (5, 6))
    (found,) = figures([replica(1, 2, 10, 10, epoch_chain=chain), replica(2, 2, 5, 5, epoch_chain=chain[:2])])
    runs = found.tracks[0].runs
    assert [(run.epoch, run.start, run.end) for run in runs] == [(0, 2, 4), (2, 4, 6), (5, 6, 10)]
    assert [(run.epoch, run.end) for run in found.tracks[1].runs] == [(0, 4), (2, 5)]
    assert found.tracks[1].runs[1].colour == runs[1].colour != runs[0].colour


def test_a_replica_that_is_away_has_only_what_the_leader_knows() -> None:
    (found,) = figures([replica(1, 0, 8, 6), replica(2, None, None, None, remote_end_offset=6)])
    away = found.tracks[1]
    assert (away.log_x, away.runs, away.remote_x) == (None, (), 75.0)
    assert figures([replica(1, None, None, None)]) == ()


def test_an_empty_log_has_an_axis() -> None:
    (found,) = figures([replica(1, 7, 7, 7), replica(2, 7, 7, 7)])
    assert (found.low, found.high, found.tracks[0].log_x, found.tracks[0].end_x) == (7, 8, None, 0.0)


offsets = st.integers(0, 2**40)


@st.composite
def replicas(draw: st.DrawFn) -> ReplicaOffsets:
    start = draw(offsets)
    end = start + draw(offsets)
    high = draw(st.integers(start, end))
    starts = sorted(draw(st.lists(st.integers(0, end), max_size=8)))
    return ReplicaOffsets(
        broker_id=draw(st.integers(1, 9)),
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=high,
        last_stable_offset=draw(st.integers(start, high)),
        remote_end_offset=draw(st.none() | offsets),
        epoch_chain=tuple(enumerate(starts)),
    )


@given(st.lists(replicas(), min_size=1, max_size=5))
def test_every_place_is_on_the_figure(given_replicas: list[ReplicaOffsets]) -> None:
    for found in figures(given_replicas):
        assert found.low < found.high
        assert len(found.ticks) <= 8
        for x, width in _bars(found):
            assert 0 <= x <= 100
            assert 0 <= width <= 100.001 - x


def _bars(found: Figure) -> list[tuple[float, float]]:
    bars: list[tuple[float, float]] = [(tick.x, 0) for tick in found.ticks]
    for track in found.tracks:
        bars += [(run.x, run.width) for run in track.runs]
        assert all(0 <= run.colour < EPOCH_COLOURS for run in track.runs)
        marks = (track.high_watermark_x, track.last_stable_x, track.end_x, track.remote_x)
        bars += [(mark, 0) for mark in marks if mark is not None]
        if track.log_x is not None:
            bars.append((track.log_x, track.log_width))
        if track.uncommitted_x is not None:
            bars.append((track.uncommitted_x, track.uncommitted_width))
    return bars
