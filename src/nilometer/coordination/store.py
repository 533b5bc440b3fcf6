"""The coordination store: what a cluster agrees through, and nothing more.

A store offers three things: *sessions*, *a sequence of entries* with snapshots, and *a signal* that
either changed. Entries, snapshots and session payloads are opaque bytes: nothing here knows of
partitions or records. Every implementation passes one conformance suite, test by test these rules.

Entries
    ONE_WINNER       A number is given to one entry, once; of several contenders at most one is told True.
    NO_GAPS          An entry stands only behind its predecessor: the numbers are 0, 1, 2, …
    FALSE_IS_FINAL   False means: this entry is not in the sequence and never will be.
    UNKNOWN_IS_SAID  A write whose outcome cannot be known raises OutcomeUnknown; the caller reads again.
    DURABLE_FIRST    Nobody, author or reader, is shown an entry that the death of all machines could undo.
    RETIRED_REFUSED  A number below the newest snapshot stays refused for ever, however late its writer comes.
    SYNC_SHOWS_ALL   After ``sync`` a read shows every entry that was appended before it; without, a read may
                     lag behind those of others.
    RETIRED_SAID     Reading below the newest snapshot raises EntriesRetired, which names the snapshot.

Sessions
    ONE_LIVE_ID      A broker id has at most one live session; a second one is refused (BrokerIdInUse).
    DIES_WITH_OWNER  A session, and its claim on /controller, vanish when the owner dies, closes, or hangs for
                     longer than the session timeout.
    FRESH_INCARNATION  Every registration gets an incarnation never used before by that id; ending one
                     incarnation can never end another.
    LOSS_IS_LEARNT   An owner whose session was ended while it lived learns of it (Session.lost), and every
                     write through that session is refused from then on (SessionLost).
    DOUBT_STOPS      Session.is_live() turns False *before* others may end the session, as soon as the owner
                     can tell that it may be cut off: whoever leads asks it before acting.
    ONE_CONTROLLER   At most one session holds /controller. This is a hint about who should act, not a fence:
                     what a deposed controller appends is voided by the fold over the entries.

Secret
    SECRET_APART     The cluster's secret is kept for members alone, apart from entries and snapshots, which
                     tools print. It is opaque here, too.
    SECRET_ONE_WINNER  Its numbers are 0, 1, 2, …, each given to one content; of several contenders at most
                     one is told True, and only the newest is read.

Signal
    NOTHING_MISSED   ``wait_changed(seen)`` returns once anything changed after the state that ``seen`` stands
                     for. It may return without cause. Content is never pushed: whoever is woken reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

ENTRY_SIZE_MAX = 900_000
"""Bytes of one entry or session payload: below the 1 MB of a ZooKeeper node."""


class CoordinationError(Exception):
    """Something the store refused or could not do; the message says what, where, and what to do."""


class StoreRefused(CoordinationError):
    """The store must not be used: another cluster's, a newer format, a file system without what it takes."""


class StoreUnavailable(CoordinationError):
    """The store cannot answer now (disk full, no server in reach). Nothing was changed; try again later."""


class StoreDamaged(CoordinationError):
    """What the store holds is not what was written. A person must look."""


class OutcomeUnknown(CoordinationError):
    """A write may or may not have happened. Read again and judge by what is there."""


class EntryTooLarge(CoordinationError):
    def __init__(self, what: str, size: int, limit: int = ENTRY_SIZE_MAX) -> None:
        super().__init__(f"{what} of {size:,} bytes exceeds the limit of {limit:,} bytes; split it")
        self.size = size


class EntriesRetired(CoordinationError):
    """The numbers asked for lie below the newest snapshot: load that, then read on from its number."""

    def __init__(self, asked: int, snapshot_number: int) -> None:
        super().__init__(
            f"entry {asked} is retired: the newest snapshot stands for all below {snapshot_number}"
        )
        self.snapshot_number = snapshot_number


