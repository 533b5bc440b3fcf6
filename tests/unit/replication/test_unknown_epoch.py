"""A reader that has read in a leader epoch which a replica's log does not have yet breaks no invariant."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.replication.epochs import NO_DIVERGENCE, diverging_epoch


def test_a_log_that_ends_before_the_epoch_cannot_tell() -> None:
    log = cast(
        Any, SimpleNamespace(end_offset_for_epoch=lambda _epoch: (NO_LEADER_EPOCH, -1), latest_epoch=0)
    )
    found = diverging_epoch(log, 5, 1)
    assert found is not NO_DIVERGENCE
    assert found.epoch == NO_LEADER_EPOCH
