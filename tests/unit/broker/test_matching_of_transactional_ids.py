"""Heavy patterns of several clients take one thread, so that others are left for the disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from nilometer.broker.transactions.transaction_coordinator import TransactionCoordinator
from nilometer.client_patterns import compile_pattern


def test_one_match_runs_at_a_time() -> None:
    running, most = 0, 0

    async def offload(work: Callable[[], list[str]]) -> list[str]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return work()

    async def check() -> None:
        coordinator: Any = SimpleNamespace(
            _matching=asyncio.Lock(), _runtime=SimpleNamespace(disk=SimpleNamespace(offload=offload))
        )
        pattern, ids = compile_pattern("a.*"), ["ab", "b"]
        found = await asyncio.gather(
            *(TransactionCoordinator.matching(coordinator, pattern, ids) for _ in range(8))
        )
        assert found == [["ab"]] * 8

    asyncio.run(check())
    assert most == 1
