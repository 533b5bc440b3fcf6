"""The coordination store: sessions, a sequence of entries and a signal, shared by all brokers of a cluster.

A store has *sessions*, *a sequence of entries* with snapshots, and *a signal* that either changed. Entries,
snapshots and session payloads are opaque bytes. Every implementation passes one conformance suite, with a
test for each of these rules.

Entries
    ONE_WINNER       A number is given to one entry, once; of several concurrent appends at most one returns
                     True.
    NO_GAPS          An entry exists only after its predecessor: the numbers are 0, 1, 2, …
    FALSE_IS_FINAL   False means: this entry is not in the sequence and never will be.
    UNKNOWN_IS_SAID  A write whose outcome cannot be known raises OutcomeUnknown; the caller reads again.
    DURABLE_FIRST    No process, also not the writer, sees an entry that a crash of all machines could undo.
    RETIRED_REFUSED  An append below the newest snapshot is always rejected, however late it is.
    SYNC_SHOWS_ALL   After ``sync`` a read shows every entry that was appended before it; without it a read
                     may not show the latest entries yet.
    RETIRED_SAID     Reading below the newest snapshot raises EntriesRetired with the snapshot's number.

Sessions
    ONE_LIVE_ID      A broker id has at most one live session; a second one is rejected (BrokerIdInUse).
    DIES_WITH_OWNER  A session, and its claim on /controller, end when the owner dies, closes, or hangs for
                     longer than the session timeout.
    FRESH_INCARNATION  Every registration gets an incarnation never used before by that id; ending one
                     incarnation can never end another.
    LOSS_IS_LEARNT   An owner whose session was ended while its process was alive is notified (Session.lost),
                     and every later write with that session is rejected (SessionLost).
    DOUBT_STOPS      Session.is_live() turns False *before* others may end the session, as soon as the owner
                     may be cut off from the store: leaders check it before they act.
    ONE_CONTROLLER   At most one session holds /controller. This only decides which broker should act; it is
                     not a fence: when brokers apply the entries, they ignore those of a deposed controller.

Secret
    SECRET_APART     Only members can read the cluster's secret. It is stored apart from entries and
                     snapshots, which tools print. It is opaque here, too.
    SECRET_ONE_WINNER  Its numbers are 0, 1, 2, …; of several concurrent writes of a number at most one
                     returns True, and only the newest secret is read.

Signal
    NOTHING_MISSED   ``wait_changed(seen)`` returns once anything changed after ``seen`` was returned. It may
                     also return without a change. It has no content: the caller reads again.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from nilometer.runtime import Entropy

ENTRY_SIZE_MAX = 900_000
"""Bytes of one entry or session payload: below the 1 MB of a ZooKeeper node."""


class CoordinationError(Exception):
    """The store rejected a call or could not execute it; the message says what, where, and what to do."""


class StoreRefused(CoordinationError):
    """The store must not be used: it is another cluster's, of a newer format, or its file system is unfit."""


class StoreAbsent(StoreRefused):
    """There is no store, and the caller may not create one."""


class StoreMoved(StoreRefused):
    """The store is closed: another one has its content."""

    def __init__(self, store: str, target: str) -> None:
        super().__init__(
            f"the coordination store {store} is closed: its metadata was copied to {target}. Set the "
            "brokers' settings to that store; if the copy was interrupted, repeat it; or open this one again "
            'with "nilometer metadata reopen"'
        )
        self.target = target


class StoreUnavailable(CoordinationError):
    """The store is unavailable (disk full, no server reachable). Nothing was changed; try again later."""


class StoreDamaged(CoordinationError):
    """The content of the store is damaged. An operator must act."""


class OutcomeUnknown(CoordinationError):
    """A write may or may not have happened. Read again to find out."""


class EntryTooLarge(CoordinationError):
    def __init__(self, what: str, size: int, limit: int = ENTRY_SIZE_MAX) -> None:
        super().__init__(f"{what} of {size:,} bytes exceeds the limit of {limit:,} bytes; split it")
        self.size = size


class EntriesRetired(CoordinationError):
    """The requested numbers are below the newest snapshot: load it, then read on from its number."""

    def __init__(self, asked: int, snapshot_number: int) -> None:
        super().__init__(
            f"entry {asked} was deleted: the newest snapshot covers all entries below {snapshot_number}"
        )
        self.snapshot_number = snapshot_number


class BrokerIdInUse(CoordinationError):
    def __init__(self, broker_id: int, holder: str) -> None:
        super().__init__(
            f"broker id {broker_id} is in use by {holder}; give this broker another node.id, or stop that one"
        )
        self.broker_id = broker_id


class SessionLost(CoordinationError):
    """This session has ended. Stop leading and serving, then register again."""


