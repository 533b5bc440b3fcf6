"""The embedded store: a folder that the brokers of one machine share, without a server.

Two loops run while the store is open: one checks for changes (the next number, the sessions folder, the
locks), one increments the heartbeat of this process's own session. Both use only the runtime interface, so
the real store runs in simulation.

Invariants:

- every write first checks that the own session is live;
- after a pause of more than half the session timeout the session is verified on the disk before it is used;
- a lost session stays lost; registering again creates another session, in the same store that was opened and
  not in one that has replaced it.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable
from typing import TypeVar

from nilometer.coordination.local import layout
from nilometer.coordination.local.entries import EntryFolders
from nilometer.coordination.local.layout import FolderGuard, StagedFiles, StoreDescription, unavailable
from nilometer.coordination.local.sessions import (
    CHECKS_PER_TIMEOUT,
    HEARTBEATS_PER_TIMEOUT,
    VERIFY_FRACTION,
    OwnSessionFiles,
    SessionFolder,
)
from nilometer.coordination.store import (
    ChangeSignal,
    CoordinationError,
    EntriesRetired,
    Entry,
    OutcomeUnknown,
    SessionInfo,
    SessionLost,
    SessionName,
    Snapshot,
    StoreAbsent,
    StoreDamaged,
    StoredSecret,
    StoreUnavailable,
    new_id,
)
from nilometer.runtime import Disk, DiskWatch, Runtime

# Reading a local store without a session: takes no lock, creates and syncs nothing.
#
# For tools that read while brokers run. An entry that was read may be lost in a crash of the machine: use it
# for display, not for decisions.

T = TypeVar("T")

RESOLVE_ATTEMPTS_MAX = 50
"""How often a read is repeated because the folder was retired meanwhile."""


class LocalReader:
    """The read operations of a local store (``StoreReader``)."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """Raises StoreAbsent if ``folder`` is not a store."""
        self._disk = disk
        self._root = folder
        self._entries = posixpath.join(folder, layout.ENTRIES)
        if not disk.exists(posixpath.join(folder, layout.STORE)):
            raise StoreAbsent(f"{folder} contains no coordination store")

    async def close(self) -> None:
        """Do nothing: there are no resources to release."""

    async def read(self, from_number: int, limit: int) -> list[Entry]:
        return await self._disk.offload(lambda: self._retried(lambda: self._read(from_number, limit)))

    async def read_snapshot(self) -> Snapshot | None:
        return await self._disk.offload(lambda: self._retried(self._read_snapshot))

    def _retried(self, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until no file was missing: a snapshot may have retired the folder meanwhile."""
        for _ in range(RESOLVE_ATTEMPTS_MAX):
            try:
                return attempt()
            except FileNotFoundError:
                continue
        raise StoreUnavailable(
            f"the entries in {self._entries} were replaced during every attempt to read them; try again"
        )

    def _read(self, first: int, limit: int) -> list[Entry]:
        folder = self._newest_folder()
        if folder is None:
            return []
        if first < folder.base:
            raise EntriesRetired(first, folder.base)
        path, number = posixpath.join(self._entries, folder.text), first
        entries: list[Entry] = []
        while len(entries) < limit:
            file = posixpath.join(path, layout.entry_name(number))
            if not self._disk.exists(file):
                break
            kind, data = layout.unwrap(file, self._disk.read_file(file))
            if kind == layout.KIND_SEAL:
                path = self._folder_named(data.decode())
                continue
            entries.append(Entry(number, data))
            number += 1
        return entries

    def _read_snapshot(self) -> Snapshot | None:
        folder = self._newest_folder()
        if folder is None or folder.base == 0:
            return None
        path = posixpath.join(self._entries, folder.text, layout.SNAPSHOT)
        return Snapshot(folder.base, layout.unwrap(path, self._disk.read_file(path))[1])

    def _newest_folder(self) -> layout.FolderName | None:
        return layout.newest_folder(self._disk.list_directory(self._entries))

    def _folder_named(self, name: str) -> str:
        """Return the path of the folder ``name``, current or not yet renamed into place."""
        for parent in (self._entries, posixpath.join(self._root, layout.PREPARING)):
            path = posixpath.join(parent, name)
            if self._disk.exists(path):
                return path
        raise FileNotFoundError(name)


