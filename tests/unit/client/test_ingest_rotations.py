"""Ingest of real files through what rotation does to them: each line once."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nilometer.client.ingest import ingest as ingest_module
from nilometer.client.ingest.ingest import Ingest
from nilometer.client.ingest.state_file import load_state
from nilometer.runtime.system_disk import SystemDisk
from nilometer.wire.api_keys import ApiKey
from support.ingest.runs import Crash, CrashingDisk, following, ingest_of, lines_in, write_lines
from support.scripted.log_cluster import LogCluster
from support.scripted.scripted_broker import HANG_UP


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "POLL_MS", 5)
    monkeypatch.setattr(ingest_module, "RESCAN_MS", 20)
    monkeypatch.setattr(ingest_module, "LOOK_SHARE", 1)  # a look of a second would be followed by a minute
    monkeypatch.setattr(ingest_module, "RETIRE_MS", 60)


def values(cluster: LogCluster) -> list[str]:
    return sorted(value.decode() for _, _, value in lines_in(cluster))


def rotate(log: Path, keep: int, *, compress: bool = False) -> None:
    """As logrotate does: every number one higher, the oldest removed, the newest compressed if so wanted."""
    suffix = ".gz" if compress else ""
    (log.parent / f"{log.name}.{keep}{suffix}").unlink(missing_ok=True)
    for number in range(keep - 1, 0, -1):
        older = log.parent / f"{log.name}.{number}{suffix}"
        if older.exists():
            older.rename(log.parent / f"{log.name}.{number + 1}{suffix}")
    rotated = log.parent / f"{log.name}.1"
    log.rename(rotated)
    log.touch()
    if compress:
        gzip_file(rotated)


def gzip_file(path: Path) -> None:
    with path.open("rb") as plain, gzip.open(f"{path}.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)
    path.unlink()


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - files send no events
            await asyncio.sleep(0.005)


async def looked_again(ingest: Ingest, times: int = 2) -> None:
    """Until the files were looked for once more, from beginning to end."""
    goal = ingest.totals.looks + times
    await wait_until(lambda: ingest.totals.looks >= goal)


@pytest.mark.parametrize("whole_folder", [False, True])
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.usefixtures("impatient")
async def test_two_rotations_while_ingest_is_down(
    logs: Path, tmp_path: Path, whole_folder: bool, compress: bool, follow: bool
) -> None:
    log = logs / "app.log"
    asked = logs if whole_folder else log
    async with LogCluster(topics={"t": 1}) as cluster:
        write_lines(log, [f"first {number}" for number in range(100)])
        async with following(ingest_of(cluster, tmp_path, asked, follow=True)) as sent:
            await sent(100)
        for generation in ("first", "second", "third"):
            write_lines(log, [f"{generation} {number}" for number in range(100, 200)])
            if generation != "third":
                rotate(log, 5, compress=compress)
        if follow:
            async with following(ingest_of(cluster, tmp_path, asked, follow=True)) as sent:
                await sent(300)
        else:
            assert (await ingest_of(cluster, tmp_path, asked).run()).lines == 300
        assert len(values(cluster)) == 400 == len(set(values(cluster)))


@pytest.mark.usefixtures("impatient")
async def test_files_that_are_deleted_while_the_broker_does_not_answer(logs: Path, tmp_path: Path) -> None:
    log = logs / "app.log"
    async with LogCluster(topics={"t": 1}) as cluster:
        ingest = ingest_of(cluster, tmp_path, log, follow=True)
        async with following(ingest) as sent:
            write_lines(log, ["before"])
            await sent(1)
            cluster.fault = lambda key, _number: HANG_UP if key == ApiKey.PRODUCE else None
            for generation in range(6):
                write_lines(log, [f"generation {generation}, line {line}" for line in range(15)])
                await looked_again(ingest)
                rotate(log, 2)
            cluster.fault = lambda _key, _number: None
            write_lines(log, ["after"])
            await sent(92)
        assert len(values(cluster)) == 92 == len(set(values(cluster)))


@pytest.mark.parametrize("whole_folder", [False, True])
@pytest.mark.parametrize("style", ["rename", "compress", "copytruncate"])
@pytest.mark.usefixtures("impatient")
async def test_many_rotations_at_full_speed(
    logs: Path, tmp_path: Path, whole_folder: bool, style: str
) -> None:
    log = logs / "app.log"
    written: list[str] = []
    async with LogCluster(topics={"t": 1}) as cluster:
        asked = logs if whole_folder else log
        async with following(ingest_of(cluster, tmp_path, asked, follow=True)) as sent:
            write_lines(log, ["first"])
            await sent(1)
            for generation in range(40):
                lines = [f"generation {generation}, line {line}, {'x' * 40}" for line in range(30)]
                write_lines(log, lines)
                written += lines
                if style == "copytruncate":
                    shutil.copy(log, logs / f"app.log.{generation}")
                    os.truncate(log, 0)
                else:
                    rotate(log, 100, compress=style == "compress")
                await asyncio.sleep(0.003 * (generation % 5))
            await sent(1 + len(written))
        assert values(cluster) == sorted(["first", *written])


@pytest.mark.parametrize("whole_folder", [False, True])
@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.usefixtures("impatient")
async def test_rotated_files_of_before_the_first_run_are_not_read_later(
    logs: Path, tmp_path: Path, whole_folder: bool, follow: bool
) -> None:
    log = logs / "app.log"
    write_lines(logs / "app.log.1", [f"old {number}" for number in range(100)])
    with gzip.open(logs / "app.log.2.gz", "wt") as file:
        file.write("older\n")
    write_lines(log, ["new 1"])
    async with LogCluster(topics={"t": 1}) as cluster:
        asked = logs if whole_folder else log
        first = await ingest_of(cluster, tmp_path, log).run()
        assert sorted(first.skipped) == [str(logs / "app.log.1"), str(logs / "app.log.2.gz")]
        (logs / "app.log.2.gz").rename(logs / "app.log.3.gz")
        gzip_file(logs / "app.log.1")
        (logs / "app.log.1.gz").rename(logs / "app.log.2.gz")
        log.rename(logs / "app.log.1")
        write_lines(log, ["new 2"])
        if whole_folder and not follow:
            return  # a run that ends reads compressed files of the folder it is given
        if follow:
            async with following(ingest_of(cluster, tmp_path, asked, follow=True)) as sent:
                await sent(1)
        else:
            await ingest_of(cluster, tmp_path, asked).run()
        assert values(cluster) == ["new 1", "new 2"]


async def test_file_with_the_header_of_another_one(logs: Path, tmp_path: Path) -> None:
    async with LogCluster(topics={"t": 1}) as cluster:
        write_lines(logs / "data.csv", ["time,name"])
        await ingest_of(cluster, tmp_path, logs).run()
        write_lines(logs / "data-2.csv", ["time,name"])
        assert (await ingest_of(cluster, tmp_path, logs).run()).lines == 1
        write_lines(logs / "data-3.csv", ["time,name", "1,a"])
        assert (await ingest_of(cluster, tmp_path, logs).run()).lines == 2
        write_lines(logs / "data.csv", ["2,b"])
        assert (await ingest_of(cluster, tmp_path, logs).run()).lines == 1


@pytest.mark.parametrize("inode_is_used_again", [False, True])
async def test_file_created_again_that_begins_as_the_old_one(
    logs: Path, tmp_path: Path, inode_is_used_again: bool
) -> None:
    log = logs / "app.log"
    async with LogCluster(topics={"t": 1}) as cluster:
        write_lines(log, ["start"])
        await ingest_of(cluster, tmp_path, logs).run()
        inode = log.stat().st_ino
        log.unlink()
        others = 0
        while True:  # the file system chooses the inode
            write_lines(log, ["start", "second"])
            if (log.stat().st_ino == inode) == inode_is_used_again:
                break
            if inode_is_used_again and others == 50:
                pytest.skip("this file system does not use inodes again")
            others += 1
            log.rename(tmp_path / f"other {others}")
        assert (await ingest_of(cluster, tmp_path, logs).run()).lines == 2


@pytest.mark.parametrize("mounted_over", [False, True])
async def test_crash_and_a_folder_that_is_away_for_one_start(
    logs: Path, tmp_path: Path, mounted_over: bool
) -> None:
    for name in "ab":
        write_lines(logs / f"{name}.log", [f"{name} {number}" for number in range(300)])
    async with LogCluster(topics={"t": 2}) as cluster:
        with pytest.raises(Crash):
            await ingest_of(cluster, tmp_path, disk=CrashingDisk(3)).run()
        assert values(cluster)
        os.rename(logs, tmp_path / "away")
        if mounted_over:
            os.mkdir(logs)  # the mount point
        async with following(ingest_of(cluster, tmp_path, follow=True)):
            pass
        await ingest_of(cluster, tmp_path).run()
        if mounted_over:
            os.rmdir(logs)
        os.rename(tmp_path / "away", logs)
        await ingest_of(cluster, tmp_path).run()
        assert len(values(cluster)) == 600 == len(set(values(cluster)))


@pytest.mark.usefixtures("impatient")
async def test_writer_that_pauses_in_a_line_after_a_rename(logs: Path, tmp_path: Path) -> None:
    log = logs / "app.log"
    async with LogCluster(topics={"t": 1}) as cluster:
        ingest = ingest_of(cluster, tmp_path, log, follow=True)
        async with following(ingest) as sent:
            with log.open("a") as writer:
                writer.write("one\nhalf a ")
                writer.flush()
                await sent(1)
                log.rename(logs / "app.log.1")
                write_lines(log, ["next"])
                await sent(2)
                await looked_again(ingest, 12)  # longer than it takes to close such a file
                writer.write("line\n")
            await sent(3)
        assert values(cluster) == ["half a line", "next", "one"]


@pytest.mark.usefixtures("impatient")
async def test_last_line_of_a_renamed_file_is_sent_when_its_writer_has_paused_for_long(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_module, "LAST_LINE_MS", 120)
    log = logs / "app.log"
    log.write_text("one\nhalf a line")
    async with LogCluster(topics={"t": 1}) as cluster:
        async with following(ingest_of(cluster, tmp_path, log, follow=True)) as sent:
            await sent(1)
            log.rename(logs / "app.log.1")
            await sent(2)
        assert values(cluster) == ["half a line", "one"]


class CountingReads:
    """Counts the bytes that are read of files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        pread: Callable[[int, int, int], bytes] = os.pread

        def counted(descriptor: int, length: int, position: int) -> bytes:
            data = pread(descriptor, length, position)
            self.bytes += len(data)
            return data

        monkeypatch.setattr(os, "pread", counted)


