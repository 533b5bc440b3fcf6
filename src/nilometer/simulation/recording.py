"""The format of a recording: JSON lines, documented in docs/simulation.md.

The first line is a :class:`Header`, the last an :class:`End`, and each line between them an :class:`Event`. A
recording without its last line is one of a run that was interrupted.

An event of a replica has the fields of its state that changed. So the state at any moment is the fold of the
events before it (:mod:`nilometer.simulation.replay`).

This module reads and writes lines, not files, and knows neither a simulated cluster nor a scenario.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

VERSION = 1
EVENTS_MAX = 50_000
"""The default limit of events in a recording."""
EVENTS_READ_MAX = 1_000_000
"""A recording with more events is not read: all of them are kept in memory."""

Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Epoch = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
BrokerNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Kind(enum.StrEnum):
    SENT = "sent"
    """A broker has sent a message to another."""
    DELIVERED = "delivered"
    DROPPED = "dropped"
    REPLICA = "replica"
    """A broker has a replica: it was created, or its broker has restarted."""
    ROLE = "role"
    """A replica has another role or leader epoch."""
    ISR = "isr"
    """A leader has another committed ISR."""
    TRUNCATION = "truncation"
    APPEND = "append"
    LOG_START = "log-start"
    HIGH_WATERMARK = "high-watermark"
    FOLLOWER_POSITION = "follower-position"
    """A leader knows from a fetch that a follower has more records."""
    REMOVED = "removed"
    """A broker has no replica of the partition any more."""
    BROKER = "broker"
    """A broker's process has another :class:`Status`."""
    FAULT = "fault"
    """A fault begins or ends."""
    FINDING = "finding"
    """A checker found a violation."""
    NOTE = "note"


MESSAGE_KINDS = frozenset({Kind.SENT, Kind.DELIVERED, Kind.DROPPED})


class Role(enum.StrEnum):
    LEADER = "leader"
    FOLLOWER = "follower"
    NONE = "none"


