"""Logs with whatever Kafka's format allows in them: opened after a crash, searched by time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nilometer.runtime.system_disk import SystemDisk
from nilometer.steps import at_once
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from support.logs.generated_topics import generated_log


@pytest.mark.parametrize("seed", range(20))
def test_times_and_transactions_of_a_generated_log(tmp_path: Path, seed: int) -> None:
    """Replay one: pytest tests/unit/storage/test_generated_logs.py -k "generated_log[SEED]"."""
    made = generated_log(random.Random(seed))
    folder = tmp_path / "generated-0"
    folder.mkdir()
    made.write(folder)
    part = TopicPartition("generated", 0)
    options = OpenOptions(clean=False, wall_ms=1, cleaned_offset=made.start + 1)  # it has gaps
    log = Log.open(SegmentFiles.on(SystemDisk()), str(folder), part, LogConfig(), options)
    assert log.damages == ()
    assert (log.log_start_offset, log.log_end_offset) == (made.start, made.end)
    assert log.last_stable_offset(made.end) == made.last_stable
    known = {timestamp + more for _, timestamp in made.times for more in (0, 1)}
    for timestamp in sorted({0, *known}):
        if timestamp < 0:
            continue  # brokers take negative times for words, such as -1 for the end
        found = at_once(log.offset_for_timestamp(timestamp))
        expected = next((one for one in made.times if one[1] >= timestamp), None)
        assert (None if found is None else (found.offset, found.timestamp)) == expected, timestamp
    log.close(wall_ms=1)
