"""A read in a gap with which the tier of a partition ends goes on in the log."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder
from support.tier.led_log import CONFIG, LedLog


@pytest.mark.parametrize("read_committed", [False, True])
def test_a_read_in_the_gap_gets_what_follows_in_the_log(read_committed: bool) -> None:
    led = LedLog(replace(CONFIG, segment_bytes=100))
    for offset in (0, 1, 9):  # the batch at 9 begins a segment, so the one before ends with a gap
        builder = BatchBuilder()
        builder.append(1, None, b"v")
        led.log.append_as_follower(bytes(builder.build(offset, partition_leader_epoch=0)), wall_ms=1)

    async def main() -> None:
        await led.tier()
        assert led.log.local_start_offset == 9
        records, aborted = await led.reads.read(5, 10_000, read_committed=read_committed)
        assert [header.base_offset for _, header in batches(records)] == [9]
        assert aborted == []

    asyncio.run(main())
