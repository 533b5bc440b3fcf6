"""A copy of a store ends at any of its writes: the process, the machine or the disk fails.

There are never two stores that brokers accept, and never one that lacks something; the same copy, repeated,
is complete.
"""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Any

import pytest

from nilometer.coordination.copying import Contents, copy
from nilometer.coordination.factory import copy_source, copy_target
from nilometer.coordination.local import layout
from nilometer.coordination.store import CoordinationError, Entry, Snapshot, StoredSecret
from nilometer.raft.quorum_state import FOLDER, MetadataClosed, check_is_open, has_metadata
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy
from support.logs.memory_disk import MemoryDisk
from support.step_clock import StepClock

CONTENTS = Contents(
    cluster_id="5L6g3nShT-eMCtK--X86sw",
    snapshot=Snapshot(4, b"snapshot"),
    entries=(Entry(4, b"entry 4"), Entry(5, b"entry 5")),
    secret=StoredSecret(1, b"secret"),
)
INCARNATIONS = {1: 70, 2: 7}
COPIES = [
    ("local:/old", "local:/new"),
    ("local:/old", "quorum:/new"),
    ("quorum:/old", "local:/new"),
    ("quorum:/old", "quorum:/new"),
]


class Killed(BaseException):
    """The process has ended: nothing of it runs any more."""


class Machine:
    """A store that was filled, and what is left after each fault."""

    def __init__(self, source: str, target: str) -> None:
        self.disk = MemoryDisk()
        clock: Any = StepClock()
        self.runtime = Runtime(clock, self.disk, None, SeededEntropy(random.Random(1)))  # type: ignore[arg-type]
        self.source, self.target = source, target
        asyncio.run(self._fill())
        self.disk.sync_directory("/")

    async def _fill(self) -> None:
        new = copy_target(self.source, self.runtime, 1)
        await new.open("another", CONTENTS.cluster_id)
        await new.write(CONTENTS, INCARNATIONS)
        await new.publish()
        await new.close()

    def copy(self) -> Contents:
        async def work() -> Contents:
            old, new = copy_source(self.source, self.runtime), copy_target(self.target, self.runtime, 1)
            try:
                await old.open()
                return await copy(old, new, lambda _: INCARNATIONS)
            finally:
                await new.close()
                await old.close()

        return asyncio.run(work())

    def is_open(self, store: str) -> bool:
        """Whether a broker uses the store, or would make one of what is there."""
        scheme, _, place = store.partition(":")
        if scheme == "local":
            found = layout.describe(self.disk, place)
            return found is not None and not found.moved_to
        try:
            return check_is_open(self.disk, place) is not None and has_metadata(
                self.disk, f"{place}/{FOLDER}"
            )
        except MetadataClosed:
            return False

    def contents(self, store: str) -> Contents:
        async def work() -> Contents:
            opened = copy_source(store, self.runtime)
            try:
                await opened.open()
                return await opened.contents()
            finally:
                await opened.close()

        return asyncio.run(work())

    def check(self) -> None:
        """At most one of both is open; what is open is whole."""
        opened = [store for store in (self.source, self.target) if self.is_open(store)]
        assert len(opened) <= 1, opened
        for store in opened:
            assert self.contents(store) == CONTENTS, store

    def finish(self) -> None:
        """Repeat the copy, unless it was complete."""
        if not self.is_open(self.target):
            assert self.copy() == CONTENTS
        assert not self.is_open(self.source) and self.is_open(self.target)
        assert self.contents(self.target) == CONTENTS


def operations_of(source: str, target: str) -> int:
    machine = Machine(source, target)
    before = machine.disk.operations
    machine.copy()
    return machine.disk.operations - before


def kill_from(disk: MemoryDisk, number: int) -> None:
    first = disk.operations + number

    def fails(count: int, verb: str, path: str) -> OSError | None:
        if count >= first:
            raise Killed
        return None

    disk.fails = fails


def fill_from(disk: MemoryDisk, number: int, folder: str) -> None:
    """Let nothing more be written to the disk of ``folder``; what is removed there is not missed."""
    first = disk.operations + number

    def fails(count: int, verb: str, path: str) -> OSError | None:
        takes_space = path.startswith(folder) and verb not in ("remove", "sync")
        return OSError(errno.ENOSPC, verb, path) if count >= first and takes_space else None

    disk.fails = fails


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize(("source", "target"), COPIES)
def test_a_copy_that_is_killed_at_any_write_is_repeated(source: str, target: str, seed: int | None) -> None:
    operations = operations_of(source, target)
    assert operations > 10
    for number in range(1, operations + 1):
        machine = Machine(source, target)
        kill_from(machine.disk, number)
        with pytest.raises((Killed, CoordinationError)):
            machine.copy()
        machine.disk.work_again()
        if seed is None:
            machine.disk.crash_process()
        else:
            machine.disk.crash_machine(seed)
        machine.check()
        machine.finish()


@pytest.mark.parametrize(("source", "target"), COPIES)
def test_a_copy_that_a_write_fails_leaves_the_source_open(source: str, target: str) -> None:
    for number in range(1, operations_of(source, target) + 1):
        machine = Machine(source, target)
        machine.disk.fail_once(number, errno.EIO)
        try:
            machine.copy()
        except CoordinationError:
            machine.disk.work_again()
            machine.check()
            assert machine.is_open(source) or machine.is_open(target), number
        machine.finish()


@pytest.mark.parametrize(("source", "target"), COPIES)
def test_a_copy_to_a_disk_that_is_full_leaves_the_source_open(source: str, target: str) -> None:
    for number in range(1, operations_of(source, target) + 1):
        machine = Machine(source, target)
        disk = machine.disk
        fill_from(disk, number, "/new")
        try:
            machine.copy()
        except CoordinationError:
            machine.check()
            assert machine.is_open(source) or machine.is_open(target), number
        disk.work_again()
        machine.finish()


@pytest.mark.parametrize(("source", "target"), COPIES)
def test_a_source_that_cannot_be_opened_again_is_named(source: str, target: str) -> None:
    for number in range(1, operations_of(source, target) + 1):
        machine = Machine(source, target)
        machine.disk.fail_from(number, errno.ENOSPC)
        with pytest.raises(CoordinationError) as caught:
            machine.copy()
        machine.disk.work_again()
        machine.check()
        if not machine.is_open(source) and not machine.is_open(target):
            assert f"{source} could not be opened again" in str(caught.value), number
        machine.finish()
