"""The folder store notices what others do without polling.

Its session timeout is an hour here, and its checks are a tenth of that apart.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nilometer.coordination.local.store import LocalStore
from nilometer.runtime import Runtime, folder_watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")

HOUR_MS = 3_600_000
LIMIT_S = 20.0
"""After which a change counts as missed."""

Scenario = Callable[[LocalStore, LocalStore], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    monkeypatch.setattr(folder_watch, "POLL_MS", HOUR_MS)

    async def within_the_limit(scenario: Scenario) -> None:
        runtime = Runtime.system()
        first, second = (
            LocalStore(runtime, str(tmp_path / "store"), session_timeout_ms=HOUR_MS) for _ in range(2)
        )
        await first.open()
        await second.open()
        try:
            async with asyncio.timeout(LIMIT_S):
                await scenario(first, second)
        finally:
            await second.close()
            await first.close()

    return lambda scenario: asyncio.run(within_the_limit(scenario))


async def becomes(store: LocalStore, condition: Callable[[], Awaitable[bool]]) -> None:
    seen = 0
    while not await condition():
        seen = await store.wait_changed(seen)


async def has_entries(store: LocalStore, first: int, count: int) -> bool:
    return len(await store.read(first, count)) == count


def test_an_entry_of_another_process_is_noticed(run: Callable[[Scenario], None]) -> None:
    async def scenario(first: LocalStore, second: LocalStore) -> None:
        reader = asyncio.create_task(becomes(second, lambda: has_entries(second, 0, 3)))
        for number in range(3):
            await asyncio.sleep(0.05)
            assert await first.append(number, b"entry")
        await reader

    run(scenario)


def test_a_session_that_begins_or_ends_is_noticed(run: Callable[[Scenario], None]) -> None:
    async def count(store: LocalStore) -> int:
        return len(await store.sessions())

    async def scenario(first: LocalStore, second: LocalStore) -> None:
        for expected in (1, 0):

            async def is_so(expected: int = expected) -> bool:
                return await count(second) == expected

            observer = asyncio.create_task(becomes(second, is_so))
            await asyncio.sleep(0.05)
            if expected:
                await first.register(1, b"broker 1")
            else:
                await first.close()
            await observer

    run(scenario)


def test_entries_behind_a_snapshot_are_noticed(run: Callable[[Scenario], None]) -> None:
    """The entries are in another folder then: the watch follows the reader there, who follows the seal."""

    async def scenario(first: LocalStore, second: LocalStore) -> None:
        position = 0
        for round_ in range(3):
            assert await first.append(position, b"before")
            await becomes(second, lambda at=position: has_entries(second, at, 1))
            assert await first.write_snapshot(position + 1, b"state")
            position += 1
            reader = asyncio.create_task(becomes(second, lambda at=position: has_entries(second, at, 2)))
            for number in (position, position + 1):
                await asyncio.sleep(0.05)
                assert await first.append(number, b"after %d" % round_)
            await reader
            position += 2

    run(scenario)


@pytest.mark.interpreted
def test_what_could_not_be_read_is_read_again_soon(
    run: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(first: LocalStore, second: LocalStore) -> None:
        sessions = second._sessions  # pyright: ignore[reportPrivateUsage]
        is_locked, failures = sessions._disk.is_locked, iter(range(3))  # pyright: ignore[reportPrivateUsage]

        def sometimes(path: str) -> bool:
            if next(failures, None) is not None:
                raise OSError(24, "Too many open files", path)
            return is_locked(path)

        observer = asyncio.create_task(becomes(second, lambda: _has_session(second)))
        await asyncio.sleep(0.05)
        with monkeypatch.context() as patch:
            patch.setattr(sessions._disk, "is_locked", sometimes)  # pyright: ignore[reportPrivateUsage]
            await first.register(1, b"broker 1")
            await observer

    run(scenario)


async def _has_session(store: LocalStore) -> bool:
    names = store._sessions._live  # pyright: ignore[reportPrivateUsage]
    return bool(names)
