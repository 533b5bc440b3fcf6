"""Where a consumer stands, and what an answer about an older position may do to it."""

from __future__ import annotations

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.positions import Positions

PARTITION = TopicPartition("t", 0)


def at(offset: int, epoch: int) -> Positions:
    positions = Positions(default_reset=None)
    positions.assign([PARTITION])
    positions.seek(PARTITION, offset, epoch)
    positions.on_leader_epoch(PARTITION, epoch)
    return positions


def test_a_new_leader_epoch_gives_up_the_fetch_that_is_on_its_way() -> None:
    """Its answer would move the position, and the end of the old epoch would be held against the new one."""
    positions = at(500, epoch=0)
    positions.on_validated(PARTITION, positions.of(PARTITION).generation, 0, 0, 504)
    fetching = positions.of(PARTITION).generation
    assert positions.on_leader_epoch(PARTITION, 8)
    validating = positions.of(PARTITION).generation
    assert validating != fetching
    assert positions.on_leader_epoch(PARTITION, 8)
    assert positions.of(PARTITION).generation == validating, "the question that is on its way stays good"
    positions.on_validated(PARTITION, validating, 8, 0, 504)
    assert not positions.on_leader_epoch(PARTITION, 8)
    assert positions.of(PARTITION).offset == 500


def test_an_epoch_that_follows_during_a_validation_is_asked_about_again() -> None:
    positions = at(500, epoch=0)
    assert positions.on_leader_epoch(PARTITION, 8)
    first = positions.of(PARTITION).generation
    assert positions.on_leader_epoch(PARTITION, 9)
    positions.on_validated(PARTITION, first, 8, 0, 504)
    assert positions.on_leader_epoch(PARTITION, 9), "the answer was for leader epoch 8"