class Status(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    DOWN = "down"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    recording: str = "nilometer"
    version: int = VERSION
    title: str
    description: str = ""
    names: dict[BrokerNumber, str] = msgspec.field(default_factory=dict[int, str])
    """Names of brokers, by number; a broker without one is shown by its number."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a replica's state that have changed."""

    role: Role | UnsetType = UNSET
    leader_epoch: Epoch | UnsetType = UNSET
    log_start_offset: Offset | UnsetType = UNSET
    log_end_offset: Offset | UnsetType = UNSET
    high_watermark: Offset | UnsetType = UNSET
    epochs: tuple[tuple[Epoch, Offset], ...] | UnsetType = UNSET
    """The epoch chain: (leader epoch, start offset), oldest first."""
    isr: tuple[BrokerNumber, ...] | UnsetType = UNSET
    """The committed ISR as this leader knows it; empty if the replica does not lead."""
    followers: dict[BrokerNumber, Offset] | UnsetType = UNSET
    """The followers' log end offsets as this leader knows them; without those that it does not know."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at_us: Annotated[int, Meta(ge=0, le=2**62)]
    """Simulated microseconds since the start."""
    kind: Kind
    text: str
    broker: BrokerNumber | None = None
    """The broker of the event; of a message, its sender."""
    to: BrokerNumber | None = None
    """The receiver of a message."""
    message: int | None = None
    """The number of a message: the same when it is sent and when it is delivered or dropped."""
    partitions: tuple[str, ...] = ()
    """The partitions that the event concerns; if there is a change, the one that it changes."""
    change: Change | None = None
    status: Status | None = None
    """The status of the broker from now on."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    events: int
    """The number of events."""
    is_cut: bool
    """Whether events were left out because of the limit."""


class _EndLine(msgspec.Struct, frozen=True, kw_only=True):
    end: End


class _AnyHeader(msgspec.Struct, frozen=True):
    recording: str
    version: int


class Recording(msgspec.Struct, frozen=True):
    header: Header
    events: tuple[Event, ...]
    end: End | None
    """None: the run was interrupted before it wrote its last line."""


class BadRecording(Exception):
    """What is wrong with a recording, and in which line."""


_END = b'{"end":'


def header_line(header: Header) -> str:
    return msgspec.json.encode(header).decode()


def event_line(event: Event) -> str:
    return msgspec.json.encode(event).decode()


def end_line(end: End) -> str:
    return msgspec.json.encode(_EndLine(end=end)).decode()


def recording_lines(recording: Recording) -> list[str]:
    """Return the lines of a recording, without line ends."""
    end = [] if recording.end is None else [end_line(recording.end)]
    return [header_line(recording.header), *map(event_line, recording.events), *end]


def read_recording(lines: Iterable[bytes]) -> Recording:
    """Return the recording that consists of ``lines``. Raises BadRecording."""
    numbered = enumerate(lines, 1)
    _, first = next(numbered, (1, b""))
    header = _read_header(first)
    events: list[Event] = []
    decoder = msgspec.json.Decoder(Event)
    for number, line in numbered:
        if line.startswith(_END):
            return Recording(header, tuple(events), _read_end(number, line, len(events)))
        if not line.endswith(b"\n"):
            break  # the run was interrupted while it wrote this line
        if len(events) >= EVENTS_READ_MAX:
            raise BadRecording(f"it has more than {EVENTS_READ_MAX:,} events")
        try:
            events.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadRecording(
                f"line {number} is no event of a recording ({error}): record the run again"
            ) from None
    return Recording(header, tuple(events), None)


def _read_header(line: bytes) -> Header:
    try:
        found = msgspec.json.decode(line, type=_AnyHeader)
        if found.recording != "nilometer":
            raise BadRecording('line 1: "recording" must be "nilometer"')
        if found.version != VERSION:
            raise BadRecording(
                f"it has version {found.version}, and this Nilometer reads version {VERSION}: record it again"
            )
        return msgspec.json.decode(line, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecording(
            f"line 1 is not the header of a recording ({error}): nilometer simulate --record FILE writes one"
        ) from None


def _read_end(number: int, line: bytes, events: int) -> End:
    try:
        end = msgspec.json.decode(line, type=_EndLine).end
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecording(
            f"line {number} is no end of a recording ({error}): record the run again"
        ) from None
    if end.events != events:
        raise BadRecording(f"line {number}: there are {events:,} events, not {end.events:,}")
    return end


def applied_fields(change: Change) -> Mapping[str, Any]:
    """Return the fields that ``change`` sets, by name."""
    names = change.__struct_fields__
    return {name: value for name in names if (value := getattr(change, name)) is not UNSET}


# Writing a recording while a run takes place: the header, events up to a limit, and the last line.


class RecordingWriter:
    """Invariants: nothing is written after :meth:`end`; after ``events_max`` events only what :meth:`end`
    gets."""

    def __init__(self, sink: Callable[[str], object], header: Header, events_max: int = EVENTS_MAX) -> None:
        """``sink`` gets each line, without its line end."""
        self._sink = sink
        self._events_max = events_max
        self.events = 0
        self.is_cut = False
        """Whether an event was left out because of the limit."""
        sink(header_line(header))

    def add(self, event: Event) -> None:
        """Add an event, unless the limit is reached."""
        if self.is_cut:
            return
        if self.events >= self._events_max:
            self.is_cut = True
            limit = f"its limit of {self._events_max:,} events"
            text = f"The recording stops here, at {limit}. The run continued."
            event = Event(at_us=event.at_us, kind=Kind.NOTE, text=text)
        self._write(event)

    def end(self, last: Iterable[Event]) -> None:
        """Add the ``last`` events, also beyond the limit, and the last line."""
        for event in last:
            self._write(event)
        self._sink(end_line(End(events=self.events, is_cut=self.is_cut)))

    def _write(self, event: Event) -> None:
        self.events += 1
        self._sink(event_line(event))
