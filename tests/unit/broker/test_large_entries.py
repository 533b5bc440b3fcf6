"""A large entry of the metadata log is checked once by each broker, and in a turn of its own."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from nilometer.broker.control import metadata_log
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.cluster.controller.controllership import controllership_entry
from nilometer.cluster.entries import encode_entry
from nilometer.coordination.local.store import LocalStore
from nilometer.identifiers import BrokerId, EntryNumber, Incarnation
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy


class Watched:
    """A broker's view of the log, and in which iteration of the event loop it does what."""

    def __init__(self, store: LocalStore) -> None:
        self.log = MetadataLog(store)
        self.iteration = 0
        self.done: list[tuple[str, int]] = []
        image: Any = self.log.image
        image.check_entry = self._noting("check", image.check_entry)
        image.apply_entry = self._noting("apply", image.apply_entry)

    def _noting(self, name: str, work: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            self.done.append((name, self.iteration))
            return work(*arguments)

        return noted

    async def catch_up(self) -> None:
        catching_up = asyncio.ensure_future(self.log.catch_up())
        while not catching_up.done():
            self.iteration += 1
            await asyncio.sleep(0)
        catching_up.result()

    @property
    def works(self) -> list[str]:
        return [name for name, _ in self.done]


@pytest.mark.parametrize(("limit", "turns"), [(0, 2), (10**6, 1)], ids=["large", "small"])
async def test_an_entry_is_checked_once_and_a_large_one_in_a_turn_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, turns: int
) -> None:
    monkeypatch.setattr(metadata_log, "LARGE_ENTRY_BYTES", limit)
    store = LocalStore(Runtime.system(), str(tmp_path))
    await store.open()
    try:
        controller, other = Watched(store), Watched(store)
        chance = SeededEntropy(random.Random(1))
        entry = controllership_entry(controller.log.image, BrokerId(1), Incarnation("i"), chance)
        data = encode_entry(entry)
        assert await controller.log.check(0, entry, data)
        assert await store.append(0, data) is True
        for broker in (controller, other):
            await broker.catch_up()
            assert broker.works == ["check", "apply"]
            assert broker.log.image.number == EntryNumber(0)
        (_, checked), (_, applied) = other.done
        assert (checked < applied) == (turns == 2)
    finally:
        await store.close()


async def test_another_entry_that_came_first_is_checked(tmp_path: Path) -> None:
    store = LocalStore(Runtime.system(), str(tmp_path))
    await store.open()
    try:
        broker, chance = Watched(store), SeededEntropy(random.Random(1))
        mine, others = (
            controllership_entry(broker.log.image, BrokerId(number), Incarnation(f"{number}"), chance)
            for number in (1, 2)
        )
        assert await broker.log.check(0, mine, encode_entry(mine))
        assert await store.append(0, encode_entry(others)) is True
        await broker.catch_up()
        assert broker.works == ["check", "check", "apply"]
    finally:
        await store.close()
