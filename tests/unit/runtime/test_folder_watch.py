"""A watch returns for what has changed in its folders: at once and without polling where there is inotify.

The interval of polling is made so long that a test which needs it does not end. Both event loops are tested.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import struct
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from nilometer.runtime import folder_watch
from nilometer.runtime.folder_watch import NotifiedWatch, PollingWatch, open_watch

Scenario = Callable[[], Coroutine[Any, Any, None]]
Run = Callable[[Scenario], None]

NEVER_MS = 3_600_000
STILL_S = 0.1
"""How long a watch must keep waiting while nothing changes."""
LIMIT_S = 20.0
"""After which a wait counts as one that does not end."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has inotify")


@pytest.fixture(params=(asyncio.run, uvloop.run))
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: request.param(scenario())


@pytest.fixture
def never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_watch, "POLL_MS", NEVER_MS)


async def returns_after(watch: NotifiedWatch | PollingWatch, change: Callable[[], object]) -> None:
    """The watch waits, and returns after the change."""
    await asyncio.sleep(STILL_S)
    await watch.wait(0)  # of changes before
    waiting = asyncio.ensure_future(watch.wait(NEVER_MS))
    await asyncio.sleep(STILL_S)
    assert not waiting.done()
    change()
    async with asyncio.timeout(LIMIT_S):
        await waiting


@pytest.mark.usefixtures("never_polls")
def test_it_returns_for_each_change_of_a_name(run: Run, tmp_path: Path) -> None:
    inside, outside = tmp_path / "watched", tmp_path / "other"
    inside.mkdir()
    outside.mkdir()
    (outside / "source").write_bytes(b"")

    async def scenario() -> None:
        watch = NotifiedWatch([str(inside)])
        changes: list[Callable[[], object]] = [
            (inside / "new").touch,
            lambda: os.link(outside / "source", inside / "linked"),
            lambda: os.rename(outside / "source", inside / "moved"),
            lambda: os.rename(inside / "moved", outside / "away"),
            lambda: os.unlink(inside / "linked"),
            (inside / "folder").mkdir,
        ]
        for change in changes:
            await returns_after(watch, change)
        watch.close()

    run(scenario)


