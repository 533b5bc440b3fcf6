"""The commands of the metadata log, and the state that they make on every replica. Pure.

A command is *decided when it is applied*: each replica applies the same commands in the same order and so
decides alike. Who proposed it learns the outcome from its own replica. A command may be applied twice, if a
proposer that did not learn the outcome sends it again; the second time changes nothing.

Offsets of the log count records of any kind, *entry numbers* count entries: a snapshot has both.

Invariants:

- entries have the numbers from the snapshot's on, without gaps (NO_GAPS, RETIRED_REFUSED);
- a broker id has at most one session, and an incarnation is the offset of the record that registered it, so
  that it is never given twice (ONE_LIVE_ID, FRESH_INCARNATION);
- only a session that is live appends, claims, or writes (LOSS_IS_LEARNT).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from nilometer.coordination.store import Entry, SessionInfo, SessionName, Snapshot, StoredSecret
from nilometer.identifiers import Offset

SNAPSHOT_PART_BYTES = 900_000
"""A snapshot of the metadata is written in parts of at most this size."""


class Register(msgspec.Struct, frozen=True, tag="register"):
    """Begin a session. It takes the place of one of the same folder: its process has ended, since it held the
    folder's lock."""

    broker_id: int
    folder_id: str
    """The ``directory.id`` of the registering broker's metadata folder."""
    payload: bytes
    token: str
    """Of this attempt, unique: an attempt that is applied twice begins one session."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """End a session, and what it claims. The leader proposes it when its time-out is over, the owner when it
    closes."""

    session: SessionName


class Claim(msgspec.Struct, frozen=True, tag="claim"):
    """Take /controller, if no session has it."""

    session: SessionName
    takes_over: bool = False
    """Take it from any other session. Only the leader proposes that, for the session of its own broker: the
    controller is on the leader."""


class Resign(msgspec.Struct, frozen=True, tag="resign"):
    """Give /controller up."""

    session: SessionName


class Append(msgspec.Struct, frozen=True, tag="append"):
    """Append an entry of this number, if it is the next one."""

    session: SessionName | None
    """None: of a tool, which has no session."""
    number: int
    data: bytes


class SnapshotPart(msgspec.Struct, frozen=True, tag="part"):
    """A part of a snapshot that will cover the entries below ``number``. The last one puts it in place."""

    session: SessionName | None
    number: int
    position: int
    """In bytes. A part that is not the next one of its snapshot drops what was there."""
    data: bytes
    is_last: bool


class PutSecret(msgspec.Struct, frozen=True, tag="secret"):
    """Replace the cluster's secret, if this is the next number. ``data`` is encrypted by the proposer."""

    session: SessionName | None
    number: int
    data: bytes


class NameCluster(msgspec.Struct, frozen=True, tag="cluster"):
    """Give the cluster its id, once; proposed by who opens the store first."""

    session: None
    cluster_id: str


Command: TypeAlias = NameCluster | Register | End | Claim | Resign | Append | SnapshotPart | PutSecret

_decoder = msgspec.msgpack.Decoder(Command)
_encoder = msgspec.msgpack.Encoder()


def encode(command: Command) -> bytes:
    return _encoder.encode(command)


def decode(data: bytes) -> Command:
    """Decode a command. Raises msgspec.DecodeError if the record is damaged, or of a newer version."""
    return _decoder.decode(data)


def without_secret(data: bytes) -> bytes:
    """Return a record of the log as tools show it: the cluster's secret is left out, encrypted or not."""
    try:
        command = decode(data)
    except msgspec.DecodeError:
        return b"(not a command of this version)"
    if isinstance(command, PutSecret):
        return encode(msgspec.structs.replace(command, data=b"(hidden)"))
    return data


class Outcome(enum.Enum):
    """What a command has come to."""

    DONE = "done"
    REFUSED = "refused"
    """Another command was first, or there is nothing to do. It will never be done."""
    SESSION_ENDED = "the session has ended"


