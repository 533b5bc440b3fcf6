"""What operators are told of a tier: what is there, what is not yet, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from msgspec import structs

from nilometer.storage.topic_config import LogConfig
from nilometer.tier.format import RemoteSegment
from nilometer.wire.own_apis import TierState
from nilometer.wire.records import BatchBuilder
from support.tier.led_log import NOW_MS, LedLog


def led_log() -> LedLog:
    return LedLog(LogConfig(retention_ms=-1, local_retention_ms=0, remote_storage_enable=True))


def append(led: LedLog, timestamp: int, *, rolls: bool) -> int:
    builder = BatchBuilder()
    builder.append(timestamp, None, b"v")
    records = bytes(builder.build(0, -1, -1, -1))
    led.append(records)
    if rolls:
        led.log.roll_now(1)
    return len(records)


def test_nothing_is_said_of_a_tier_that_was_not_looked_at() -> None:
    assert led_log().remote.state() == TierState(end_offset=-1)


def test_all_is_missing_until_the_first_segment_is_copied() -> None:
    led = led_log()
    size = append(led, NOW_MS - 5_000, rolls=False)
    asyncio.run(led.tier())
    assert led.remote.state() == TierState(
        end_offset=0, oldest_segment=0, missing_records=1, missing_bytes=size
    )


def test_what_is_not_there_is_counted_with_the_segments_that_wait() -> None:
    led = led_log()
    size = append(led, NOW_MS - 9_000, rolls=True)

    async def main() -> None:
        await led.tier()
        assert led.remote.state() == TierState(end_offset=1, size_bytes=size, newest_ms=NOW_MS - 9_000)
        append(led, NOW_MS - 3_000, rolls=True)
        append(led, NOW_MS, rolls=False)
        led.high_watermark = 2
        assert led.remote.state() == TierState(
            end_offset=1, size_bytes=size, newest_ms=NOW_MS - 9_000, lag_segments=1, lag_bytes=size,
            oldest_segment=1, missing_records=1, missing_bytes=2 * size, missing_ms=9_000,
        )  # fmt: skip

    asyncio.run(main())


def test_operators_are_told_without_a_look_at_each_segment() -> None:
    """Of 100,000 that holds the event loop for more than ten milliseconds."""
    led = led_log()
    size = append(led, NOW_MS - 9_000, rolls=True)
    asyncio.run(led.tier())
    last = led.remote.manifest
    assert last is not None

    class Untouched(tuple[RemoteSegment, ...]):
        def __iter__(self) -> Iterator[RemoteSegment]:
            raise AssertionError("each segment is looked at")

    led.remote._summed = led.remote._chain._last = structs.replace(last, segments=Untouched(last.segments))
    assert led.remote.state() == TierState(end_offset=1, size_bytes=size, newest_ms=NOW_MS - 9_000)
    assert led.remote.remote_bytes == size


def test_an_error_is_told_with_the_time_since_the_first_one() -> None:
    led = led_log()
    led.remote.fail("the bucket is gone")
    led.now_ms += 4_000
    led.remote.fail("it is still gone")
    assert led.remote.state() == TierState(end_offset=-1, error="it is still gone", failing_ms=4_000)
