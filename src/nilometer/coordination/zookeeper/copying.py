"""A store in ZooKeeper as the source or the target of a copy (:mod:`nilometer.coordination.copying`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator, Iterator, Sequence
from typing import Final

import msgspec

from nilometer.coordination.copying import Contents, Incarnations, not_begun, read_all
from nilometer.coordination.store import Entry, Snapshot, StoreDamaged, StoreRefused, StoreUnavailable
from nilometer.coordination.zookeeper.ensemble import (
    AccessDenied,
    BadVersion,
    CheckExists,
    Connect,
    Create,
    Delete,
    Disconnected,
    NodeExists,
    NoNode,
    SetVersion,
    Step,
)
from nilometer.coordination.zookeeper.store import SECRET, ZooKeeperStore
from nilometer.coordination.zookeeper.tree import (
    COPYING,
    EMPTY_STORE,
    NO_SNAPSHOT,
    STORE,
    StoreFound,
    entry_path,
    find,
    in_chunks,
    incomplete_copy,
    is_there,
)
from nilometer.runtime import Runtime

logger = logging.getLogger("nilometer.coordination.zookeeper.copying")

STEPS_AT_ONCE: Final = 500
"""Of a transaction. With the paths and ACLs of all its steps it must be below ZooKeeper's ``jute.maxbuffer``
of 1 MB."""
BYTES_AT_ONCE: Final = 500_000
"""Of the entries in a transaction; a single entry may have more."""
SESSION_TIMEOUT_MS: Final = 6_000
OPEN_TIMEOUT_S: Final = 12.0


class ZooKeeperSource:
    def __init__(self, store: ZooKeeperStore, name: str) -> None:
        """``store``: not open yet, of a tool, that also opens a store that was moved."""
        self._store = store
        self.name = name

    @property
    def cluster_id(self) -> str:
        return self._store.cluster_id

    @property
    def moved_to(self) -> str:
        return self._store.moved_to

    async def open(self) -> None:
        await self._store.open()

    async def users(self) -> list[str]:
        return [f"broker {session.broker_id}" for session in await self._store.sessions()]

    async def note_moved(self, target: str) -> None:
        await self._store.note_moved(target)

    async def contents(self) -> Contents:
        await self._store.sync()
        await self._store.check_still_moved()
        return await read_all(self._store, self.cluster_id, await self._store.read_secret())

    async def close(self) -> None:
        await self._store.close()


class ZooKeeperTarget:
    """A tree that does not exist yet. Until it is published, ``/store`` names what is copied to it.

    Each command that begins a copy raises the version of ``/store``, and all that a command writes or deletes
    is bound to the version that it knows: if its session has ended, another command may copy.
    """

    def __init__(self, runtime: Runtime, hosts: str, connect: Connect) -> None:
        self._runtime = runtime
        self._hosts = hosts
        self._connect = connect
        self._ensemble = connect(SESSION_TIMEOUT_MS, _nothing, _nothing)
        self._is_started = False
        self._made = StoreFound("", 0)
        self._version = 0
        """That of ``/store``."""

    @property
    def name(self) -> str:
        return f"zookeeper://{self._hosts}"

    async def open(self, source: str, cluster_id: str, *, is_repeated: bool = False) -> None:
        with self._reached():
            await self._ensemble.start(OPEN_TIMEOUT_S)
            self._is_started = True
            if not self._ensemble.protects:
                logger.warning(
                    "The nodes at %s get no ACLs: set zookeeper.set.acl=true for them", self._hosts
                )
            made = StoreFound(cluster_id, 0, copied_from=source)
            there = await is_there(self._ensemble, self._hosts)
            if there:
                await self._check(made, is_repeated)
            elif is_repeated:
                raise not_begun(source, self.name)
            steps: list[Step] = [Create(COPYING, b"", ephemeral=True)]
            if not there:
                await self._ensemble.ensure("/")
                steps.append(Create(STORE, made.encoded()))
            try:
                await self._ensemble.commit(steps)
            except NodeExists as error:
                raise StoreRefused(
                    f"another command copies metadata to {self._hosts}, or has ended less than "
                    f"{SESSION_TIMEOUT_MS // 1000} seconds ago"
                ) from error
            self._made = made
            if there:
                self._version = (await self._ensemble.get(STORE)).version
                await self._check(made, is_repeated)  # another command may have ended in between
                await self._describe(made)

    async def _describe(self, made: StoreFound) -> None:
        """Write ``/store``. Raises BadVersion if another command has."""
        await self._ensemble.set(STORE, made.encoded(), self._version)
        self._made, self._version = made, self._version + 1

    async def _commit(self, steps: Sequence[Step]) -> None:
        """Raises BadVersion if another command copies."""
        await self._ensemble.commit([CheckExists(STORE, self._version), *steps])

    async def _check(self, wanted: StoreFound, is_repeated: bool) -> None:
        """Raise StoreRefused unless it is an interrupted copy of the same store."""
        found = await find(self._ensemble, self._hosts, None)
        if is_repeated and found == msgspec.structs.replace(
            wanted,
            copied_from="",
            created_zxid=found.created_zxid,
            incarnations_above=found.incarnations_above,
        ):
            raise StoreRefused(f"{self._hosts} has all the metadata of {wanted.copied_from} already: use it")
        if not found.copied_from:
            raise StoreRefused(
                f"{self._hosts} has the metadata of {found.cluster_id}, and nothing was changed: name a "
                "chroot that does not exist yet"
            )
        if (found.copied_from, found.cluster_id) != (wanted.copied_from, wanted.cluster_id):
            raise incomplete_copy(self._hosts, found)

    async def write(self, contents: Contents, incarnations: Incarnations) -> None:
        with self._reached():
            await self._empty()  # of a copy that was interrupted
            highest = max(incarnations.values(), default=0)
            await self._describe(msgspec.structs.replace(self._made, incarnations_above=highest))
            await self._commit([Create(path, data) for path, data in EMPTY_STORE if path != "/snapshot"])
            await self._raise_version("/next", contents.next_number)
            await self._write_snapshot(contents.snapshot)
            for some in in_parts(contents.entries):
                await self._commit([Create(entry_path(one.number), one.data) for one in some])
            if contents.secret is not None:
                number, data = contents.secret.number, contents.secret.data
                await self._commit([Create(SECRET, data)])
                await self._raise_version(SECRET, number, data)

    async def _write_snapshot(self, snapshot: Snapshot | None) -> None:
        node = NO_SNAPSHOT
        if snapshot is not None:
            number = snapshot.number
            node, chunks = in_chunks(number, snapshot.data, number, self._runtime.entropy)
            for chunk in chunks:
                await self._commit([chunk])
        await self._commit([Create("/snapshot", msgspec.json.encode(node))])

    async def _raise_version(self, path: str, version: int, data: bytes = b"") -> None:
        """Raise a node's version, which is 0. In the end it has ``data``."""
        for start in range(0, version, STEPS_AT_ONCE):
            numbers = range(start, min(start + STEPS_AT_ONCE, version))
            await self._commit(
                [SetVersion(path, number, data if number == version - 1 else b"") for number in numbers]
            )

    async def written(self) -> Contents:
        store = ZooKeeperStore(
            self._runtime, self._hosts, self._connect, create=False, admits_incomplete=True
        )
        await store.open()
        try:
            await store.sync()
            return await read_all(store, store.cluster_id, await store.read_secret())
        finally:
            await store.close()

    async def publish(self) -> None:
        with self._reached():
            await self._describe(msgspec.structs.replace(self._made, copied_from=""))

    async def is_published(self) -> bool:
        with self._reached():
            await self._ensemble.commit([CheckExists(STORE)])  # later reads see all earlier writes
            return not (await find(self._ensemble, self._hosts, None)).copied_from

    async def discard(self) -> None:
        with self._reached():
            await self._describe(self._made)  # what was sent before has no effect any more
            await self._empty()
            await self._commit([Delete(STORE)])

    async def close(self) -> None:
        if self._is_started:
            self._is_started = False
            await self._ensemble.stop()  # and with its session /copying

    async def _empty(self) -> None:
        """Delete everything but ``/store``."""
        tops = [path for path, _ in EMPTY_STORE if path.count("/") == 1]
        paths = [one for top in (*tops, SECRET) for one in await self._paths(top)]
        for start in range(0, len(paths), STEPS_AT_ONCE):
            await self._commit([Delete(path) for path in paths[start : start + STEPS_AT_ONCE]])

    async def _paths(self, path: str) -> list[str]:
        """Return a node after all that is below it; nothing if it is not there."""
        try:
            names = await self._ensemble.children(path)
        except NoNode:
            return []
        found: list[str] = []
        for start in range(0, len(names), STEPS_AT_ONCE):
            some = names[start : start + STEPS_AT_ONCE]
            for below in await asyncio.gather(*(self._paths(f"{path}/{name}") for name in some)):
                found += below
        return [*found, path]

    @contextlib.contextmanager
    def _reached(self) -> Generator[None]:
        """Raises StoreUnavailable if the servers do not respond, StoreRefused, StoreDamaged."""
        try:
            yield
        except AccessDenied as error:
            raise StoreRefused(
                f"the nodes at {self._hosts} have ACLs that do not permit it: {error}"
            ) from error
        except Disconnected as error:
            raise StoreUnavailable(f"ZooKeeper at {self._hosts} does not respond: {error}") from error
        except (NoNode, NodeExists, BadVersion) as error:
            raise StoreDamaged(
                f"the nodes at {self._hosts} are changed by another process: {error}"
            ) from error


def in_parts(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries in parts that one transaction can create."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and (len(part) == STEPS_AT_ONCE or size + len(entry.data) > BYTES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(entry)
        size += len(entry.data)
    if part:
        yield part


def _nothing() -> None:
    """A tool's session needs no notice of connections."""
