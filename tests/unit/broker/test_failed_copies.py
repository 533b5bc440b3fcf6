"""A copy of a segment to the tier that fails leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from types import AsyncGeneratorType
from typing import cast

import pytest

from nilometer.runtime.object_store import ObjectStoreError
from support.tier.former_partition import batch
from support.tier.led_log import LedLog, Store


class FailingStore(Store):
    """Fails in the middle of an upload, and keeps what it was given, as the error's traceback does."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[AsyncGenerator[bytes, None]] = []

    async def upload(self, name: str, parts: AsyncIterator[bytes]) -> None:
        self.given.append(cast(AsyncGenerator[bytes, None], parts))
        await anext(parts)
        raise ObjectStoreError("no answer")


def test_a_copy_that_fails_closes_its_segment() -> None:
    store = FailingStore()
    led = LedLog(store=store)
    led.append(batch(0, 4))
    led.log.roll_now(1)

    async def main() -> None:
        with pytest.raises(ObjectStoreError, match="no answer"):
            await led.remote.run_round()
        (given,) = store.given
        assert isinstance(given, AsyncGeneratorType)
        assert given.ag_frame is None, "it has ended, and has closed its file"

    asyncio.run(main())
