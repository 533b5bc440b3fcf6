"""Sessions as files: a lock that ends with its process, a heartbeat counter that stops with its event loop.

A session is *live* while its record exists and its marker ``<id>.<incarnation>.expired`` does not. The marker
is created with ``link`` (put-if-absent), by the owner when it closes, or by any watcher that finds the lock
released or the counter unchanged. It needs no disk space (it is another name of an empty file), so sessions
of dead brokers end on a full disk, too.

The lock file of the own session is never opened twice.

Invariants:

- the order is lock, heartbeat, record: a record whose lock is not held belongs to a dead process;
- a marker is for one incarnation, and an incarnation is never used again (the newest files of an id stay);
- names are synced before any process uses them.
"""

from __future__ import annotations

import logging
import posixpath

import msgspec

from nilometer.coordination.local import layout
from nilometer.coordination.local.layout import SessionFiles, SessionRecord, StagedFiles, unavailable
from nilometer.coordination.store import (
    ENTRY_SIZE_MAX,
    BrokerIdInUse,
    EntryTooLarge,
    SessionInfo,
    SessionName,
    StoreDamaged,
)
from nilometer.runtime import Disk, DiskLock, File, LockHeld

# Detecting that the owner of a session hangs, by its heartbeat counter and the watcher's own clock.
#
# Time counts only while the watcher itself is running its checks: if the watcher was stopped, or the machine
# was suspended with all its brokers, the pause counts as at most one check interval.
#
# Invariant: a session is ended only after ``timeout_ms`` of checks with an unchanged counter.

HEARTBEATS_PER_TIMEOUT = 5
CHECKS_PER_TIMEOUT = 10
VERIFY_FRACTION = 2
"""An owner that has not incremented its counter for timeout / 2 must verify its session before it uses it."""


class _Observation(msgspec.Struct):
    counter: bytes
    checked_ms: int
    silent_ms: int


class LivenessWatch:
    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._check_ms_max = timeout_ms // HEARTBEATS_PER_TIMEOUT
        self._observations: dict[SessionName, _Observation] = {}

    def on_counter(self, session: SessionName, counter: bytes, now_ms: int) -> bool:
        """Record the counter's current value; return True if the session must be ended.

        ``now_ms`` is monotonic time.
        """
        seen = self._observations.get(session)
        if seen is None or seen.counter != counter:
            self._observations[session] = _Observation(counter, now_ms, 0)
            return False
        seen.silent_ms += min(now_ms - seen.checked_ms, self._check_ms_max)
        seen.checked_ms = now_ms
        return seen.silent_ms >= self._timeout_ms

    def forget_all_but(self, sessions: list[SessionName]) -> None:
        self._observations = {name: seen for name, seen in self._observations.items() if name in sessions}


logger = logging.getLogger("nilometer.coordination.local.sessions")

CLAIMS_KEPT = 8
"""How many claims of former controllers are kept; older ones are removed by the next controller."""


class OwnSessionFiles:
    """The files of this process's session: the lock file and the heartbeat file, each opened once."""

    def __init__(self, name: SessionName, lock: DiskLock, heartbeat: File) -> None:
        self.name = name
        self.lock = lock
        self._heartbeat = heartbeat
        self._count = 0

    def heartbeat(self) -> None:
        self._count += 1
        self._heartbeat.write_at(0, self._count.to_bytes(8, "big"))

    def close(self) -> None:
        self._heartbeat.close()


