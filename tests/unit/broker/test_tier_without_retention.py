"""With an empty cleanup.policy (KIP-1190) what is copied is deleted here, and kept in remote storage."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.storage.topic_config import LogConfig
from nilometer.wire.records import BatchBuilder
from support.tier.led_log import LedLog


@pytest.mark.parametrize(("policy", "log_start"), [("", 0), ("delete", 2)])
def test_only_a_policy_that_deletes_removes_what_is_in_remote_storage(policy: str, log_start: int) -> None:
    texts = {"cleanup.policy": policy, "remote.storage.enable": "true", "retention.ms": "5"}
    led = LedLog(LogConfig.parse(texts, {"remote.log.storage.system.enable": True}))
    for sequence in range(2):
        builder = BatchBuilder()
        builder.append(1, None, b"v")
        led.append(bytes(builder.build(0, 7, 0, sequence)))
        led.log.roll_now(1)

    async def main() -> None:
        await led.tier()
        await led.tier()
        assert (led.log.local_start_offset, led.log.log_start_offset) == (2, log_start)
        last = led.remote.manifest
        assert last is not None
        assert bool(last.segments) == (log_start == 0)

    asyncio.run(main())