# The cluster's secret, in a folder that only the owner of the store may read.
#
# A new secret is linked with its number as name: of several writers one succeeds. Then the files with lower
# numbers are emptied. They are not removed, so that a slow writer cannot get a number that was used before.

logger = logging.getLogger("nilometer.coordination.local.secret")


class SecretFolder:
    """Reads and writes the secrets. Every method may block, and raises OSError if the disk fails."""

    def __init__(self, disk: Disk, root: str, staged: StagedFiles) -> None:
        self._disk = disk
        self._root = root
        self._path = posixpath.join(root, layout.MEMBERS)
        self._staged = staged
        self._warned = False

    def open(self) -> None:
        self._disk.make_directories(self._path, private=True)
        self._disk.sync_directory(self._root)

    def read(self) -> StoredSecret | None:
        """Return the secret with the highest number; None if there is none.

        Before it returns, the folder is synced, so that a power failure cannot remove the secret's file after
        a caller has used it. Raises StoreDamaged if the file is empty or its checksum is wrong.
        """
        numbers = layout.secret_numbers(self._disk.list_directory(self._path))
        while numbers:
            path = self._file(numbers[-1])
            content = self._disk.read_file(path)
            if content:
                self._disk.sync_directory(self._path)
                self._warn_unless_private(path)
                return StoredSecret(numbers[-1], layout.unwrap(path, content)[1])
            after = layout.secret_numbers(self._disk.list_directory(self._path))
            if after == numbers:
                raise StoreDamaged(f"{path} is empty; restore the store's folder from a copy")
            numbers = after  # a newer secret was written meanwhile
        return None

    def put(self, number: int, data: bytes) -> bool:
        newest = self.read()
        if number != (0 if newest is None else newest.number + 1):
            return False
        staged_path = self._staged.new_path()
        self._staged.write(staged_path, layout.wrap(layout.KIND_SECRET, data), private=True)
        try:
            self._disk.link(staged_path, self._file(number))
        except FileExistsError:
            return False
        finally:
            self._staged.discard(staged_path)
        self._disk.sync_directory(self._path)
        self._empty_below(number)
        return True

    def _empty_below(self, number: int) -> None:
        for older in layout.secret_numbers(self._disk.list_directory(self._path)):
            if older < number and self._disk.file_size(self._file(older)):
                empty = self._staged.new_path()
                self._staged.write(empty, b"", private=True)
                self._disk.rename(empty, self._file(older))
        self._disk.sync_directory(self._path)

    def _file(self, number: int) -> str:
        return posixpath.join(self._path, layout.secret_name(number))

    def _warn_unless_private(self, path: str) -> None:
        if self._warned or (self._disk.is_private(self._path) and self._disk.is_private(path)):
            return
        self._warned = True
        logger.warning(
            "Other users of this machine may read the cluster's secret %s, and act as a broker with it: "
            "run chmod 700 %s && chmod 600 %s, then rotate the secret",
            path,
            self._path,
            path,
        )


RETRY_MS = 20
"""The wait after a look at the folders failed: what it was woken for is still to be seen."""


class LocalSession:
    """This process's session. ``is_live`` reads the clock, and after a pause checks two names on the disk."""

    def __init__(
        self,
        own: OwnSessionFiles,
        folder: SessionFolder,
        runtime: Runtime,
        timeout_ms: int,
        on_lost: Callable[[], None],
    ) -> None:
        self.own = own
        self._folder = folder
        self._clock = runtime.clock
        self._verify_after_ms = timeout_ms // VERIFY_FRACTION
        self._last_heartbeat_ms = runtime.clock.monotonic_ms()
        self._on_lost = on_lost
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def name(self) -> SessionName:
        return self.own.name

    @property
    def lost(self) -> bool:
        return self._lost.done()

    def is_live(self) -> bool:
        if self._lost.done():
            return False
        if self._clock.monotonic_ms() - self._last_heartbeat_ms > self._verify_after_ms:
            return self.heartbeat()
        return True

    async def wait_lost(self) -> str:
        return await asyncio.shield(self._lost)

    def heartbeat(self) -> bool:
        """Check on the disk whether the session is live; if so, increment its heartbeat and return True."""
        if self._lost.done():
            return False
        try:
            if self._folder.is_expired(self.name):
                self.lose("another broker ended it: no heartbeat came for longer than the session timeout")
                return False
            self.own.heartbeat()
        except OSError as error:
            logger.error("The heartbeat of session %s failed: %s", self.name, error)
            return False
        self._last_heartbeat_ms = self._clock.monotonic_ms()
        return True

    def lose(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)
            self.own.close()
            self._on_lost()


