"""A store is copied as a whole or not at all, and the target gives no incarnation again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from nilometer.cli.main import run as command
from nilometer.cli.metadata import store_setting
from nilometer.coordination.copying import Contents, Source, Target, copy
from nilometer.coordination.factory import copy_source, copy_target, make_store
from nilometer.coordination.local.layout import COPY_LOCK
from nilometer.coordination.quorum.folder_reader import inspect
from nilometer.coordination.store import (
    CoordinationStore,
    StoreDamaged,
    StoreMoved,
    StoreRefused,
    StoreUnavailable,
)
from nilometer.raft.control_records import KRaftVoters, control_batch
from nilometer.raft.quorum_state import FOLDER, identify, read_owner
from nilometer.raft.recovery import LOG_CONFIG, recover
from nilometer.runtime import Runtime
from nilometer.storage.directories.log_directory import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)

RUNTIME = Runtime.system()
DISK = RUNTIME.disk
CLUSTER, DIRECTORY_ID = "5L6g3nShT-eMCtK--X86sw", "mn53bzXASZqKMUr0o5GcNw"
INCARNATIONS = {1: 70, 2: 7}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def store_at(folder: Path, **options: Any) -> CoordinationStore:
    return make_store(f"local:{folder}", RUNTIME, local_folder="", cluster_id=CLUSTER, **options)


def fill(folder: Path, *, has_snapshot: bool = True) -> None:
    """Make a store with entries 0 to 5, those below 4 in a snapshot, and secret 1."""

    async def work() -> None:
        store = store_at(folder)
        await store.open()
        for number in range(6):
            assert await store.append(number, b"entry %d" % number)
        if has_snapshot:
            assert await store.write_snapshot(4, b"snapshot")
        assert await store.put_secret(0, b"former") and await store.put_secret(1, b"secret")
        await store.close()

    run(work())


def log_directory(folder: Path) -> Path:
    """Make the log directory of broker 1 of the cluster."""
    folder.mkdir(exist_ok=True)
    write_meta_properties(DISK, f"{folder}/meta.properties", MetaProperties(1, CLUSTER, DIRECTORY_ID))
    return folder


async def moved(
    source: str, target: str, *, spoil: Callable[[Target], None] = lambda _: None, node_id: int | None = None
) -> Contents:
    old, new = copy_source(source, RUNTIME), copy_target(target, RUNTIME, node_id)
    spoil(new)
    try:
        await old.open()
        return await copy(old, new, lambda _: INCARNATIONS)
    finally:
        await new.close()
        await old.close()


async def contents(setting: str) -> Contents:
    source = copy_source(setting, RUNTIME)
    try:
        await source.open()
        return await source.contents()
    finally:
        await source.close()


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_store_goes_to_a_quorum_and_to_another_folder(tmp_path: Path, has_snapshot: bool) -> None:
    first, second = f"local:{tmp_path / 'first'}", f"local:{tmp_path / 'second'}"
    quorum = f"quorum:{log_directory(tmp_path / 'logs')}"
    fill(tmp_path / "first", has_snapshot=has_snapshot)
    before = run(contents(first))
    assert before.next_number == 6
    assert before.secret is not None and (before.secret.number, before.secret.data) == (1, b"secret")
    assert run(moved(first, quorum)) == before == run(contents(quorum))
    assert run(moved(quorum, second)) == before == run(contents(second))

    async def goes_on() -> None:
        store = store_at(tmp_path / "second")
        await store.open()
        assert (await store.register(1, b"")).name.incarnation > INCARNATIONS[1]
        assert not await store.append(5, b"again") and await store.append(6, b"next")
        assert not await store.put_secret(1, b"again") and await store.put_secret(2, b"next")
        await store.close()

    run(goes_on())


def test_a_quorum_begins_above_the_incarnations_that_the_metadata_names(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    logs = log_directory(tmp_path / "logs")
    run(moved(f"local:{tmp_path / 'store'}", f"quorum:{logs}"))
    key = identify(DISK, str(logs), 1, CLUSTER, RUNTIME.entropy.uuid())
    assert key.directory_id == DIRECTORY_ID, "its replicas are known by it"
    found = recover(DISK, f"{logs}/{FOLDER}", LOG_CONFIG, 1)
    found.log.files.pool.close()
    assert found.voters.latest.voters == (key,)
    assert found.log.log_end_offset > max(INCARNATIONS.values())


def test_the_source_is_closed_and_opened_again(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    source, target = f"local:{tmp_path / 'store'}", f"quorum:{log_directory(tmp_path / 'logs')}"
    store = store_at(tmp_path / "store")
    run(store.open())
    run(store.close())
    run(moved(source, target))
    with pytest.raises(StoreMoved, match=f"copied to {target}"):
        run(store.open())
    with pytest.raises(StoreMoved, match=f"copied to {target}"):
        run(moved(source, f"local:{tmp_path / 'other'}"))

    async def reopened() -> None:
        opened = copy_source(source, RUNTIME)
        await opened.open()
        assert opened.moved_to == target
        await opened.note_moved("")
        await opened.close()

    run(reopened())
    run(store.open())
    run(store.close())


def test_a_broker_that_opened_the_store_before_it_was_closed_does_not_register(tmp_path: Path) -> None:
    fill(tmp_path / "store")

    async def work() -> None:
        store = store_at(tmp_path / "store")
        await store.open()
        await moved(f"local:{tmp_path / 'store'}", f"local:{tmp_path / 'other'}")
        with pytest.raises(StoreMoved):
            await store.register(1, b"")
        await store.close()

    run(work())


def test_a_store_that_a_broker_uses_is_not_closed(tmp_path: Path) -> None:
    fill(tmp_path / "store")

    async def work() -> None:
        store = store_at(tmp_path / "store")
        await store.open()
        session = await store.register(1, b"")
        with pytest.raises(StoreRefused, match="in use by broker 1"):
            await moved(f"local:{tmp_path / 'store'}", f"local:{tmp_path / 'other'}")
        assert session.is_live() and await store.append(6, b"next")
        await store.close()

    run(work())
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("step", ["write", "written", "publish"])
@pytest.mark.parametrize("scheme", ["local", "quorum"])
def test_an_interrupted_copy_counts_for_nothing_and_is_repeated(
    tmp_path: Path, scheme: str, step: str
) -> None:
    fill(tmp_path / "store")
    source = f"local:{tmp_path / 'store'}"
    target = f"{scheme}:{log_directory(tmp_path / 'logs') if scheme == 'quorum' else tmp_path / 'other'}"
    before = run(contents(source))

    def spoil(new: Target) -> None:
        done = getattr(new, step)

        async def fail(*arguments: Any) -> None:
            if step != "publish":
                await done(*arguments)
            raise StoreUnavailable("the disk is full")

        setattr(new, step, fail)

    with pytest.raises(StoreUnavailable, match="the disk is full"):
        run(moved(source, target, spoil=spoil))
    if scheme == "quorum":
        with pytest.raises(Exception, match="has an incomplete copy of the metadata of"):
            identify(DISK, str(tmp_path / "logs"), 1, CLUSTER, RUNTIME.entropy.uuid())
    else:
        assert not (tmp_path / "other").exists()
    run(store_at(tmp_path / "store").open())
    assert run(moved(source, target)) == before == run(contents(target))


def test_what_is_not_read_as_it_was_written_is_not_published(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    source, target = f"local:{tmp_path / 'store'}", f"local:{tmp_path / 'other'}"

    def spoil(new: Target) -> None:
        written = new.written

        async def less() -> Contents:
            found = await written()
            return Contents(
                cluster_id=found.cluster_id,
                snapshot=found.snapshot,
                entries=found.entries[:-1],
                secret=found.secret,
            )

        new.written = less

    with pytest.raises(StoreDamaged, match="does not have what was written"):
        run(moved(source, target, spoil=spoil))
    assert not (tmp_path / "other").exists()


def test_a_target_that_has_something_is_refused_and_not_changed(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    fill(tmp_path / "taken")
    source = f"local:{tmp_path / 'store'}"
    (tmp_path / "file").write_text("x")
    kafka = tmp_path / "kafka" / FOLDER
    kafka.mkdir(parents=True)
    (kafka / "00000000000000000000.log").write_text("x")
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").write_text("x")
    other = log_directory(tmp_path / "other")
    write_meta_properties(DISK, f"{other}/meta.properties", MetaProperties(1, "another", DIRECTORY_ID))
    (tmp_path / "store" / COPY_LOCK).touch()
    before = sorted(map(str, tmp_path.rglob("*")))
    for target, why in (
        (f"local:{tmp_path / 'taken'}", "has the metadata of"),
        (f"local:{full}", "is not empty"),
        (f"local:{tmp_path / 'file'}", "is a file"),
        (source, "has the metadata of"),
        (f"quorum:{tmp_path / 'file'}", "is a file"),
        (f"quorum:{tmp_path / 'kafka'}", "perhaps one of Apache Kafka"),
        (f"quorum:{other}", "belongs to cluster another"),
        (f"quorum:{tmp_path / 'none'}", "--node-id"),
    ):
        with pytest.raises((StoreRefused, StoreDamaged), match=why):
            run(moved(source, target))
        assert sorted(map(str, tmp_path.rglob("*"))) == before, target
    run(moved(source, f"quorum:{tmp_path / 'none'}", node_id=4))
    properties = read_meta_properties(DISK, str(tmp_path / "none" / "meta.properties"))
    assert properties is not None and (properties.node_id, properties.cluster_id) == (4, CLUSTER)


def test_a_target_that_cannot_be_put_in_place_leaves_the_source_open(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreUnavailable, match="link failed: "):
        run(moved(f"local:{tmp_path / 'store'}", f"local:{tmp_path / 'link'}"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "store"]
    run(store_at(tmp_path / "store").open())


@pytest.mark.parametrize("scheme", ["local", "quorum"])
def test_a_store_is_copied_by_one_command_at_a_time(tmp_path: Path, scheme: str) -> None:
    fill(tmp_path / "store")
    fill(tmp_path / "second")
    source = f"local:{tmp_path / 'store'}"
    if scheme == "quorum":
        run(moved(source, quorum := f"quorum:{log_directory(tmp_path / 'first')}"))
        source = quorum
    target = f"{scheme}:{log_directory(tmp_path / 'logs') if scheme == 'quorum' else tmp_path / 'other'}"
    before = run(contents(source))
    refused: list[str] = []

    def spoil(new: Any) -> None:
        write = new.write

        async def meanwhile(*arguments: Any) -> None:
            for one, other in (
                (source, f"local:{tmp_path / 'third'}"),
                (f"local:{tmp_path / 'second'}", target),
            ):
                with pytest.raises(StoreRefused) as caught:
                    await moved(one, other)
                refused.append(str(caught.value))
            await write(*arguments)

        new.write = meanwhile

    assert run(moved(source, target, spoil=spoil)) == before == run(contents(target))
    assert len(refused) == 2
    assert not (tmp_path / "third").exists()
    run(store_at(tmp_path / "second").open())


@pytest.mark.parametrize("step", ["write", "written", "publish"])
def test_a_copy_that_is_interrupted_ends_before_the_source_is_opened_again(tmp_path: Path, step: str) -> None:
    fill(tmp_path / "store")
    source, target = f"local:{tmp_path / 'store'}", f"local:{tmp_path / 'other'}"
    before = run(contents(source))

    async def work() -> None:
        def spoil(new: Target) -> None:
            done = getattr(new, step)

            async def interrupted(*arguments: Any) -> Any:
                task.cancel()
                return await done(*arguments)

            setattr(new, step, interrupted)

        task = asyncio.ensure_future(moved(source, target, spoil=spoil))
        with pytest.raises((asyncio.CancelledError, StoreUnavailable)):
            await task

    run(work())
    if step == "publish":
        assert run(contents(target)) == before
        with pytest.raises(StoreMoved):
            run(store_at(tmp_path / "store").open())
    else:
        assert sorted(one.name for one in tmp_path.iterdir()) == ["store"]
        run(store_at(tmp_path / "store").open())


@pytest.mark.parametrize("scheme", ["local", "quorum"])
def test_a_store_is_not_copied_again_on_another_machine(tmp_path: Path, scheme: str) -> None:
    fill(tmp_path / "store")
    source, target = f"local:{tmp_path / 'store'}", f"{scheme}:{tmp_path / 'new'}"
    run(moved(source, target, node_id=1))
    shutil.rmtree(tmp_path / "new")  # so it looks there
    with pytest.raises(StoreRefused, match="perhaps on another machine"):
        run(moved(source, target, node_id=2))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["store"]


def test_a_directory_whose_id_may_have_voted_gets_another_one(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    logs = log_directory(tmp_path / "logs")
    identify(DISK, str(logs), 1, CLUSTER, RUNTIME.entropy.uuid())
    DISK.remove_tree(f"{logs}/{FOLDER}")
    run(moved(f"local:{tmp_path / 'store'}", f"quorum:{logs}"))
    owner = read_owner(DISK, f"{logs}/{FOLDER}")
    assert owner is not None and owner.directory_id != DIRECTORY_ID


def test_a_secret_that_only_a_quorum_can_read_does_not_leave_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed = b"\x01encrypted"

    async def make() -> None:
        store = store_at(tmp_path / "store")
        await store.open()
        assert await store.put_secret(0, sealed)
        await store.close()

    run(make())
    first, second = f"local:{tmp_path / 'store'}", f"local:{tmp_path / 'second'}"
    quorum = f"quorum:{log_directory(tmp_path / 'logs')}"
    assert command(["metadata", "copy", "--from", first, "--to", quorum]) == 0
    kept = run(contents(quorum)).secret
    assert kept is not None and kept.data == sealed
    capsys.readouterr()
    assert command(["metadata", "copy", "--from", quorum, "--to", second]) == 0
    assert "they make another one" in capsys.readouterr().out
    assert run(contents(second)).secret is None


def test_tools_find_the_metadata_where_it_is_now(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "broker-1").mkdir(parents=True)
    fill(data / "coordination")
    logs = log_directory(data / "broker-1" / "logs")
    former = f"local:{data / 'coordination'}"
    assert store_setting(data, None) == former
    run(moved(former, f"quorum:{logs}"))
    assert store_setting(data, None) == f"quorum:{logs}"
    shutil.rmtree(logs)
    assert store_setting(data, None) == former


def test_only_the_last_voter_of_a_quorum_is_a_source(tmp_path: Path) -> None:
    source: Source = copy_source(f"quorum:{tmp_path}", RUNTIME)
    with pytest.raises(StoreRefused, match="has no metadata log of a quorum"):
        run(source.open())


def test_a_damaged_log_of_a_quorum_is_not_copied_and_not_cut(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    quorum = f"quorum:{log_directory(tmp_path / 'logs')}"
    run(moved(f"local:{tmp_path / 'store'}", quorum))
    folder = f"{tmp_path / 'logs'}/{FOLDER}"
    found = recover(DISK, folder, LOG_CONFIG, 1)
    log, voters = found.log, KRaftVoters(tuple(found.entries.of(one) for one in found.voters.latest.voters))
    for _ in range(2):
        log.append_as_follower(control_batch([voters], log.log_end_offset, 1, 1), wall_ms=1)
    log.files.pool.close()
    (path,) = Path(folder).glob("*.log")
    whole, before = path.read_bytes(), inspect(DISK, str(tmp_path / "logs"))
    assert before is not None and before.damage is None
    spoiled = [whole[:-1]]
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 0x04
        spoiled.append(bytes(flipped))
    unnoticed = 0
    for content in spoiled:
        path.write_bytes(content)
        try:
            run(contents(quorum))
        except StoreDamaged:
            assert path.read_bytes() == content
        else:
            unnoticed += 1
    assert unnoticed <= 2 * 4, "only the epoch of a batch is not covered by its checksum"
    path.write_bytes(whole)
    run(contents(quorum))


def test_a_log_directory_without_its_properties_is_named(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    logs = log_directory(tmp_path / "logs")
    run(moved(f"local:{tmp_path / 'store'}", f"quorum:{logs}"))
    (logs / "meta.properties").unlink()
    with pytest.raises(StoreDamaged, match=r"has no meta\.properties"):
        run(contents(f"quorum:{logs}"))


def test_damage_of_the_owner_is_named_by_storage_info(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "store")
    logs = log_directory(tmp_path / "logs")
    run(moved(f"local:{tmp_path / 'store'}", f"quorum:{logs}"))
    (logs / FOLDER / "nilometer.properties").write_text("")
    assert command(["storage", "info", str(logs)]) == 1
    assert "nilometer.properties: has directory.id" in capsys.readouterr().err