@pytest.mark.usefixtures("never_polls")
def test_a_change_between_two_waits_is_not_missed(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        watch = NotifiedWatch([str(tmp_path)])
        async with asyncio.timeout(LIMIT_S):
            (tmp_path / "before").touch()
            await watch.wait(NEVER_MS)
            (tmp_path / "between").touch()
            await watch.wait(NEVER_MS)
        watch.close()

    run(scenario)


@pytest.mark.usefixtures("never_polls")
def test_a_heartbeat_wakes_no_other_broker(run: Run, tmp_path: Path) -> None:
    with open(tmp_path / "heartbeat", "wb", buffering=0) as heartbeat:

        async def scenario() -> None:
            watch = NotifiedWatch([str(tmp_path)])
            waiting = asyncio.ensure_future(watch.wait(NEVER_MS))
            for _ in range(3):
                heartbeat.write(b"1")
                await asyncio.sleep(STILL_S / 3)
            assert not waiting.done()
            (tmp_path / "name").touch()
            async with asyncio.timeout(LIMIT_S):
                await waiting
            watch.close()

        run(scenario)


def test_a_folder_that_does_not_exist_is_watched_once_it_does(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "late"

    async def scenario() -> None:
        watch = NotifiedWatch([str(tmp_path), str(folder)])
        await watch.wait(NEVER_MS)  # polled
        folder.mkdir()
        await watch.wait(NEVER_MS)
        await returns_after(watch, (folder / "name").touch)
        watch.close()

    run(scenario)


def test_a_folder_that_is_replaced_is_watched_again(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()

    async def scenario() -> None:
        watch = NotifiedWatch([str(folder)])
        for replace in (lambda: folder.rename(tmp_path / "old"), folder.rmdir):
            await returns_after(watch, replace)
            folder.mkdir()
            await watch.wait(NEVER_MS)
        await returns_after(watch, (folder / "name").touch)
        watch.close()

    run(scenario)


def test_it_returns_after_the_timeout_and_not_before(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        watch = NotifiedWatch([str(tmp_path)])
        loop = asyncio.get_running_loop()
        began = loop.time()
        await watch.wait(50)
        assert loop.time() - began >= 0.045
        watch.close()
        watch.close()

    run(scenario)


@pytest.mark.usefixtures("never_polls")
def test_it_is_woken_also_before_it_waits(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        watch = NotifiedWatch([str(tmp_path)])
        await returns_after(watch, watch.wake)
        watch.wake()
        async with asyncio.timeout(LIMIT_S):
            await watch.wait(NEVER_MS)
        watch.close()

    run(scenario)


@pytest.mark.usefixtures("never_polls")
def test_a_burst_of_changes_is_told_of_in_few_returns(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watch, "SPACING_MS", 1000)

    async def scenario() -> None:
        watch = NotifiedWatch([str(tmp_path)])
        (tmp_path / "first").touch()
        await watch.wait(NEVER_MS)
        (tmp_path / "second").touch()
        waiting = asyncio.ensure_future(watch.wait(NEVER_MS))
        await asyncio.sleep(STILL_S)
        assert not waiting.done()
        (tmp_path / "third").touch()
        async with asyncio.timeout(LIMIT_S):
            await waiting
        watch.close()

    run(scenario)


@pytest.mark.usefixtures("never_polls")
@pytest.mark.parametrize("how", ["a folder above is renamed", "a link is changed"])
def test_another_folder_with_the_same_path_is_watched_after_the_timeout(
    how: str, run: Run, tmp_path: Path
) -> None:
    above, folder = tmp_path / "above", tmp_path / "above" / "store"
    folder.mkdir(parents=True)
    (tmp_path / "other").mkdir()
    if how == "a link is changed":
        folder.rmdir()
        folder.symlink_to(tmp_path / "other")

    async def scenario() -> None:
        watch = NotifiedWatch([str(folder)])
        await watch.wait(0)
        if how == "a link is changed":
            folder.unlink()
            (tmp_path / "third").mkdir()
            folder.symlink_to(tmp_path / "third")
        else:
            above.rename(tmp_path / "away")
            folder.mkdir(parents=True)
        await watch.wait(1)
        await returns_after(watch, (folder / "name").touch)
        watch.close()

    run(scenario)


@pytest.mark.usefixtures("never_polls")
def test_after_an_overflow_all_folders_are_looked_up_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may have been replaced by what the lost notifications were of."""
    above, folder, away = tmp_path / "above", tmp_path / "above" / "store", tmp_path / "away"
    folder.mkdir(parents=True)
    overflow = struct.pack("iIII", -1, 0x4000, 0, 0)

    async def scenario() -> None:
        watch = NotifiedWatch([str(folder)])
        above.rename(away)
        folder.mkdir(parents=True)
        read = os.read
        with monkeypatch.context() as patch:
            patch.setattr(folder_watch.os, "read", lambda *asked: read(*asked) + overflow)
            (away / "store" / "name").touch()
            async with asyncio.timeout(LIMIT_S):
                await watch.wait(NEVER_MS)
        async with asyncio.timeout(LIMIT_S):
            await watch.wait(NEVER_MS)  # the other folder is found
        await returns_after(watch, (folder / "name").touch)
        watch.close()

    run(scenario)


def test_a_watch_that_cannot_be_read_leaves_no_descriptor_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        def refused(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refused)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert isinstance(open_watch([str(tmp_path)], []), PollingWatch)
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())


@pytest.mark.parametrize("file_system", ["fuse.bindfs", "9p", "virtiofs"])
def test_file_systems_that_change_without_a_notification_are_polled(file_system: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        assert isinstance(open_watch([str(tmp_path)], ["ext4", file_system]), PollingWatch)
        watch = open_watch([str(tmp_path)], ["ext4"])
        assert isinstance(watch, NotifiedWatch)
        watch.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSYS])
def test_without_inotify_it_polls_and_says_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> int:
        raise OSError(number, os.strerror(number), "inotify_init1")

    monkeypatch.setattr(folder_watch, "_inotify_init", refused)
    with caplog.at_level(logging.INFO):
        watch = open_watch([str(tmp_path)], [])
    assert isinstance(watch, PollingWatch)
    asyncio.run(watch.wait(NEVER_MS))
    assert os.strerror(number) in caplog.text


def test_the_limit_of_watches_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_descriptor: int, folder: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)

    async def scenario() -> None:
        watch = open_watch([str(tmp_path)], [])
        for _ in range(3):
            await watch.wait(NEVER_MS)
        watch.close()

    monkeypatch.setattr(folder_watch, "_inotify_add_watch", refused)
    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert caplog.text.count(str(tmp_path)) == 1