class Entry(msgspec.Struct, frozen=True):
    number: int
    data: bytes


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that replaces all entries below ``number``."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredSecret:
    number: int
    data: bytes = field(repr=False)


class SessionInfo(msgspec.Struct, frozen=True, order=True):
    """A live session, as any broker can read it."""

    broker_id: int
    incarnation: int
    payload: bytes


class SessionName(msgspec.Struct, frozen=True, order=True):
    """A session's name: the broker id and the incarnation, a number that increases with each session."""

    broker_id: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.broker_id}.{self.incarnation}"


class Session(Protocol):
    """The owner's view of its session."""

    @property
    def name(self) -> SessionName: ...

    def is_live(self) -> bool:
        """Return whether the owner may still lead and serve: False if the session is lost or may be.

        Cheap.
        """
        ...

    @property
    def lost(self) -> bool:
        """Whether the session has certainly ended."""
        ...

    async def wait_lost(self) -> str:
        """Wait until the session has ended; return the reason."""
        ...


class CoordinationStore(Protocol):
    """The interface of a store. ``close`` makes all waiting calls raise StoreUnavailable."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id, created when the store was opened for the first time. Known once open."""
        ...

    async def open(self) -> None:
        """Connect, and create the store if it does not exist. Raises StoreRefused or StoreUnavailable."""
        ...

    async def close(self) -> None:
        """End the session at once, if there is one, and release all resources."""
        ...

    # ---- entries

    async def append(self, expected_next: int, entry: bytes) -> bool:
        """Append ``entry`` with number ``expected_next``; return False if that is not the next number.

        Raises SessionLost if this store's session has ended, EntryTooLarge, StoreUnavailable (nothing was
        written), OutcomeUnknown (it may have been written).
        """
        ...

    async def read(self, from_number: int, limit: int) -> list[Entry]:
        """Return at most ``limit`` entries from ``from_number`` on, without gaps; empty only at the end.

        Fewer than ``limit`` entries do not mean that the end was reached: a read is limited in bytes, too.
        Raises EntriesRetired, StoreUnavailable, StoreDamaged.
        """
        ...

    async def sync(self) -> None:
        """Wait until reads show all entries that any broker appended before this call.

        A read may otherwise be served by a server that lags behind the others. Callers need this to read
        entries that another broker has seen, but not after the signal. Raises StoreUnavailable.
        """
        ...

    async def read_snapshot(self) -> Snapshot | None:
        """Return the newest snapshot, None if there is none."""
        ...

    async def write_snapshot(self, number: int, data: bytes) -> bool:
        """Replace all entries below ``number`` by a snapshot. They must all exist; ``data`` has any size.

        Returns False if there is a snapshot of that number or a later one.
        """
        ...

    # ---- sessions

    async def register(self, broker_id: int, payload: bytes) -> Session:
        """Start a session; ``payload`` is visible to all brokers.

        Raises BrokerIdInUse while another session of this id is live.
        """
        ...

    async def sessions(self) -> list[SessionInfo]:
        """Return all live sessions, ordered by broker id."""
        ...

    async def claim_controller(self) -> bool:
        """Claim /controller for this store's session if no session holds it; return whether it holds it."""
        ...

    async def resign_controller(self) -> None:
        """Release /controller if this store's session holds it."""
        ...

    async def controller(self) -> SessionName | None:
        """Return the session that holds /controller, or None."""
        ...

    # ---- the secret

    async def read_secret(self) -> StoredSecret | None:
        """Return the newest secret, None if there is none. Raises StoreUnavailable, StoreDamaged."""
        ...

    async def put_secret(self, number: int, data: bytes) -> bool:
        """Store ``data`` as the secret with this number, which must be the newest one's plus 1 (first: 0).

        Returns False if another process has stored that number. Raises as :meth:`append` does.
        """
        ...

    # ---- signal

    async def wait_changed(self, seen: int) -> int:
        """Wait until something may have changed since ``seen`` was returned; return another value.

        Start with -1, which returns at once. Read everything of interest after each return.
        """
        ...


# The signal of changes: a number that only increases, and tasks that wait for an increase.
#
# Invariant: a task that got value v, then read the state, and waits with v, is woken by any later change.


class ChangeSignal:
    def __init__(self) -> None:
        self._value = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False

    def notify(self) -> None:
        self._value += 1
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    async def wait(self, seen: int) -> int:
        while self._value == seen and not self._closed:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:  # cancelled before it was woken
                    self._waiters.remove(waiter)
        if self._closed:
            raise StoreUnavailable("the coordination store was closed")
        return self._value

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


# Unique ids.


def new_id(entropy: Entropy) -> str:
    """Return a random id of 22 characters, in the form of Kafka's cluster ids."""
    return base64.urlsafe_b64encode(entropy.uuid().bytes).decode().rstrip("=")
