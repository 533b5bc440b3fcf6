"""The transitions of a log's state reject what would break an invariant, and change nothing then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from log_model import build_batch

from nilometer.invariants import InvariantBroken
from nilometer.storage.log import Log
from nilometer.storage.log_state import LogState
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from support.logs.memory_disk import MemoryDisk

END = 4


@pytest.fixture
def state() -> LogState:
    options = OpenOptions(clean=True, wall_ms=1, is_new=True)
    log = Log.open(SegmentFiles.on(MemoryDisk()), "/data/t-0", TopicPartition("t", 0), LogConfig(), options)
    for number in range(END):
        log.append_as_leader(build_batch((b"%d" % number,)), leader_epoch=0, wall_ms=1)
    return log


@pytest.mark.parametrize(
    ("transition", "sentence"),
    [
        (lambda log: log.move_log_start(END + 1), "log start offset <= log end offset"),
        (lambda log: log.extend_to(END - 1, 1), "an append does not shorten the log"),
        (lambda log: log.shorten_to(END + 1), "a truncation does not extend the log"),
        (
            lambda log: log.advance_flushed(END + 1, name_changes=9, epoch_writes=9, wall_ms=1),
            "flushed offset <= log end offset",
        ),
        (lambda log: log.advance_cleaned(END + 1), "cleaned offset <= log end offset"),
        (lambda log: log.roll(1, 0), "a new segment starts above the one before it"),
        (lambda log: log.end_replacement(), "a replacement of segments has begun"),
    ],
)
def test_a_transition_that_breaks_an_invariant_is_rejected(
    state: LogState, transition: Callable[[LogState], object], sentence: str
) -> None:
    names = [name for name in LogState.__slots__ if not name.startswith("_")]
    before = {name: getattr(state, name) for name in names}
    with pytest.raises(InvariantBroken) as caught:
        transition(state)
    assert caught.value.sentence == sentence
    assert {name: getattr(state, name) for name in names} == before


def test_a_second_replacement_of_segments_waits_for_the_first(state: LogState) -> None:
    state.begin_replacement()
    with pytest.raises(InvariantBroken, match="one replacement of segments at a time: 1"):
        state.begin_replacement()
