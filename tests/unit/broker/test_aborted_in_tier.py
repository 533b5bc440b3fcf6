"""The aborted transactions of records in remote storage, while what ends them is copied and deleted here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nilometer.storage.log import Log
from nilometer.storage.names import TXN_INDEX_SUFFIX
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.tier.format import DamagedObject
from nilometer.wire.records import BatchBuilder, ControlType, EndTxnMarker, build_end_txn_marker
from support.tier.led_log import NOW_MS, LedLog

PRODUCER = 9
ABORTED = AbortedTxn(PRODUCER, 0, 1, 2)


class Led(LedLog):
    """Its first segment begins a transaction, whose abort is in the active one."""

    def __init__(self) -> None:
        super().__init__()
        builder = BatchBuilder()
        builder.append(1, None, b"v")
        self.append(bytes(builder.build(0, PRODUCER, 0, 0, transactional=True)))
        self.log.roll_now(1)
        marker = EndTxnMarker(ControlType.ABORT, 0, 1)
        self.append(build_end_txn_marker(marker, producer_id=PRODUCER, producer_epoch=0))

    async def aborted(self) -> list[AbortedTxn]:
        return (await self.reads.read(0, 10_000, read_committed=True))[1]


def test_an_abort_that_is_here_is_looked_up_by_the_owner_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off the event loop it could fill the segment's list while the owner appends another abort to it."""
    led = Led()
    look_up = Log.aborted_transactions

    def by_the_owner(log: Log, *args: Any) -> list[AbortedTxn]:
        assert not led.disk.is_beside
        return look_up(log, *args)

    monkeypatch.setattr(Log, "aborted_transactions", by_the_owner)

    async def main() -> None:
        await led.tier()
        assert led.log.local_start_offset == 1
        assert await led.aborted() == [ABORTED]

    asyncio.run(main())


def test_an_abort_is_found_that_is_copied_and_deleted_here_meanwhile() -> None:
    led = Led()

    async def tier_the_rest() -> None:
        led.log.roll_now(1)
        await led.tier()
        assert led.log.local_start_offset == 2

    async def main() -> None:
        await led.tier()
        led.store.on_get = tier_the_rest
        assert await led.aborted() == [ABORTED]

    asyncio.run(main())


@pytest.mark.parametrize("damage", ["short", "gone", "a bit"])
def test_a_damaged_index_of_aborted_transactions_harms_no_copy(damage: str) -> None:
    led = Led()
    led.log.roll_now(1)
    path = next(iter(led.log.segments.from_offset(1))).path(TXN_INDEX_SUFFIX)
    if damage == "short":
        led.disk.open(path).truncate(led.disk.file_size(path) - 1)
    elif damage == "gone":
        led.disk.remove(path)
    else:
        led.disk.flip_bit(path, 17)

    async def main() -> None:
        await led.tier()
        assert led.log.local_start_offset == 2
        assert await led.aborted() == [ABORTED]

    asyncio.run(main())


def test_aborts_that_nothing_can_read_are_not_copied() -> None:
    """The records would be lost to all readers once they are deleted here. Without the snapshot it is unknown
    which transactions are open where the segment begins."""
    led = Led()
    led.log.roll_now(1)
    path = next(iter(led.log.segments.from_offset(1))).path(TXN_INDEX_SUFFIX)
    led.disk.open(path).truncate(led.disk.file_size(path) - 1)
    led.disk.remove(led.log.producers.snapshot_path(1))

    async def main() -> None:
        with pytest.raises(DamagedObject, match=r"1\.txnindex: length 33 is not a multiple.* offset 1 "):
            await led.tier()
        while led.log.delete_old_segments(led.log.log_end_offset, NOW_MS):
            pass
        assert led.log.local_start_offset == 1

    asyncio.run(main())


def test_an_index_of_aborted_transactions_that_cannot_be_made_is_copied() -> None:
    led = Led()
    led.log.roll_now(1)
    led.disk.remove(led.log.producers.snapshot_path(1))

    async def main() -> None:
        await led.tier()
        assert await led.aborted() == [ABORTED]

    asyncio.run(main())
