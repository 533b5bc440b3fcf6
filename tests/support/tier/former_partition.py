"""A tiered partition that has had leaders of several epochs, in a virtual store."""

from __future__ import annotations

import asyncio

from nilometer.storage.topic_config import LogConfig
from nilometer.wire.records import BatchBuilder, ControlType, EndTxnMarker, build_end_txn_marker

from .led_log import NOW_MS, LedLog

CONFIG = LogConfig(retention_ms=-1, local_retention_ms=0, remote_storage_enable=True)


def batch(first: int, count: int, producer: int = -1, sequence: int = -1) -> bytes:
    builder = BatchBuilder()
    for number in range(first, first + count):
        builder.append(NOW_MS - 1_000 + number, b"%d" % number, b"value of %d" % number, [("h", b"x")])
    epoch = -1 if producer < 0 else 3
    return bytes(builder.build(0, producer, epoch, sequence, transactional=producer >= 0))


def end(producer: int, control_type: ControlType) -> bytes:
    marker = EndTxnMarker(control_type, 0, NOW_MS)
    return build_end_txn_marker(marker, producer_id=producer, producer_epoch=3)


def former(*, transactions: bool = False) -> LedLog:
    """A partition whose leaders had the epochs 0, 1 and 2, each with a segment or two in the store."""
    led = LedLog(CONFIG)
    for epoch in range(3):
        led.leader_epoch = epoch
        led.log.epochs.begin(epoch, led.log.log_end_offset)
        led.append(batch(led.log.log_end_offset, 5))
        led.append(batch(led.log.log_end_offset, 1))
        led.log.roll_now(1)
    if transactions:
        led.append(batch(18, 2, producer=7, sequence=0))
        led.append(end(7, ControlType.ABORT))  # 20
        led.append(batch(21, 2, producer=8, sequence=0))
        led.append(end(8, ControlType.COMMIT))  # 23
        led.append(batch(24, 2, producer=9, sequence=0))
        led.append(batch(26, 2, producer=10, sequence=0))
        led.log.roll_now(1)
        led.append(end(10, ControlType.ABORT))
        led.append(end(9, ControlType.COMMIT))  # in the active segment
    else:
        led.append(batch(18, 2))
    asyncio.run(led.tier())
    return led
