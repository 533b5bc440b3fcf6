"""The coordination store: sessions, a sequence of entries and a signal, shared by all brokers of a cluster.

A store offers three things: *sessions*, *a sequence of entries* with snapshots, and *a signal* that
either changed. Entries, snapshots and session payloads are opaque bytes: nothing here knows of
partitions or records. Every implementation passes one conformance suite, with a test for each of these rules.

Entries
    ONE_WINNER       A number is given to one entry, once; of several contenders at most one gets True.
    NO_GAPS          An entry exists only after its predecessor: the numbers are 0, 1, 2, …
    FALSE_IS_FINAL   False means: this entry is not in the sequence and never will be.
    UNKNOWN_IS_SAID  A write whose outcome cannot be known raises OutcomeUnknown; the caller reads again.
    DURABLE_FIRST    No process, author or reader, sees an entry that a crash of all machines could undo.
    RETIRED_REFUSED  A number below the newest snapshot stays refused for good, however late its writer is.
    SYNC_SHOWS_ALL   After ``sync`` a read shows every entry that was appended before it; without, a read may
                     lag behind those of others.
    RETIRED_SAID     Reading below the newest snapshot raises EntriesRetired, which names the snapshot.

Sessions
    ONE_LIVE_ID      A broker id has at most one live session; a second one is refused (BrokerIdInUse).
    DIES_WITH_OWNER  A session, and its claim on /controller, vanish when the owner dies, closes, or hangs for
                     longer than the session timeout.
    FRESH_INCARNATION  Every registration gets an incarnation never used before by that id; ending one
                     incarnation can never end another.
    LOSS_IS_LEARNT   An owner whose session was ended while its process was alive is notified (Session.lost),
                     and every write through that session is refused from then on (SessionLost).
    DOUBT_STOPS      Session.is_live() turns False *before* others may end the session, as soon as the owner
                     can tell that it may be cut off: leaders check it before they act.
    ONE_CONTROLLER   At most one session holds /controller. This is a hint about which broker should act, not
    a fence: the fold over the entries ignores what a deposed controller appends.

Secret
    SECRET_APART     Only members can read the cluster's secret. It is kept apart from entries and snapshots,
                     which tools print. It is opaque here, too.
    SECRET_ONE_WINNER  Its numbers are 0, 1, 2, …, each given to one content; of several contenders at most
                     one gets True, and only the newest is read.

Signal
    NOTHING_MISSED   ``wait_changed(seen)`` returns once anything changed after the state that ``seen`` stands
                     for. It may return without cause. It carries no content: the caller reads again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

ENTRY_SIZE_MAX = 900_000
"""Bytes of one entry or session payload: below the 1 MB of a ZooKeeper node."""


class CoordinationError(Exception):
    """Something the store refused or could not do; the message says what, where, and what to do."""


class StoreRefused(CoordinationError):
    """The store must not be used: another cluster's, a newer format, or an unsuitable file system."""


class StoreUnavailable(CoordinationError):
    """The store cannot answer now (disk full, no server in reach). Nothing was changed; try again later."""


class StoreDamaged(CoordinationError):
    """The content of the store is damaged. An operator must act."""


class OutcomeUnknown(CoordinationError):
    """A write may or may not have happened. Read again to find out."""


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
    """This session has ended. Stop leading and serving, then register again."""


@dataclass(frozen=True, slots=True)
class Entry:
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Replaces all entries below ``number``."""

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
    """A broker and its incarnation."""

    broker_id: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.broker_id}.{self.incarnation}"


class Session(Protocol):
    """The owner's view of its session."""

    @property
    def name(self) -> SessionName: ...

    def is_live(self) -> bool:
        """Whether the owner may still lead and serve. False when lost, and when it is not certain. Cheap."""
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
        """The cluster's id, made when the store was opened for the first time. Known once open."""
        ...

    async def open(self) -> None:
        """Connect, and create what does not exist yet. Raises StoreRefused or StoreUnavailable."""
        ...

    async def close(self) -> None:
        """End the session at once, if there is one, and release all resources."""
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
        """Return when every read shows all entries appended before this call, by any broker.

        A read alone may be answered by a server that lags behind the others. Callers need this when they act
        on what another broker has seen; reads after the signal do not. Raises StoreUnavailable.
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
        """Begin a session. Raises BrokerIdInUse while another session of this id is live."""
        ...

    async def sessions(self) -> list[SessionInfo]:
        """All live sessions, ordered by broker id."""
        ...

    async def claim_controller(self) -> bool:
        """Claim /controller for this store's session where no session holds it; True when this one holds
        it."""
        ...

    async def resign_controller(self) -> None:
        """Release /controller if this store's session holds it."""
        ...

    async def controller(self) -> SessionName | None: ...

    # ---- the secret

    async def read_secret(self) -> StoredSecret | None:
        """The newest secret. Raises StoreUnavailable, StoreDamaged."""
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