class LocalStore:
    def __init__(
        self,
        runtime: Runtime,
        folder: str,
        *,
        session_timeout_ms: int = 6000,
        cluster_id: str | None = None,
        create: bool = True,
    ) -> None:
        """Without ``create`` a missing store is not created, and :meth:`open` raises StoreAbsent."""
        self._runtime = runtime
        self._disk = runtime.disk
        self._root = folder
        self._timeout_ms = session_timeout_ms
        self._cluster_id = cluster_id
        self._create = create
        self._token = new_id(runtime.entropy)
        self._staged = StagedFiles(runtime.disk, posixpath.join(folder, layout.STAGED), self._token)
        self._guard = FolderGuard(runtime.disk, folder, self._staged)
        self._description: StoreDescription | None = None
        self._watch: DiskWatch | None = None
        self._entries = EntryFolders(
            runtime.disk, folder, self._staged, self._token, self._on_entries_folder_changed
        )
        self._sessions = SessionFolder(runtime.disk, folder, self._staged, session_timeout_ms)
        self._secret = SecretFolder(runtime.disk, folder, self._staged)
        self._session: LocalSession | None = None
        self._signal = ChangeSignal()
        self._tasks: list[asyncio.Task[None]] = []
        self._last_error = ""
        self._opened = False

    @property
    def cluster_id(self) -> str:
        assert self._cluster_id is not None, "known once open"
        return self._cluster_id

    async def open(self) -> None:
        guard = self._guard
        fresh = new_id(self._runtime.entropy)
        description = await self._disk.offload(
            lambda: guard.open(self._token, self._cluster_id, fresh, create=self._create)
        )
        self._description, self._cluster_id = description, description.cluster_id
        try:
            await self._entries.open(description.first_folder)
            guard.remove_stale_staged_files(self._runtime.clock.wall_ms())
            self._sessions.open()
            await self._disk.offload(self._secret.open)
        except OSError as error:
            raise unavailable(f"opening the coordination store in {self._root}", error) from error
        self._opened = True
        await self._look()
        self._tasks.append(asyncio.get_running_loop().create_task(self._watch_loop()))

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            try:
                await task
            except asyncio.CancelledError:
                pass
        self._tasks.clear()
        try:
            if self._session is not None and not self._session.lost:
                self._session.lose("the store was closed")
                self._sessions.expire(self._session.name)
        except OSError as error:
            logger.warning("Could not end this broker's session: %s. Other brokers will end it", error)
        finally:
            self._sessions.close()
            self._signal.close()

    # ---- entries

    async def append(self, expected_next: int, entry: bytes) -> bool:
        self._check_live()
        done = await self._entries.append(expected_next, entry)
        if done:
            self._signal.notify()
        return done

    async def read(self, from_number: int, limit: int) -> list[Entry]:
        self._check_open()
        try:
            return await self._entries.read(from_number, limit)
        except OSError as error:
            raise unavailable(f"reading entries from {from_number}", error) from error

    async def sync(self) -> None:
        self._check_open()  # nothing to do: every read of the folder shows all entries

    async def read_snapshot(self) -> Snapshot | None:
        self._check_open()
        try:
            return await self._entries.read_snapshot()
        except OSError as error:
            raise unavailable("reading the newest snapshot", error) from error

    async def write_snapshot(self, number: int, data: bytes) -> bool:
        self._check_live()
        done = await self._entries.write_snapshot(number, data)
        if done:
            self._signal.notify()
        return done

    # ---- sessions

    async def register(self, broker_id: int, payload: bytes) -> LocalSession:
        self._check_open()
        if self._session is not None and not self._session.lost:
            raise ValueError(f"this store already has session {self._session.name}: one broker per process")
        await self._disk.offload(lambda: self._guard.check_is(self._description))
        own = await self._sessions.register(broker_id, payload)
        session = self._session = LocalSession(
            own, self._sessions, self._runtime, self._timeout_ms, self._signal.notify
        )
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.get_running_loop().create_task(self._heartbeat_loop(session)))
        self._signal.notify()
        return session

    async def sessions(self) -> list[SessionInfo]:
        self._check_open()
        try:
            return await self._sessions.live(self._own(), self._runtime.clock.monotonic_ms())
        except OSError as error:
            raise unavailable("reading the sessions", error) from error

    async def claim_controller(self) -> bool:
        session = self._check_live()
        if session is None:
            raise ValueError("only a registered broker can become the controller")
        try:
            return self._sessions.claim(session.name)
        except OSError as error:
            raise unavailable("claiming /controller", error) from error

    async def resign_controller(self) -> None:
        session = self._check_live()
        if session is not None:
            try:
                self._sessions.resign(session.name)
            except OSError as error:
                raise unavailable("resigning as controller", error) from error

    async def controller(self) -> SessionName | None:
        self._check_open()
        try:
            return self._sessions.controller()
        except OSError as error:
            raise unavailable("reading /controller", error) from error

    # ---- the secret

    async def read_secret(self) -> StoredSecret | None:
        self._check_open()
        try:
            return await self._disk.offload(self._secret.read)
        except OSError as error:
            raise unavailable("reading the cluster's secret", error) from error

    async def put_secret(self, number: int, data: bytes) -> bool:
        self._check_live()
        try:
            return await self._disk.offload(lambda: self._secret.put(number, data))
        except OSError as error:
            raise OutcomeUnknown(f"it is not known whether secret {number} was written: {error}") from error

    # ---- signal

    async def wait_changed(self, seen: int) -> int:
        return await self._signal.wait(seen)

    # ---- loops

    async def _watch_loop(self) -> None:
        while True:
            folder = self._entries.watched_folder
            watch = self._watch = self._disk.watch([self._sessions.path, folder])
            try:
                while folder == self._entries.watched_folder:
                    is_read = await self._look()
                    await watch.wait(self._timeout_ms // CHECKS_PER_TIMEOUT if is_read else RETRY_MS)
            finally:
                self._watch = None
                watch.close()

    def _on_entries_folder_changed(self) -> None:
        if self._watch is not None:
            self._watch.wake()

    async def _look(self) -> bool:
        """Notify of what has changed; return whether all of it could be read."""
        try:
            if self._sessions.look(self._own(), self._runtime.clock.monotonic_ms()):
                if self._session is not None:
                    self._session.heartbeat()
                self._signal.notify()
            if await self._entries.look():
                self._signal.notify()
        except (OSError, CoordinationError) as error:
            self._on_read_failed(error)
            return False
        self._last_error = ""
        return True

    def _on_read_failed(self, error: Exception) -> None:
        if self._last_error != str(error):  # once per error text, not 60 times a second
            self._last_error = str(error)
            logger.error("The coordination store in %s cannot be read: %s", self._root, error)
        if self._session is not None and self._has_vanished():
            self._session.lose(f"the coordination store's folder {self._root} vanished")

    def _has_vanished(self) -> bool:
        try:
            return not self._disk.exists(self._sessions.path)
        except OSError:
            return False  # an error does not prove that the folder is gone

    async def _heartbeat_loop(self, session: LocalSession) -> None:
        while not session.lost:
            await asyncio.sleep(self._timeout_ms / HEARTBEATS_PER_TIMEOUT / 1000)
            session.heartbeat()

    # ---- checks

    def _own(self) -> SessionName | None:
        return self._session.name if self._session is not None and not self._session.lost else None

    def _check_open(self) -> None:
        if not self._opened:
            raise StoreUnavailable("the coordination store is not open")

    def _check_live(self) -> LocalSession | None:
        """Check before a write that the session is live; return it, None for a store without a session.

        A store without a session (a tool's) may write, too. Raises SessionLost, StoreUnavailable.
        """
        self._check_open()
        session = self._session
        if session is None or session.heartbeat():
            return session
        if session.lost:
            raise SessionLost(f"session {session.name} expired; register again")
        raise StoreUnavailable(f"session {session.name} could not be verified; nothing was changed")