@pytest.mark.usefixtures("impatient")
async def test_what_cannot_be_read_is_not_read_again_until_it_changes(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless, torn = logs / "endless.log", logs / "torn.log.1.gz"
    endless.write_bytes(b"x" * 1_500_000)
    packed = gzip.compress(b"".join(b"%d %d\n" % (number, number**7) for number in range(5_000)))
    write_lines(logs / "torn.log", ["good"])
    reads = CountingReads(monkeypatch)
    async with LogCluster(topics={"t": 1}) as cluster:
        ingest = ingest_of(cluster, tmp_path, follow=True)
        async with following(ingest) as sent:
            await sent(1)
            (logs / "torn.log").unlink()
            torn.write_bytes(packed[:-300])
            await wait_until(lambda: len(ingest.totals.errors) == 2)
            await looked_again(ingest, 30)
            assert reads.bytes < 3 * (1_500_000 + len(packed))
            torn.write_bytes(packed)
            write_lines(endless, ["", "after it"])
            await sent(5_001)


@pytest.mark.usefixtures("impatient")
async def test_rotated_files_that_are_deleted_are_forgotten(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nilometer.client.ingest import tracker

    monkeypatch.setattr(tracker, "GONE_MAX", 5)
    log = logs / "app.log"
    async with LogCluster(topics={"t": 1}) as cluster:
        ingest = ingest_of(cluster, tmp_path, follow=True)
        async with following(ingest) as sent:
            for generation in range(30):
                write_lines(log, [f"generation {generation}"])
                await sent(generation + 1)
                rotate(log, 2)
            # Those that were deleted while they were read are forgotten once they are closed.
            await wait_until(lambda: len(ingest._tracker.live) <= 5 + 3)
        state = load_state(SystemDisk(), str(tmp_path / "state" / "ingest.json"))
        assert state is not None
        assert len(state.sources) <= 5 + 3


@pytest.mark.usefixtures("impatient")
async def test_look_costs_one_listing_and_waits_for_no_reader(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [logs / f"app-{number:03}.log" for number in range(300)]
    for path in paths:
        write_lines(path, [f"line of {path.name}"])
    listings: list[str] = []
    scandir = os.scandir

    def counted(path: str):
        listings.append(path)
        return scandir(path)

    async with LogCluster(topics={"t": 1}) as cluster:
        ingest = ingest_of(cluster, tmp_path, *paths, follow=True)
        async with following(ingest) as sent:
            await sent(300)
            monkeypatch.setattr(os, "scandir", counted)
            before = ingest.totals.looks
            await looked_again(ingest, 3)
            assert set(listings) == {str(logs)}
            assert len(listings) <= ingest.totals.looks - before + 1
