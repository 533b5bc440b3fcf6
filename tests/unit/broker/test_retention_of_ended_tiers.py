"""A topic that is not tiered gives up what is in remote storage only, and its broker says so."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from nilometer.broker.housekeeping import Housekeeping
from nilometer.broker.turns import Turns
from nilometer.runtime import Runtime
from support.tier.former_partition import CONFIG, former


class Part(SimpleNamespace):
    notified = 0

    def __str__(self) -> str:
        return "events-0"

    def notify_log_start(self) -> None:
        self.notified += 1

    def on_success(self, _what: str) -> None: ...


@pytest.mark.parametrize("is_tiered", [False, True])
def test_the_loss_is_logged_once(is_tiered: bool, caplog: pytest.LogCaptureFixture) -> None:
    led = former()
    led.log.configure(replace(CONFIG, remote_storage_enable=is_tiered))
    part: Any = Part(log=led.log, replica=led.replica)
    runtime: Any = SimpleNamespace(clock=Runtime.system().clock)
    given: tuple[Any, ...] = (None, runtime, [part], None, None, Turns(runtime.clock))
    housekeeping = Housekeeping(*given)

    async def two_rounds() -> None:
        await housekeeping.apply_retention()
        await housekeeping.apply_retention()

    with caplog.at_level(logging.WARNING):
        asyncio.run(two_rounds())
    if is_tiered:
        assert (led.log.log_start_offset, caplog.text, part.notified) == (0, "", 0)
    else:
        assert (led.log.log_start_offset, part.notified) == (18, 1)
        assert caplog.text.count("its records from offset 0 to 17, which remote storage alone has") == 1
