"""The folder store's own rules: what it refuses, what it survives, and when it calls a broker hung."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nilometer.coordination.factory import make_store
from nilometer.coordination.local import layout
from nilometer.coordination.local.entries import Succession
from nilometer.coordination.local.layout import SessionFiles
from nilometer.coordination.local.sessions import LivenessWatch
from nilometer.coordination.local.store import LocalStore
from nilometer.coordination.store import (
    BrokerIdInUse,
    EntryTooLarge,
    SessionName,
    StoreDamaged,
    StoreRefused,
    StoreUnavailable,
)
from nilometer.runtime import Runtime
from nilometer.runtime.system_disk import SystemDisk

A = SessionName(1, 1)


# ---- hung or not


def test_a_session_is_silent_after_a_whole_timeout_of_looking() -> None:
    watch = LivenessWatch(6000)
    assert not any(watch.on_counter(A, b"7", now) for now in range(0, 6000, 600))
    assert watch.on_counter(A, b"7", 6000)


def test_a_moving_counter_starts_the_count_again() -> None:
    watch = LivenessWatch(6000)
    for now in range(0, 60_000, 600):
        assert not watch.on_counter(A, b"%d" % (now // 3000), now)


def test_a_watcher_that_was_away_itself_does_not_count_its_absence() -> None:
    watch = LivenessWatch(6000)
    watch.on_counter(A, b"7", 0)
    assert not watch.on_counter(A, b"7", 3_600_000), "it was the watcher (or the machine) that stood still"
    assert not watch.on_counter(A, b"8", 3_600_600)


def test_each_incarnation_is_watched_for_itself() -> None:
    watch = LivenessWatch(1000)
    later = SessionName(1, 2)
    for now in range(0, 1000, 100):
        watch.on_counter(A, b"7", now)
    assert watch.on_counter(A, b"7", 1000)
    assert not watch.on_counter(later, b"7", 1000)
    watch.forget_all_but([later])
    assert not watch.on_counter(A, b"7", 1100)


# ---- names


def test_of_one_id_only_the_last_incarnation_can_be_live() -> None:
    files = SessionFiles.parse(
        [
            "1.lock",
            "1.1.session",
            "1.2.heartbeat",
            "2.4.session",
            "3.1.session",
            "3.1.expired",
            "controller.0000000007",
        ]
    )
    assert files.live() == [SessionName(2, 4)]
    assert files.next_incarnation(1) == 3
    assert files.next_incarnation(9) == 1
    assert files.claims == (7,)


def test_damage_is_noticed_bit_by_bit() -> None:
    content = layout.wrap(layout.KIND_ENTRY, b'{"some": "record"}')
    assert layout.unwrap("x", content) == (layout.KIND_ENTRY, b'{"some": "record"}')
    for position in range(len(layout.KIND_ENTRY) + 1, len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 2
        with pytest.raises(StoreDamaged, match="x is damaged"):
            layout.unwrap("x", bytes(damaged))
    with pytest.raises(StoreDamaged):
        layout.unwrap("x", content[:-1])


# ---- what is refused, and what is survived


class FaultyTestDisk(SystemDisk):
    """The system's disk, with a fault of the test's choice."""

    def __init__(self) -> None:
        super().__init__()
        self.mount = "ext4"
        self.full = False

    def file_system_type(self, path: str) -> str:
        return self.mount

    def open(self, path: str, *, create: bool = False, **how: bool):  # type: ignore[no-untyped-def]
        if self.full and create:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return super().open(path, create=create, **how)


def run(
    scenario: Callable[[LocalStore, FaultyTestDisk], Awaitable[None]], folder: Path, **settings: object
) -> None:
    async def main() -> None:
        disk = FaultyTestDisk()
        system = Runtime.system()
        runtime = Runtime(system.clock, disk, system.network, system.entropy)
        store = LocalStore(runtime, str(folder), session_timeout_ms=1000, **settings)  # type: ignore[arg-type]
        try:
            await scenario(store, disk)
        finally:
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("mount", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_network_mount_is_refused(tmp_path: Path, mount: str) -> None:
    async def scenario(store: LocalStore, disk: FaultyTestDisk) -> None:
        disk.mount = mount
        with pytest.raises(StoreRefused, match=rf"network or shared file system \({mount}\).*zookeeper://"):
            await store.open()

    run(scenario, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    data = b'{"format":2,"cluster_id":"c","first_folder":"f","more":1}'
    (tmp_path / "store").write_bytes(layout.wrap(layout.KIND_STORE, data))

    async def scenario(store: LocalStore, disk: FaultyTestDisk) -> None:
        with pytest.raises(StoreRefused, match=r"has format 2, .* up to 1: upgrade nilometer"):
            await store.open()

    run(scenario, tmp_path)


def test_another_clusters_folder_is_refused(tmp_path: Path) -> None:
    async def first(store: LocalStore, disk: FaultyTestDisk) -> None:
        await store.open()

    async def second(store: LocalStore, disk: FaultyTestDisk) -> None:
        with pytest.raises(StoreRefused, match="belongs to cluster mine, but this broker to cluster yours"):
            await store.open()

    run(first, tmp_path, cluster_id="mine")
    run(second, tmp_path, cluster_id="yours")


def test_a_full_disk_refuses_entries_but_keeps_sessions_going(tmp_path: Path) -> None:
    async def scenario(store: LocalStore, disk: FaultyTestDisk) -> None:
        await store.open()
        session = await store.register(1, b"")
        assert await store.append(0, b"before") is True
        disk.full = True
        with pytest.raises(StoreUnavailable, match=r"the disk is full: .*nothing was changed"):
            await store.append(1, b"x")
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await store.write_snapshot(1, b"x")
        assert await store.claim_controller() is True, "a second name for a file needs no space"
        await store.resign_controller()
        assert await store.controller() is None
        assert session.is_live()
        disk.full = False
        assert await store.append(1, b"x") is True
        assert [entry.data for entry in await store.read(0, 10)] == [b"before", b"x"]

    run(scenario, tmp_path)


def test_a_store_that_vanishes_ends_the_session(tmp_path: Path) -> None:
    async def scenario(store: LocalStore, disk: FaultyTestDisk) -> None:
        await store.open()
        session = await store.register(1, b"")
        shutil.rmtree(tmp_path / "store")
        async with asyncio.timeout(20):
            assert "vanished" in await session.wait_lost()
        assert not session.is_live()
        with pytest.raises(StoreUnavailable):
            await store.sessions()

    run(scenario, tmp_path / "store")


def test_a_broker_registers_again_in_the_store_that_it_opened(tmp_path: Path) -> None:
    async def scenario(store: LocalStore, disk: FaultyTestDisk) -> None:
        await store.open()
        session = await store.register(1, b"")
        shutil.rmtree(tmp_path / "store")
        async with asyncio.timeout(20):
            await session.wait_lost()
        with pytest.raises(StoreDamaged, match="was deleted; restore it from a copy"):
            await store.register(1, b"")
        another = LocalStore(Runtime.system(), str(tmp_path / "store"), cluster_id=store.cluster_id)
        await another.open()
        try:
            with pytest.raises(StoreRefused, match="was replaced by another one"):
                await store.register(1, b"")
            assert await another.sessions() == []
        finally:
            await another.close()

    run(scenario, tmp_path / "store")


def flip_last_bit(folder: Path, number: int) -> None:
    (entry,) = folder.glob(f"entries/*/{layout.entry_name(number)}")
    content = bytearray(entry.read_bytes())
    content[-1] ^= 1
    entry.write_bytes(content)


def test_a_damaged_entry_is_not_passed_on(tmp_path: Path) -> None:
    async def scenario(store: LocalStore, disk: FaultyTestDisk) -> None:
        await store.open()
        for number in range(3):
            await store.append(number, b"entry")
        flip_last_bit(tmp_path, 1)
        with pytest.raises(StoreDamaged, match=f"{layout.entry_name(1)} is damaged"):
            await store.read(0, 10)
        assert len(await store.read(0, 1)) == 1

    run(scenario, tmp_path)


def test_an_entry_has_a_largest_size(tmp_path: Path) -> None:
    async def scenario(store: LocalStore, disk: FaultyTestDisk) -> None:
        await store.open()
        with pytest.raises(EntryTooLarge, match=r"900,001 bytes exceeds the limit of 900,000"):
            await store.append(0, bytes(900_001))
        assert await store.append(0, bytes(900_000))

    run(scenario, tmp_path)


@pytest.mark.parametrize("is_retired", [True, False], ids=["retired", "killed before it retired the former"])
def test_an_append_goes_on_in_the_folder_that_another_broker_has_begun(
    is_retired: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_retired:
        monkeypatch.setattr(Succession, "retire_old", lambda _: None)

    async def scenario(store: LocalStore, disk: FaultyTestDisk) -> None:
        await store.open()
        for number in range(5):
            await store.append(number, b"entry")
        other = LocalStore(Runtime.system(), str(tmp_path), session_timeout_ms=1000)
        await other.open()
        assert await other.write_snapshot(3, b"snapshot")
        assert await other.append(5, b"entry")
        assert len(os.listdir(tmp_path / "entries")) == (1 if is_retired else 2)
        assert await store.append(6, b"entry")
        assert not await store.append(8, b"beyond the next number")
        await other.close()

    run(scenario, tmp_path)


def test_two_stores_of_one_process_cannot_share_an_id(tmp_path: Path) -> None:
    """Opening one's own lock file a second time would drop the lock: it is refused without being opened."""

    async def scenario(store: LocalStore, disk: FaultyTestDisk) -> None:
        await store.open()
        await store.register(1, b"")
        other = LocalStore(Runtime.system(), str(tmp_path), session_timeout_ms=1000)
        await other.open()
        with pytest.raises(BrokerIdInUse, match=f"in use by process {os.getpid()}"):
            await other.register(1, b"")
        await other.register(2, b"")
        assert [session.broker_id for session in await store.sessions()] == [1, 2]
        await other.close()
        assert [session.broker_id for session in await store.sessions()] == [1]

    run(scenario, tmp_path)


def test_entries_are_readable_where_they_lie(tmp_path: Path) -> None:
    async def scenario(store: LocalStore, disk: FaultyTestDisk) -> None:
        await store.open()
        await store.append(0, b'{"topic": "nile"}')

    run(scenario, tmp_path)
    (entry,) = tmp_path.glob(f"entries/*/{layout.entry_name(0)}")
    assert entry.read_text().splitlines()[1] == '{"topic": "nile"}'
    assert os.listdir(tmp_path / "aside") == [], "nothing unfinished stays behind"  # codespell:ignore


@pytest.mark.parametrize(
    "setting", ["", "locally", "local:", "zookeeper", "zookeeper:", "zookeeper://", "etcd://x"]
)
def test_a_setting_that_means_nothing_is_refused(setting: str, tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match=r"invalid value nilometer\.coordination="):
        make_store(setting, Runtime.system(), local_folder=str(tmp_path))