class SessionFolder:
    def __init__(self, disk: Disk, root: str, staged: StagedFiles, timeout_ms: int) -> None:
        self._disk = disk
        self.path = posixpath.join(root, layout.SESSIONS)
        self._staged = staged
        self._empty = ""
        self._liveness = LivenessWatch(timeout_ms)
        self._check_ms = timeout_ms // CHECKS_PER_TIMEOUT
        self._checked_ms: int | None = None
        self._names: list[str] = []
        self._live: list[SessionName] = []
        self._synced: list[str] = []
        self._locks: dict[int, DiskLock] = {}

    def open(self) -> None:
        self._empty = self._staged.new_path()
        self._staged.write(self._empty, b"", sync=False)

    def close(self) -> None:
        """Release all locks. Call it after the sessions were ended."""
        self._staged.discard(self._empty)
        for _, lock in sorted(self._locks.items()):
            lock.release()
        self._locks.clear()

    # ---- this process's session

    async def register(self, broker_id: int, payload: bytes) -> OwnSessionFiles:
        if len(payload) > ENTRY_SIZE_MAX:
            raise EntryTooLarge(f"the session payload of broker {broker_id}", len(payload))
        lock = self._lock(broker_id)
        files = self._list()
        for session in files.of(broker_id):
            self.expire(session)
        name = SessionName(broker_id, files.next_incarnation(broker_id))
        try:
            heartbeat = self._disk.open(self._path(layout.heartbeat_name(name)), create=True)
        except OSError as error:
            raise unavailable(f"registering broker {broker_id}", error) from error
        own = OwnSessionFiles(name, lock, heartbeat)
        try:
            own.heartbeat()
            await self._put_record(own, payload)
        except OSError as error:
            own.close()
            raise unavailable(f"registering broker {broker_id}", error) from error
        return own

    async def _put_record(self, own: OwnSessionFiles, payload: bytes) -> None:
        name = own.name
        record = SessionRecord(broker_id=name.broker_id, incarnation=name.incarnation, payload=payload)
        content = layout.wrap(layout.KIND_SESSION, msgspec.json.encode(record))
        staged_path = self._staged.new_path()
        await self._disk.offload(lambda: self._staged.write(staged_path, content))
        try:
            own.heartbeat()
            self._disk.link(staged_path, self._path(layout.session_name(name)))
        finally:
            self._staged.discard(staged_path)
        await self._disk.offload(lambda: self._disk.sync_directory(self.path))
        for old in self._list().of(name.broker_id):
            if old.incarnation < name.incarnation:
                self._remove(old)

    def _lock(self, broker_id: int) -> DiskLock:
        if broker_id not in self._locks:
            try:
                self._locks[broker_id] = self._disk.lock(self._path(layout.lock_name(broker_id)))
            except LockHeld as held:
                holder = f"process {held.holder_pid}" if held.holder_pid else "another process"
                raise BrokerIdInUse(broker_id, holder) from None
            except OSError as error:
                raise unavailable(f"locking the session of broker {broker_id}", error) from error
        return self._locks[broker_id]

    def is_expired(self, session: SessionName) -> bool:
        """Return whether a process has ended this session; also True if its record is removed. Cheap."""
        return self._disk.exists(self._path(layout.expired_name(session))) or not self._disk.exists(
            self._path(layout.session_name(session))
        )

    def expire(self, session: SessionName) -> None:
        """End one incarnation's session. Idempotent, for any process; needs no disk space."""
        self._put_empty(layout.expired_name(session))

    # ---- all sessions

    def look(self, own: SessionName | None, now_ms: int) -> bool:
        """End the sessions of dead and hung processes; return whether any session changed. Cheap.

        ``own``: this process's session, which is not checked; ``now_ms``: monotonic time.
        """
        names = self._disk.list_directory(self.path)
        changed = names != self._names
        all_live = SessionFiles.parse(names).live() if changed else self._live
        counters_due = self._checked_ms is None or now_ms - self._checked_ms >= self._check_ms
        live = [session for session in all_live if session != own]
        ended = False
        for session in live:
            if not self._disk.is_locked(self._path(layout.lock_name(session.broker_id))):
                logger.info("Session %s expired: its process has died", session)
            elif counters_due and self._liveness.on_counter(session, self._counter(session), now_ms):
                logger.warning("Session %s expired: its process does not respond", session)
            else:
                continue
            self.expire(session)
            ended = True
        if counters_due:
            self._checked_ms = now_ms
            self._liveness.forget_all_but(live)
        self._names, self._live = names, all_live  # last: after an error, the change is found again
        return changed or ended

    async def live(self, own: SessionName | None, now_ms: int) -> list[SessionInfo]:
        self.look(own, now_ms)
        await self._sync_names()
        found: list[SessionInfo] = []
        for name in SessionFiles.parse(self._synced).live():
            record = self._read_record(self._path(layout.session_name(name)))
            if record is not None:
                found.append(SessionInfo(name.broker_id, name.incarnation, record.payload))
        return found

    async def _sync_names(self) -> None:
        names = self._disk.list_directory(self.path)
        if names != self._synced:
            await self._disk.offload(lambda: self._disk.sync_directory(self.path))
            self._synced = names

    # ---- the controller

    def controller(self) -> SessionName | None:
        return self._holder(self._list())

    def _holder(self, files: SessionFiles) -> SessionName | None:
        holder = self._claimant(files.claims[-1]) if files.claims else None
        return holder if holder is not None and holder in files.live() else None

    def claim(self, own: SessionName) -> bool:
        """Claim /controller for ``own`` if it is free; return whether ``own`` holds it.

        The claimed number follows the last claim of the listing in which /controller was free: if another
        claim was made in between, it has that number already.
        """
        files = self._list()
        holder = self._holder(files)
        if holder is None:
            number = files.claims[-1] + 1 if files.claims else 1
            try:
                self._disk.link(
                    self._path(layout.session_name(own)), self._path(layout.controller_name(number))
                )
            except FileExistsError:
                pass  # another process was faster
            except FileNotFoundError:
                return False  # the session was ended, and its record removed
            holder = self.controller()  # a late claim with an old number is not the last one
        if holder == own:
            self._remove_old_claims()
        return holder == own

    def resign(self, own: SessionName) -> None:
        files = self._list()
        if self._holder(files) == own:
            self._put_empty(layout.controller_name(files.claims[-1] + 1))

    def _claimant(self, claim: int) -> SessionName | None:
        record = self._read_record(self._path(layout.controller_name(claim)))
        return SessionName(record.broker_id, record.incarnation) if record is not None else None

    def _remove_old_claims(self) -> None:
        for claim in self._list().claims[:-CLAIMS_KEPT]:
            self._discard(layout.controller_name(claim))

    # ---- files

    def _read_record(self, path: str) -> SessionRecord | None:
        """Read a session record; None if the file does not exist or is empty (the controller resigned)."""
        try:
            content = self._disk.read_file(path)
        except FileNotFoundError:
            return None
        if not content:
            return None
        try:
            return msgspec.json.decode(layout.unwrap(path, content)[1], type=SessionRecord)
        except msgspec.DecodeError as error:
            raise StoreDamaged(f"{path} is damaged: {error}") from error

    def _counter(self, session: SessionName) -> bytes:
        try:
            return self._disk.read_file(self._path(layout.heartbeat_name(session)))
        except FileNotFoundError:
            return b""

    def _remove(self, session: SessionName) -> None:
        self._discard(layout.session_name(session))
        self._discard(layout.heartbeat_name(session))
        self._discard(layout.expired_name(session))

    def _put_empty(self, name: str) -> None:
        try:
            self._disk.link(self._empty, self._path(name))
        except FileExistsError:
            pass  # another process did
        except FileNotFoundError:
            if not self._disk.exists(self.path):
                raise
            self.open()  # the empty file was removed as stale
            self._put_empty(name)

    def _discard(self, name: str) -> None:
        self._staged.discard(self._path(name))

    def _list(self) -> SessionFiles:
        return SessionFiles.parse(self._disk.list_directory(self.path))

    def _path(self, name: str) -> str:
        return f"{self.path}/{name}"