class BrokerIdInUse(CoordinationError):
    def __init__(self, broker_id: int, holder: str) -> None:
        super().__init__(
            f"broker id {broker_id} is in use by {holder}; give this broker another node.id, or stop that one"
        )
        self.broker_id = broker_id


class SessionLost(CoordinationError):
    """This session is over. Stop leading and serving, then register anew."""


@dataclass(frozen=True, slots=True)
class Entry:
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Stands for all entries below ``number``."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredSecret:
    number: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, order=True)
class SessionInfo:
    """A live session as others see it."""

    broker_id: int
    incarnation: int
    payload: bytes


@dataclass(frozen=True, slots=True, order=True)
class SessionName:
    """Which life of which broker."""

    broker_id: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.broker_id}.{self.incarnation}"


class Session(Protocol):
    """The owner's view of its session."""

    @property
    def name(self) -> SessionName: ...

    def is_live(self) -> bool:
        """Cheap and plain: may its owner still lead and serve? False when lost, and when in doubt."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the session is over for good."""
        ...

    async def wait_lost(self) -> str:
        """Return when the session is over, with the reason."""
        ...


class CoordinationStore(Protocol):
    """All waits end with the store: ``close`` makes them raise StoreUnavailable."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id, made by whoever opened the store first. Known once open."""
        ...

    async def open(self) -> None:
        """Connect, and create what is not there yet. Raises StoreRefused or StoreUnavailable."""
        ...

    async def close(self) -> None:
        """End the session, if there is one, so that others see it go at once; let go of everything."""
        ...

    # ---- entries

    async def append(self, expected_next: int, entry: bytes) -> bool:
        """Make ``entry`` number ``expected_next``. False when that is not the next number.

        Raises SessionLost when this store's session is over, EntryTooLarge, StoreUnavailable (nothing
        happened), OutcomeUnknown (perhaps something did).
        """
        ...

    async def read(self, from_number: int, limit: int) -> list[Entry]:
        """At most ``limit`` entries from ``from_number`` on, without gaps; empty only at the end.

        Fewer than ``limit`` do not mean that the end was reached: a read is bounded in bytes too.
        """
        ...

    async def sync(self) -> None:
        """Return when every read shows all that was appended before this call, by anybody.

        A read alone may be answered by a server that lags behind the others. For those who act on what
        another broker has seen; what the signal leads to needs none. Raises StoreUnavailable.
        """
        ...

    async def read_snapshot(self) -> Snapshot | None:
        """The newest snapshot."""
        ...

    async def write_snapshot(self, number: int, data: bytes) -> bool:
        """Let ``data`` stand for all entries below ``number``, which must exist, and retire those.

        False when there is a snapshot of that number or a later one. Of any size.
        """
        ...

    # ---- sessions

    async def register(self, broker_id: int, payload: bytes) -> Session:
        """Begin a session. Raises BrokerIdInUse while another one of this id lives."""
        ...

    async def sessions(self) -> list[SessionInfo]:
        """All live sessions, ordered by broker id."""
        ...

    async def claim_controller(self) -> bool:
        """Take /controller for this store's session where nobody holds it; True when it is ours."""
        ...

    async def resign_controller(self) -> None:
        """Give up /controller where it is ours."""
        ...

    async def controller(self) -> SessionName | None: ...

    # ---- the secret

    async def read_secret(self) -> StoredSecret | None:
        """The newest one. Raises StoreUnavailable, StoreDamaged."""
        ...

    async def put_secret(self, number: int, data: bytes) -> bool:
        """Make ``data`` the secret of that number, which must follow on the newest one (0 is the first).

        False where another took the number. Raises as :meth:`append` does.
        """
        ...

    # ---- signal

    async def wait_changed(self, seen: int) -> int:
        """Return a value other than ``seen`` once something may have changed since ``seen`` was returned.

        Start with -1, which returns at once. Read everything of interest after each return.
        """
        ...
