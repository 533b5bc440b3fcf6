"""What every object store promises: the same tests for files, S3, and the virtual one."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nilometer.runtime.object_store import (
    FileObjectStore,
    ObjectNotFound,
    ObjectStore,
    ObjectStoreError,
    folder_of,
)
from nilometer.runtime.runtime import open_object_store
from nilometer.runtime.system_disk import SystemDisk
from nilometer.simulation.object_store import Bucket, StoreFaults, VirtualObjectStore
from support.logs.memory_disk import MemoryDisk
from support.s3_server import S3Server, s3_server

STORES = ("files", "virtual", "s3")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "virtual":
        return VirtualObjectStore(Bucket(), random.Random(1))
    folder = tmp_path / "tier"
    if request.param == "files":
        folder.mkdir()
        return open_object_store(folder.as_uri(), "writer")
    server: S3Server = request.getfixturevalue("server")
    return open_object_store(server.url(folder.name + request.node.name), "writer")


async def parts(*data: bytes) -> AsyncIterator[bytes]:
    for one in data:
        yield one


async def test_an_object_is_read_whole_and_in_ranges(store: ObjectStore) -> None:
    await store.put("a/b/c", b"0123456789")
    assert await store.get("a/b/c") == b"0123456789"
    assert await store.get("a/b/c", 3) == b"3456789"
    assert await store.get("a/b/c", 3, 4) == b"3456"
    assert await store.get("a/b/c", 8, 4) == b"89"


async def test_put_replaces_an_object(store: ObjectStore) -> None:
    await store.put("a/head", b"long content")
    await store.put("a/head", b"short")
    assert await store.get("a/head") == b"short"


async def test_a_name_is_created_once(store: ObjectStore) -> None:
    assert await store.create("a/manifest", b"first")
    assert not await store.create("a/manifest", b"second")
    assert await store.get("a/manifest") == b"first"


async def test_of_many_that_create_a_name_one_succeeds(
    store: ObjectStore, request: pytest.FixtureRequest
) -> None:
    """The stand-in for S3 looks for the name and writes in two steps: there one comes at a time."""
    at_once = asyncio.Semaphore(1 if "s3" in request.node.name else 16)

    async def create(number: int) -> bool:
        async with at_once:
            return await store.create("a/manifest", b"%d" % number)

    won = await asyncio.gather(*map(create, range(16)))
    assert won.count(True) == 1
    assert await store.get("a/manifest") == b"%d" % won.index(True)


async def test_an_upload_has_all_parts_in_order(store: ObjectStore) -> None:
    await store.upload("a/x.log", parts(b"one ", b"two ", b"three"))
    await store.upload("a/y.log", parts())
    assert await store.get("a/x.log") == b"one two three"
    assert await store.get("a/y.log") == b""


async def test_nothing_is_seen_of_an_upload_that_fails(store: ObjectStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"one"
        raise RuntimeError("the segment cannot be read")

    with pytest.raises(RuntimeError, match="the segment cannot be read"):
        await store.upload("a/x.log", broken())
    with pytest.raises(ObjectNotFound):
        await store.get("a/x.log")
    assert await store.names("a/") == []


async def test_an_object_is_not_found_before_and_after(store: ObjectStore) -> None:
    with pytest.raises(ObjectNotFound):
        await store.get("a/x")
    await store.put("a/x", b"1")
    await store.remove("a/x")
    await store.remove("a/x")
    with pytest.raises(ObjectNotFound):
        await store.get("a/x")
    assert await store.create("a/x", b"2")


async def test_names_are_those_with_the_prefix(store: ObjectStore) -> None:
    for name in ("c/t/0/manifest-1", "c/t/0/manifest-2", "c/t/0/head", "c/t/10/head", "c/u/0/head"):
        await store.put(name, b"")
    assert await store.names("c/t/0/") == ["c/t/0/head", "c/t/0/manifest-1", "c/t/0/manifest-2"]
    assert await store.names("c/t/0/manifest-") == ["c/t/0/manifest-1", "c/t/0/manifest-2"]
    assert await store.names("c/t/1") == ["c/t/10/head"]
    assert len(await store.names("")) == 5
    assert await store.folders("c/") == ["c/t/", "c/u/"]
    assert await store.folders("c/t/") == ["c/t/0/", "c/t/10/"]
    assert await store.folders("c/t/0/") == await store.folders("c/x/") == []
    assert await store.names("c/x/") == []


async def test_files_survive_a_power_failure_once_written() -> None:
    disk = MemoryDisk()
    disk.make_directories("/tier")
    disk.sync_directory("/")
    store = FileObjectStore(disk, "/tier", "writer")
    await store.put("a/head", b"1")
    await store.create("a/manifest", b"2")
    await store.upload("a/b/x.log", parts(b"3", b"4"))
    disk.crash_machine()
    assert [await store.get(name) for name in ("a/head", "a/manifest", "a/b/x.log")] == [b"1", b"2", b"34"]


async def test_an_error_of_the_disk_names_the_object_and_may_pass() -> None:
    disk = MemoryDisk()
    disk.make_directories("/tier")
    disk.sync_directory("/")
    store = FileObjectStore(disk, "/tier", "writer")
    await store.put("a/x", b"1")
    disk.fail_from(1, errno.ENOSPC)
    with pytest.raises(ObjectStoreError, match="/tier/a/y") as raised:
        await store.put("a/y", b"2")
    assert raised.value.is_passing
    assert await store.get("a/x") == b"1"


async def test_the_virtual_store_may_do_later_what_it_has_refused() -> None:
    done = asyncio.Event()
    bucket = Bucket(faults=StoreFaults(refused=1, late_ms=1), on_change=lambda _name, _clock: done.set())
    store = VirtualObjectStore(bucket, random.Random(1))
    with pytest.raises(ObjectStoreError, match="a/x"):
        await store.create("a/x", b"1")
    await done.wait()
    assert bucket.objects == {"a/x": b"1"}


async def test_the_virtual_store_may_lose_an_answer() -> None:
    bucket = Bucket(faults=StoreFaults(unanswered=1))
    with pytest.raises(ObjectStoreError, match="a/x"):
        await VirtualObjectStore(bucket, random.Random(1)).create("a/x", b"1")
    assert bucket.objects == {"a/x": b"1"}


async def test_a_folder_that_is_missing_is_no_empty_store() -> None:
    store = FileObjectStore(MemoryDisk(), "/mount/tier", "writer")
    for request in (store.put("a/x", b"1"), store.create("a/x", b"1"), store.get("a/x"), store.names("a/")):
        with pytest.raises(ObjectStoreError, match="no such folder") as raised:
            await request
        assert not isinstance(raised.value, ObjectNotFound)


def test_the_folder_of_a_uri() -> None:
    assert folder_of("file:///var/tier/") == "/var/tier"
    assert folder_of("file://localhost/a%20b") == "/a b"
    assert folder_of("s3://bucket/path") is None
    for wrong in ("file://host/path", "file:relative", "file:///a?b=c"):
        with pytest.raises(ValueError, match="file:///PATH"):
            folder_of(wrong)


async def test_a_bucket_that_is_missing_is_no_empty_store(server: S3Server) -> None:
    store = open_object_store(server.url("tier", bucket="no-such-bucket"), "writer")
    for request in (store.put("a/x", b"1"), store.get("a/x"), store.get("a/x", 0, 1), store.names("a/")):
        with pytest.raises(ObjectStoreError, match=r"s3://no-such-bucket/tier/a/.*no such bucket") as raised:
            await request
        assert not isinstance(raised.value, ObjectNotFound)


async def test_an_error_does_not_show_the_secret(server: S3Server) -> None:
    with server.checking_credentials():
        store = open_object_store(server.url("tier"), "writer")
        with pytest.raises(ObjectStoreError, match="s3://archives/tier/a/x: ") as raised:
            await store.put("a/x", b"1")
    assert not raised.value.is_passing
    assert "writers-secret" not in str(raised.value)


def test_a_uri_that_is_no_store_is_refused() -> None:
    for wrong, reason in (("http://x", "file:///"), ("s3://b/p?x=1", "option x"), ("s3:///p", "BUCKET")):
        with pytest.raises(ValueError, match=reason):
            open_object_store(wrong, "writer")


async def test_a_folder_of_files_is_removed_with_its_last_object(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    store = open_object_store((tmp_path / "tier").as_uri(), "writer")
    await store.put("cluster/topic/0/a", b"1")
    await store.put("cluster/topic/0/b", b"2")
    await store.put("cluster/other/0/c", b"3")
    await store.remove("cluster/topic/0/a")
    assert await store.folders("cluster/") == ["cluster/other/", "cluster/topic/"]
    await store.remove("cluster/topic/0/b")
    assert await store.folders("cluster/") == ["cluster/other/"]
    await store.remove("cluster/other/0/c")
    assert list((tmp_path / "tier").iterdir()) == []
    await store.put("cluster/topic/0/a", b"4")
    assert await store.get("cluster/topic/0/a") == b"4"


async def test_a_folder_that_others_remove_while_it_is_written_to_is_created_again(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    stores = [open_object_store((tmp_path / "tier").as_uri(), writer) for writer in ("one", "two")]

    async def work(store: ObjectStore, name: str) -> None:
        for number in range(50):
            await store.put(name, b"%d" % number)
            assert await store.get(name) == b"%d" % number
            await store.remove(name)

    await asyncio.gather(*(work(store, f"a/b/{place}") for place, store in enumerate(stores)))
    assert list((tmp_path / "tier").iterdir()) == []


async def test_a_folder_that_is_removed_while_it_is_listed_has_no_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tier").mkdir()
    store = open_object_store((tmp_path / "tier").as_uri(), "writer")
    await store.put("a/b/one", b"1")
    list_directory = SystemDisk.list_directory

    def removed_before(disk: SystemDisk, path: str) -> list[str]:
        if path.endswith("a/b"):
            (tmp_path / "tier/a/b/one").unlink()
            (tmp_path / "tier/a/b").rmdir()
        return list_directory(disk, path)

    monkeypatch.setattr(SystemDisk, "list_directory", removed_before)
    assert await store.names("a/") == []
