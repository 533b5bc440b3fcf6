"""What retention removes from remote storage: only what no reader is told of any more."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from nilometer.runtime.object_store import ObjectStoreError
from nilometer.storage.topic_config import LogConfig
from nilometer.tier.chain import MANIFESTS_KEPT, ManifestsGone
from nilometer.wire.records import BatchBuilder
from support.tier.led_log import NOW_MS, LedLog


def led_log(timestamps: list[int]) -> LedLog:
    """Each record is a segment of its own; they are kept for 1,000 ms."""
    led = LedLog(LogConfig(retention_ms=1_000, local_retention_ms=0, remote_storage_enable=True))
    for timestamp in timestamps:
        append_segment(led, timestamp)
    return led


def offsets(led: LedLog) -> list[int]:
    last = led.remote.manifest
    assert last is not None
    return [one.base_offset for one in last.segments]


def test_a_low_high_watermark_keeps_what_it_keeps_the_log_start_from() -> None:
    led = led_log([NOW_MS, NOW_MS, NOW_MS])

    async def main() -> None:
        await led.tier()
        led.high_watermark, led.now_ms = 1, NOW_MS + 5_000
        await led.tier()
        assert (led.log.log_start_offset, offsets(led)) == (1, [1, 2])
        led.high_watermark = None
        await led.tier()
        assert (led.log.log_start_offset, offsets(led)) == (3, [])

    asyncio.run(main())


def test_what_expires_while_the_log_start_moves_goes_in_the_next_round() -> None:
    led = led_log([NOW_MS, NOW_MS + 500])

    class SlowListener(LedLog):
        def notify_log_start(self) -> None:
            self.now_ms = NOW_MS + 1_600

    async def main() -> None:
        await led.tier()
        led.now_ms = NOW_MS + 1_100
        led.__class__ = SlowListener
        await led.tier()
        assert (led.log.log_start_offset, offsets(led)) == (1, [1])
        await led.tier()
        assert (led.log.log_start_offset, offsets(led)) == (2, [])

    asyncio.run(main())


def test_a_log_that_is_tiered_again_deletes_nothing_because_of_what_was_there_before() -> None:
    led = led_log([NOW_MS])
    led.log.note_tiered(1)
    off, on = LogConfig(retention_ms=1_000), LogConfig(local_retention_ms=0, remote_storage_enable=True)
    led.log.configure(off)
    led.log.configure(on)
    assert led.log.tiered_offset == 0
    assert not led.log.delete_old_segments(led.log.log_end_offset, NOW_MS + 500)


def test_a_manifest_that_a_late_request_creates_again_is_removed() -> None:
    led = led_log([NOW_MS])
    late = dict[str, bytes]()

    async def fail(name: str, data: bytes) -> bool:
        late[name] = data
        raise ObjectStoreError("no answer")

    async def main() -> None:
        await led.tier()
        led.now_ms += 2_000
        await led.tier()  # what an earlier leader may have left is removed
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(led.store, "create", fail)
            led.now_ms += 2_000
            with pytest.raises(ObjectStoreError):
                await led.tier()
        for _ in range(MANIFESTS_KEPT + 2):
            builder = BatchBuilder()
            builder.append(led.now_ms, None, b"v")
            led.append(bytes(builder.build(0, -1, -1, -1)))
            led.log.roll_now(1)
            await led.tier()
        ((name, data),) = late.items()
        assert await led.store.create(name, data)
        led.now_ms += 2
        await led.tier()
        assert name not in led.store.bucket.objects

    asyncio.run(main())


async def test_a_late_manifest_is_removed_also_if_none_was_written_since_its_number_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last manifest does not say so yet, and is the last one for as long as nothing is appended."""
    led = LedLog(LogConfig(retention_ms=-1, local_retention_ms=0, remote_storage_enable=True))
    late = list[tuple[str, bytes]]()

    async def fail(name: str, data: bytes) -> bool:
        late.append((name, data))
        raise ObjectStoreError("no answer")

    append_segment(led, NOW_MS)
    await led.tier()
    led.now_ms += 2
    await led.tier()  # what an earlier leader may have left is removed
    append_segment(led, NOW_MS)
    with monkeypatch.context() as patch:
        patch.setattr(led.store, "create", fail)
        with pytest.raises(ObjectStoreError):
            await led.tier()
    for _ in range(MANIFESTS_KEPT + 1):
        append_segment(led, NOW_MS)
        await led.tier()
    ((name, data),) = late
    assert await led.store.create(name, data)
    led.now_ms += 2
    await led.tier()
    assert name not in led.store.bucket.objects


