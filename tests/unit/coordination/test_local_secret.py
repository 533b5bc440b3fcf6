"""The cluster's secret in the folder store: who may read its files, and what is left of one that was
replaced."""

from __future__ import annotations

import asyncio
import errno
import logging
import stat
from pathlib import Path

import pytest

from nilometer.coordination.local import layout
from nilometer.coordination.local.layout import StagedFiles
from nilometer.coordination.local.store import LocalStore, SecretFolder
from nilometer.coordination.store import OutcomeUnknown, StoreDamaged, StoredSecret
from nilometer.runtime import Runtime
from nilometer.runtime.system_disk import SystemDisk
from support.logs.memory_disk import MemoryDisk

STAGED = "store/staged"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def put_two_secrets(folder: Path) -> None:
    async def put() -> None:
        store = LocalStore(Runtime.system(), str(folder))
        await store.open()
        assert await store.put_secret(0, b"the first key")
        assert await store.put_secret(1, b"the second key")
        await store.close()

    asyncio.run(put())


def test_only_the_owner_may_enter_the_store_and_read_the_secret(tmp_path: Path) -> None:
    put_two_secrets(tmp_path / "store")
    assert mode_of(tmp_path / "store") == 0o700
    assert mode_of(tmp_path / "store" / layout.MEMBERS) == 0o700
    for name in (tmp_path / "store" / layout.MEMBERS).iterdir():
        assert mode_of(name) == 0o600


def test_a_secret_that_was_replaced_is_nowhere_on_the_disk(tmp_path: Path) -> None:
    put_two_secrets(tmp_path)
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"the second key" in kept
    assert b"the first key" not in kept


def test_a_secret_that_others_may_read_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put_two_secrets(tmp_path)
    (tmp_path / layout.MEMBERS).chmod(0o755)
    folder = SecretFolder(
        SystemDisk(),
        str(tmp_path),
        StagedFiles(SystemDisk(), str(tmp_path / "staged"), "t"),
    )
    with caplog.at_level(logging.WARNING):
        folder.read()
        folder.read()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "chmod 700" in warning
    assert "second key" not in warning


def test_a_slow_writer_does_not_win_a_number_that_was_given_long_ago() -> None:
    disk = MemoryDisk()
    disk.make_directories(STAGED)
    slow, quick = (SecretFolder(disk, "store", StagedFiles(disk, STAGED, who)) for who in ("slow", "quick"))
    slow.open()
    assert quick.put(0, b"0")
    link = disk.link

    def link_late(source: str, target: str) -> None:
        """Meanwhile the number is given to another, and replaced."""
        disk.link = link  # type: ignore[method-assign]
        assert quick.put(1, b"1")
        assert quick.put(2, b"2")
        link(source, target)

    disk.link = link_late  # type: ignore[method-assign]
    assert not slow.put(1, b"late")
    assert slow.read() == StoredSecret(2, b"2")


@pytest.mark.parametrize("seed", range(20))
def test_a_secret_that_was_put_survives_the_death_of_the_machine(seed: int) -> None:
    disk = MemoryDisk(seed)
    disk.make_directories(STAGED)
    disk.sync_directory("")
    disk.sync_directory("store")
    folder = SecretFolder(disk, "store", StagedFiles(disk, STAGED, "a"))
    folder.open()
    assert folder.put(0, b"0") and folder.put(1, b"1")
    disk.crash_machine()
    again = SecretFolder(disk, "store", StagedFiles(disk, STAGED, "b"))
    again.open()
    assert again.read() == StoredSecret(1, b"1")
    assert disk.is_private("store/members") and disk.is_private("store/members/secret.0000000001")


def test_an_emptied_newest_secret_is_damage(tmp_path: Path) -> None:
    put_two_secrets(tmp_path)
    (tmp_path / layout.MEMBERS / layout.secret_name(1)).write_bytes(b"")
    folder = SecretFolder(
        SystemDisk(),
        str(tmp_path),
        StagedFiles(SystemDisk(), str(tmp_path / "staged"), "t"),
    )
    with pytest.raises(StoreDamaged, match="empty"):
        folder.read()


def test_a_disk_that_fails_leaves_the_outcome_open() -> None:
    async def put(disk: MemoryDisk) -> None:
        system = Runtime.system()
        store = LocalStore(Runtime(system.clock, disk, system.network, system.entropy), "/store")
        await store.open()
        disk.fail_from(1, errno.EIO)
        with pytest.raises(OutcomeUnknown, match="secret 0"):
            await store.put_secret(0, b"key")

    asyncio.run(put(MemoryDisk()))
