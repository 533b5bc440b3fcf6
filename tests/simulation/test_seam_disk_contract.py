"""The seam's contract for the disk: the same scenarios on the system and in the simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from nilometer.runtime import Disk, LockHeld, Runtime
from support.simulation.seam_scenarios import Play


def test_what_is_created_private_is_its_owners_alone(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk: Disk = runtime.disk
        disk.make_directories(f"{folder}/open/closed", private=True)
        assert not disk.is_private(f"{folder}/open")
        assert disk.is_private(f"{folder}/open/closed")
        for name, private in (("own", True), ("shared", False)):
            disk.open(f"{folder}/{name}", create=True, private=private).close()
            assert disk.is_private(f"{folder}/{name}") is private
            disk.open(f"{folder}/{name}", create=True, private=not private).close()
            assert disk.is_private(f"{folder}/{name}") is private  # it was there
        disk.link(f"{folder}/own", f"{folder}/linked")
        assert disk.is_private(f"{folder}/linked")
        with pytest.raises(FileNotFoundError):
            disk.is_private(f"{folder}/none")

    play(scenario)


def test_files_are_appended_rewritten_and_cut(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk: Disk = runtime.disk
        path = f"{folder}/file"
        with pytest.raises(FileNotFoundError):
            disk.open(path)
        file = disk.open(path, create=True)
        assert file.path == path
        assert file.append([b"abc", bytearray(b"def"), memoryview(b"ghi")]) == 9
        assert file.read_at(2, 4) == b"cdef"
        assert file.read_at(7, 100) == b"hi"
        assert file.read_at(50, 1) == b""
        assert file.read_at_if_cached(0, 3) in (b"abc", None)
        file.write_at(1, b"XY")
        file.truncate(5)
        assert file.read_at(0, 10) == b"aXYde"
        file.append([b"!"])
        file.truncate(8)
        assert file.size() == disk.file_size(path) == 8
        await disk.offload(file.sync)
        file.close()
        file.close()
        with pytest.raises(OSError):
            file.append([b"late"])
        assert disk.read_file(path) == b"aXYde!\0\0"
        again = disk.open(path, writable=False)
        with pytest.raises(OSError):
            again.append([b"x"])
        assert again.read_at(0, 2) == b"aX"
        again.close()

    play(scenario)


def test_an_append_is_at_the_end_whatever_changed_the_file_before(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        file = runtime.disk.open(f"{folder}/file", create=True)
        file.append([b"abc"])
        file.append([b"def"])
        file.truncate(4)
        file.append([b"-"])
        file.truncate(7)
        file.append([b"+"])
        file.write_at(7, b"12345")
        file.append([b"end"])
        assert file.read_at(0, 100) == b"abcd-\0\x0012345end"
        file.close()

    play(scenario)


def test_names_come_and_go(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        disk.make_directories(f"{folder}/a/b")
        disk.make_directories(f"{folder}/a/b")
        assert disk.is_directory(f"{folder}/a/b")
        assert not disk.exists(f"{folder}/a/c")
        disk.replace_file(f"{folder}/a/one", b"1")
        disk.replace_file(f"{folder}/a/two", b"2", sync=False)
        assert disk.list_directory(f"{folder}/a") == ["b", "one", "two"]
        disk.rename(f"{folder}/a/one", f"{folder}/a/two")
        assert disk.read_file(f"{folder}/a/two") == b"1"
        disk.link(f"{folder}/a/two", f"{folder}/a/three")
        with pytest.raises(FileExistsError):
            disk.link(f"{folder}/a/two", f"{folder}/a/three")
        with pytest.raises(FileNotFoundError):
            disk.link(f"{folder}/a/none", f"{folder}/a/four")
        disk.remove(f"{folder}/a/two")
        assert disk.read_file(f"{folder}/a/three") == b"1"
        with pytest.raises(FileNotFoundError):
            disk.remove(f"{folder}/a/two")
        with pytest.raises(FileNotFoundError):
            disk.list_directory(f"{folder}/nowhere")
        with pytest.raises(FileNotFoundError):
            disk.sync_directory(f"{folder}/nowhere")
        disk.rename(f"{folder}/a", f"{folder}/moved")
        assert disk.list_directory(f"{folder}/moved") == ["b", "three"]
        assert not disk.exists(f"{folder}/a/three")
        disk.sync_directory(f"{folder}/moved")
        disk.remove_tree(f"{folder}/moved")
        assert disk.list_directory(folder) == []
        with pytest.raises(FileNotFoundError):
            disk.remove_tree(f"{folder}/moved")
        assert 0 < disk.free_bytes(folder) <= disk.total_bytes(folder)

    play(scenario)


def test_a_file_is_replaced_by_several_at_once(play: Play) -> None:
    """Each replacement has a temporary name of its own: all succeed, and none leaves a file behind."""

    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        contents = [b"%d" % number * 5_000 for number in range(8)]

        async def replace(data: bytes) -> None:
            await disk.offload(lambda: [disk.replace_file(f"{folder}/file", data) for _ in range(5)])

        await asyncio.gather(*(replace(data) for data in contents))
        assert disk.read_file(f"{folder}/file") in contents
        assert [name for name in disk.list_directory(folder) if name.startswith("file")] == ["file"]

    play(scenario)


def test_an_open_file_outlives_its_name(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        file = disk.open(f"{folder}/file", create=True)
        file.append([b"still here"])
        disk.remove(f"{folder}/file")
        assert file.read_at(0, 100) == b"still here"
        disk.open(f"{folder}/file", create=True).close()
        assert disk.file_size(f"{folder}/file") == 0
        file.close()

    play(scenario)


def test_a_lock_is_held_once(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        path = f"{folder}/lock"
        assert not disk.is_locked(path)
        lock = disk.lock(path)
        assert disk.is_locked(path)
        with pytest.raises(LockHeld):
            disk.lock(path)
        assert disk.is_locked(path), "asking must not drop it"
        lock.release()
        lock.release()
        assert not disk.is_locked(path)
        disk.lock(path).release()

    play(scenario)


def test_offloaded_work_returns_raises_and_is_not_cancelled(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        assert await disk.offload(lambda: 42) == 42
        with pytest.raises(FileNotFoundError):
            await disk.offload(lambda: disk.read_file(f"{folder}/none"))
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> None:
            disk.replace_file(f"{folder}/done", b"", sync=False)
            loop.call_soon_threadsafe(done.set)

        waiting = loop.create_task(disk.offload(work))
        await asyncio.sleep(0)
        waiting.cancel()
        await done.wait()
        assert disk.exists(f"{folder}/done")

    play(scenario)


def test_a_watch_tells_of_names_and_locks(play: Play) -> None:
    async def scenario(runtime: Runtime, folder: str) -> None:
        disk = runtime.disk
        watch = disk.watch([folder])

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():
                await watch.wait(60_000)

        loop = asyncio.get_running_loop()
        loop.call_later(0.02, lambda: disk.replace_file(f"{folder}/new", b"", sync=False))
        await until(lambda: disk.exists(f"{folder}/new"))
        lock = disk.lock(f"{folder}/lock")
        loop.call_later(0.02, lock.release)
        await until(lambda: not disk.is_locked(f"{folder}/lock"))
        watch.close()

    play(scenario)