async def test_what_cannot_be_copied_keeps_nothing_from_being_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that is full has room again only for that."""

    async def full(name: str, parts: object) -> None:
        raise ObjectStoreError("no space left")

    led = led_log([NOW_MS] * 4)
    await led.tier()
    led.log.advance_log_start_offset(2, led.log.log_end_offset)
    await led.tier()
    assert (offsets(led), len(dropped(led))) == ([2, 3], 4)
    append_segment(led, NOW_MS)
    monkeypatch.setattr(led.store, "upload", full)
    led.now_ms += 1_001
    with pytest.raises(ObjectStoreError, match="no space left"):
        await led.remote.run_round()
    assert (offsets(led), dropped_in_store(led)) == ([], 4)
    led.now_ms += 10
    with pytest.raises(ObjectStoreError, match="no space left"):
        await led.remote.run_round()
    assert (dropped(led), dropped_in_store(led)) == ([], 0)


async def test_what_cannot_be_removed_keeps_nothing_from_being_copied_and_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused(name: str) -> None:
        raise ObjectStoreError("objects are locked")

    led = led_log([NOW_MS] * 2)
    await led.tier()
    led.log.advance_log_start_offset(1, led.log.log_end_offset)
    await led.tier()
    append_segment(led, NOW_MS + 1_000)
    monkeypatch.setattr(led.store, "remove", refused)
    led.now_ms += 1_001
    with pytest.raises(ObjectStoreError, match="objects are locked"):
        await led.remote.run_round()
    assert offsets(led) == [2]


def append_segment(led: LedLog, timestamp: int) -> None:
    builder = BatchBuilder()
    builder.append(timestamp, None, b"v")
    led.append(bytes(builder.build(0, -1, -1, -1)))
    led.log.roll_now(1)


def dropped(led: LedLog) -> list[str]:
    assert led.remote.manifest is not None
    return [one.name for one in led.remote.manifest.dropped]


def dropped_in_store(led: LedLog) -> int:
    return sum(led.remote.folder + name in led.store.bucket.objects for name in dropped(led))


async def test_what_was_dropped_while_the_clock_was_ahead_is_removed_after_it_is_put_right() -> None:
    """A grace period later, since then nothing tells how long ago it was dropped."""
    led = led_log([NOW_MS] * 2)
    led.remote._parts = structs.replace(led.remote._parts, grace_ms=1_000)
    await led.tier()
    led.now_ms += 10_000_000
    led.log.advance_log_start_offset(1, led.log.log_end_offset)
    await led.remote.run_round()
    assert dropped_in_store(led) == 4
    led.now_ms = NOW_MS
    await led.remote.run_round()
    led.now_ms += 999
    await led.remote.run_round()
    assert dropped_in_store(led) == 4
    led.now_ms += 1
    await led.remote.run_round()
    assert dropped(led) == []


@pytest.mark.parametrize("is_answered", [True, False], ids=["slow", "no-answer"])
async def test_the_grace_period_begins_when_a_late_manifest_appears(
    is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine slept, or the store was slow: until then readers were told that the objects are there."""
    led = led_log([NOW_MS, NOW_MS + 10_000])
    led.remote._parts = structs.replace(led.remote._parts, grace_ms=1_000)
    await led.tier()
    create, of_the_drop = led.store.create, list[tuple[str, bytes]]()

    async def late(name: str, data: bytes) -> bool:
        if not is_answered:
            of_the_drop.append((name, data))
            raise ObjectStoreError("no answer")
        led.now_ms += 800
        return await create(name, data)

    led.log.advance_log_start_offset(1, led.log.log_end_offset)
    with monkeypatch.context() as patch:
        patch.setattr(led.store, "create", late)
        if is_answered:
            await led.remote.run_round()
        else:
            with pytest.raises(ObjectStoreError, match="no answer"):
                await led.remote.run_round()
    for name, data in of_the_drop:  # the request takes effect long after it was given up
        led.now_ms += 800
        assert await create(name, data)
    await led.remote.run_round()
    assert dropped_in_store(led) == 2
    led.now_ms += 999
    await led.remote.run_round()
    assert dropped_in_store(led) == 2
    led.now_ms += 1
    await led.remote.run_round()
    assert dropped(led) == []


async def test_nothing_more_is_done_in_a_chain_that_is_being_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(_epoch: int) -> None:
        raise ManifestsGone("all of them were removed")

    async def never(_epoch: int) -> None:
        raise AssertionError("the topic was deleted")

    led = led_log([NOW_MS])
    monkeypatch.setattr(led.remote, "_copy_next", gone)
    monkeypatch.setattr(led.remote, "_expire", never)
    with pytest.raises(ManifestsGone):
        await led.remote.run_round()
