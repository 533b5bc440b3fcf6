"""Positions and ranges: what a micro-batch reads follows from two positions alone."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.pipeline.source.positions import OffsetRange, Position, limited, ranges, split


def position(offsets: dict[int, int], topic: str = "t", topic_id: str = "id-1") -> Position:
    return Position({TopicPartition(topic, number): at for number, at in offsets.items()}, {topic: topic_id})


positions = st.dictionaries(st.integers(0, 12), st.integers(0, 1_000), min_size=1, max_size=8).map(position)


def test_json_has_sparks_form_and_always_the_same_order():
    one = Position(
        {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}, {"a": "x"}
    )
    other = Position(dict(reversed(list(one.offsets.items()))), {"a": "x"})
    text = '{"#topic-ids": {"a": "x"}, "a": {"0": 3}, "b": {"9": 2, "10": 1}}'
    assert json.dumps(one.to_json()) == json.dumps(other.to_json()) == text
    assert Position.from_json(json.loads(text)) == one


def test_ranges_are_what_lies_between_and_never_empty():
    found = ranges(position({0: 5, 1: 9}), position({0: 7, 1: 9}))
    assert found == [OffsetRange("t", "id-1", 0, 5, 7)]


def test_new_partitions_and_topics_created_again_are_read_from_their_start():
    assert ranges(position({0: 5}), position({0: 5, 1: 3})) == [OffsetRange("t", "id-1", 1, 0, 3)]
    again = position({0: 8}, topic_id="id-2")
    assert ranges(position({0: 5}), again) == [OffsetRange("t", "id-2", 0, 0, 8)]


@given(positions, positions, st.integers(1, 3_000))
def test_a_limit_holds_but_for_one_record_per_partition_and_starves_no_partition(start, end, rows_max):
    whole, cut = ranges(start, end), ranges(start, limited(start, end, rows_max))
    assert sum(map(len, cut)) <= max(rows_max, 0) + len(whole)
    assert [one.part for one in cut] == [one.part for one in whole]
    assert all(
        small.start == big.start and small.end <= big.end for small, big in zip(cut, whole, strict=True)
    )


@given(positions, positions, st.integers(1, 200))
def test_limited_steps_reach_the_end(start, end, rows_max):
    at, steps = start, 0
    while ranges(at, end):
        at = limited(at, end, rows_max)
        steps += 1
        assert steps < 10_000
    assert limited(at, end, rows_max).to_json() == end.to_json()


@given(positions, positions, st.none() | st.integers(1, 50), st.none() | st.integers(1, 300))
def test_a_split_covers_the_same_offsets_in_enough_pieces(start, end, minimum, records_max):
    whole = ranges(start, end)
    pieces = split(whole, minimum, records_max)
    if records_max is not None:
        assert all(len(piece) <= records_max for piece in pieces)
    assert all(len(piece) > 0 for piece in pieces)
    for one in whole:
        mine = [piece for piece in pieces if piece.part == one.part]
        assert mine[0].start == one.start
        assert mine[-1].end == one.end
        assert all(left.end == right.start for left, right in pairwise(mine))
    if minimum is not None:
        assert len(pieces) >= min(minimum, sum(map(len, whole)))


def test_without_a_minimum_there_is_one_piece_per_partition():
    whole = ranges(position({0: 0, 1: 0}), position({0: 100, 1: 1}))
    assert split(whole, None) == whole


@pytest.mark.parametrize(("known", "now"), [("", ""), ("a", ""), ("", "a"), ("a", "a")])
def test_topics_are_the_same_where_an_id_is_not_known(known, now):
    ids = [{"t": one} if one else {} for one in (known, now)]
    assert Position({}, ids[0]).is_same_topic("t", Position({}, ids[1]))
    assert not Position({}, {"t": "a"}).is_same_topic("t", Position({}, {"t": "b"}))