class LiveSession(msgspec.Struct, frozen=True):
    incarnation: int
    folder_id: str
    payload: bytes
    token: str


class PartsSoFar(msgspec.Struct):
    """A snapshot of which not all parts are there."""

    writer: SessionName | None
    number: int
    parts: list[bytes] = []

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


class _Image(msgspec.Struct, frozen=True):
    """A snapshot of the state, as it is stored."""

    sessions: dict[int, LiveSession]
    entries: list[bytes]
    unfinished: list[PartsSoFar]
    snapshot: Snapshot | None
    controller: SessionName | None
    secret: tuple[int, bytes] | None
    cluster_id: str | None


_image_decoder = msgspec.msgpack.Decoder(_Image)


class AppliedState:
    """What the commands so far have made."""

    def __init__(self) -> None:
        self._sessions: dict[int, LiveSession] = {}
        self._entries: list[bytes] = []
        """Those after the snapshot."""
        self._unfinished: dict[SessionName | None, PartsSoFar] = {}
        """By writer, at most one: of a live session, or of the tools."""
        self.snapshot: Snapshot | None = None
        self.controller: SessionName | None = None
        self.secret: StoredSecret | None = None
        self.cluster_id: str | None = None

    @classmethod
    def of(
        cls,
        cluster_id: str,
        snapshot: Snapshot | None,
        entries: Sequence[Entry],
        secret: StoredSecret | None,
    ) -> AppliedState:
        """Return the state of a cluster that has these, and no sessions."""
        state = cls()
        state.cluster_id, state.snapshot, state.secret = cluster_id, snapshot, secret
        state._entries = [entry.data for entry in entries]
        return state

    # ── reading ─────────────────────────────────────────────────────────────────────────────────
    @property
    def first_number(self) -> int:
        """The number of the first entry that is not in the snapshot."""
        return 0 if self.snapshot is None else self.snapshot.number

    @property
    def next_number(self) -> int:
        return self.first_number + len(self._entries)

    def entries(self, from_number: int, limit: int, bytes_max: int) -> list[Entry]:
        """Return entries from a number on, at least one if there is any; ``from_number`` is not below
        :attr:`first_number`."""
        found: list[Entry] = []
        size = 0
        begin = from_number - self.first_number
        for number, data in enumerate(self._entries[begin : begin + limit], from_number):
            size += len(data)
            if found and size > bytes_max:
                break
            found.append(Entry(number, data))
        return found

    def is_live(self, name: SessionName | None) -> bool:
        """Whether the session has not ended. True for None: a tool has no session, and needs none."""
        return name is None or self._is(name, self._sessions.get(name.broker_id))

    @staticmethod
    def _is(name: SessionName, session: LiveSession | None) -> bool:
        return session is not None and session.incarnation == name.incarnation

    def sessions(self) -> list[SessionInfo]:
        """Return the live sessions, ordered by broker id."""
        return [
            SessionInfo(broker_id, session.incarnation, session.payload)
            for broker_id, session in sorted(self._sessions.items())
        ]

    def session_of(self, broker_id: int) -> LiveSession | None:
        return self._sessions.get(broker_id)

    # ── applying ────────────────────────────────────────────────────────────────────────────────
    def apply(self, offset: Offset, command: Command) -> Outcome:
        """Apply the command at ``offset`` of the log. Each is applied once, in the order of offsets."""
        if isinstance(command, Register):
            return self._register(offset, command)
        if not self.is_live(command.session):
            return Outcome.SESSION_ENDED
        if isinstance(command, End):
            self._end(command.session)
            return Outcome.DONE
        if isinstance(command, Claim):
            return self._claim(command)
        if isinstance(command, Resign):
            return self._set_controller(None) if self.controller == command.session else Outcome.REFUSED
        if isinstance(command, Append):
            return self._append(command)
        if isinstance(command, SnapshotPart):
            return self._add_part(command)
        if isinstance(command, NameCluster):
            return self._name_cluster(command)
        return self._put_secret(command)

    def _register(self, offset: Offset, command: Register) -> Outcome:
        known = self._sessions.get(command.broker_id)
        if known is not None:
            if known.token == command.token:
                return Outcome.DONE  # the attempt was sent twice
            if known.folder_id != command.folder_id:
                return Outcome.REFUSED
            self._end(SessionName(command.broker_id, known.incarnation))
        self._sessions[command.broker_id] = LiveSession(
            offset, command.folder_id, command.payload, command.token
        )
        return Outcome.DONE

    def _end(self, name: SessionName) -> None:
        del self._sessions[name.broker_id]
        self._unfinished.pop(name, None)
        if self.controller == name:
            self.controller = None

    def _claim(self, command: Claim) -> Outcome:
        if self.controller not in (None, command.session) and not command.takes_over:
            return Outcome.REFUSED
        return self._set_controller(command.session)

    def _set_controller(self, name: SessionName | None) -> Outcome:
        self.controller = name
        return Outcome.DONE

    def _append(self, command: Append) -> Outcome:
        if command.number != self.next_number:
            return Outcome.REFUSED
        self._entries.append(command.data)
        return Outcome.DONE

    def _add_part(self, command: SnapshotPart) -> Outcome:
        writer, number = command.session, command.number
        so_far = self._unfinished.pop(writer, None)
        if command.position == 0:
            so_far = PartsSoFar(writer, number)
        is_next = so_far is not None and (so_far.number, so_far.size) == (number, command.position)
        if so_far is None or not is_next or not self.first_number < number <= self.next_number:
            return Outcome.REFUSED
        so_far.parts.append(command.data)
        if command.is_last:
            del self._entries[: number - self.first_number]
            self.snapshot = Snapshot(number, b"".join(so_far.parts))
        else:
            self._unfinished[writer] = so_far
        return Outcome.DONE

    def _name_cluster(self, command: NameCluster) -> Outcome:
        if self.cluster_id is None:
            self.cluster_id = command.cluster_id
        return Outcome.DONE if self.cluster_id == command.cluster_id else Outcome.REFUSED

    def _put_secret(self, command: PutSecret) -> Outcome:
        if command.number != (0 if self.secret is None else self.secret.number + 1):
            return Outcome.REFUSED
        self.secret = StoredSecret(command.number, command.data)
        return Outcome.DONE

    # ── snapshots of this state ─────────────────────────────────────────────────────────────────
    def to_bytes(self) -> bytes:
        """Return the content of a snapshot of the log."""
        secret = None if self.secret is None else (self.secret.number, self.secret.data)
        return _encoder.encode(
            _Image(
                sessions=self._sessions,
                entries=self._entries,
                unfinished=list(self._unfinished.values()),
                snapshot=self.snapshot,
                controller=self.controller,
                secret=secret,
                cluster_id=self.cluster_id,
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> AppliedState:
        """Return the state that a snapshot has.

        Raises msgspec.DecodeError if the snapshot is damaged, or of a newer version.
        """
        image = _image_decoder.decode(data)
        state = cls()
        state._sessions, state._entries = image.sessions, image.entries
        state._unfinished = {each.writer: each for each in image.unfinished}
        state.snapshot, state.controller = image.snapshot, image.controller
        state.cluster_id = image.cluster_id
        state.secret = None if image.secret is None else StoredSecret(*image.secret)
        return state


def snapshot_parts(session: SessionName | None, number: int, data: bytes) -> Sequence[SnapshotPart]:
    """Return the commands that write a snapshot of any size; at least one."""
    begins = range(0, max(len(data), 1), SNAPSHOT_PART_BYTES)
    return [
        SnapshotPart(
            session,
            number,
            begin,
            data[begin : begin + SNAPSHOT_PART_BYTES],
            begin + SNAPSHOT_PART_BYTES >= len(data),
        )
        for begin in begins
    ]
