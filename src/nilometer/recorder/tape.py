"""The tape of a recording: all that a broker was told through its runtime, in the order in which it was told.

An *entry* is one of

- a *call*: what the broker asked its runtime, and what came back: a reading of the clock, the result or the
  error of a disk call, bytes given to a connection (of these a digest only). What nearly always comes back
  (the same time as before, a file's append done, a connection that is not closing) has no entry: the entry of
  what differs says how often it came before;
- an *event*: what came by itself: a connection and its bytes, timers that were due, the end of an offloaded
  job, a signal. It says after how many callbacks of the event loop it came.

The calls of an offloaded job name the job. How entries stand in a file: :mod:`nilometer.recorder.tape_file`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypedDict, cast

import msgspec
from typing_extensions import Buffer

JOB = 0x01
"""The number of a job follows, the number of callbacks since the last event, and then one of its calls."""

# Calls.
WALL, MONOTONIC, MONOTONIC_US, CPU = 0x10, 0x11, 0x12, 0x13
ASK, OPEN = 0x20, 0x21
APPEND, APPEND_FAILED, READ, READ_KNOWN, READ_FAILED, SIZE = 0x22, 0x23, 0x24, 0x25, 0x26, 0x27
OFFLOAD, WAIT = 0x30, 0x31
BEGIN = 0x32
"""A job has begun on its thread."""
WRITE, TRANSPORT, IS_CLOSING, UNSENT = 0x40, 0x41, 0x42, 0x43
FAILED = 0x44
"""What was asked of a connection just before, WRITE or TRANSPORT, has raised an error."""

# Events.
EVENT = 0x80
"""From here on. The number of callbacks since the last event and the time since then follow."""
TIME, JOB_DONE, DONE, SIGNAL = 0x80, 0x81, 0x82, 0x83
CONNECTION, MADE, DATA, BUFFER, EOF, LOST, PAUSE, RESUME = 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8B
GATE_BEGIN, GATE_END, PULL = 0x8C, 0x8D, 0x8E
END = 0xFF
"""The recording was stopped; the reason follows."""

FIELDS: dict[int, str] = {
    **dict.fromkeys((APPEND, SIZE, OFFLOAD), "n"),
    READ_KNOWN: "n4",
    **dict.fromkeys((ASK, OPEN, READ, READ_FAILED, END), "c"),
    BEGIN: "",
    **dict.fromkeys((WAIT, TRANSPORT, APPEND_FAILED, FAILED), "nc"),
    WRITE: "nn4",
    **dict.fromkeys((WALL, MONOTONIC, MONOTONIC_US, CPU, IS_CLOSING, UNSENT), "nn"),
    TIME: "nn",
    **dict.fromkeys((JOB_DONE, SIGNAL, EOF, PAUSE, RESUME, PULL), "nnn"),
    **dict.fromkeys((DONE, MADE, DATA, BUFFER, LOST, GATE_BEGIN, GATE_END), "nnnc"),
    CONNECTION: "nnnn",
}
"""The fields of each kind: a number, a content with its length, or so many bytes."""

NAMES = {
    value: name.lower().replace("_", " ")
    for name, value in dict(globals()).items()
    if name.isupper() and isinstance(value, int) and value in FIELDS
}

_SHORT_END = bytes([END])
_SHORT = [
    *(bytes([number]) for number in range(1 << 7)),
    *(bytes([number & 127 | 128, number >> 7]) for number in range(1 << 7, 1 << 14)),
]


def varint(number: int) -> bytes:
    """Encode an integer >= 0: seven bits a byte, the lowest first."""
    if number < 1 << 14:
        return _SHORT[number]
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def signed(number: int) -> int:
    """Map integers to those >= 0, small ones to small ones."""
    return number << 1 if number >= 0 else (-number << 1) - 1


def unsigned(number: int) -> int:
    """The reverse of :func:`signed`."""
    return -((number + 1) >> 1) if number & 1 else number >> 1


def packed(value: object) -> bytes:
    """Encode a value of MessagePack with its length."""
    encoded = msgspec.msgpack.encode(value)
    return varint(len(encoded)) + encoded


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a recording at its start."""

    source: str
    """The digest of the sources that ran."""
    version: str
    python: str
    settings: dict[str, str]
    """The broker's, without passwords and keys."""
    started_ms: int
    """Wall time."""
    started_monotonic_ms: int
    """At the same moment, the time of the event loop's clock."""
    open_files_max: int
    sensitive: list[str] = []
    """The names of settings whose values were left out."""
    boot: str = ""
    """The boot of the machine, within which the event loop's clock goes on. Empty: it is not known."""
    number: int = 0
    """Of the broker's starts, as far as their recordings were in its folder."""
    left_out: list[str] = []
    """Of a copy: what has stand-ins in its place, such as secrets."""


class RecordingEnded(Exception):
    """The recording is over: its bound is reached, or it cannot be written."""


class TapeFile(Protocol):
    """Where entries go."""

    def write(self, entries: bytes, data: Buffer = b"") -> None:
        """Write whole entries. ``data``: the last bytes of the last one. Raises RecordingEnded."""
        ...

    def finish(self, entry: bytes) -> None:
        """Write the last entry, of at most ``LAST_BYTES``, for which there is always room."""
        ...

    def close(self) -> None: ...


LAST_BYTES = 2_048
"""So that a recording on a full disk can say why it has ended."""


class MemoryFile:
    """Entries in memory, for tests and simulations."""

    def __init__(self, header: Header) -> None:
        self.frames: list[bytes] = [msgspec.msgpack.encode(header)]
        """The header, and then some entries each."""

    def write(self, entries: bytes, data: Buffer = b"") -> None:
        self.frames.append(b"".join((entries, data)))

    def finish(self, entry: bytes) -> None:
        self.frames.append(entry)

    def close(self) -> None:
        pass


class Tape:
    """Entries that are being recorded. Any thread may add some; only the event loop's writes them."""

    def __init__(self, file: TapeFile) -> None:
        self._file: TapeFile | None = file
        self._entries: list[bytes] = []
        self.add = self._entries.append
        """Adds an entry, whole."""
        self.add_parts = self._entries.extend
        """Adds an entry of several parts."""
        self._fault: str | None = None
        self.ended: str | None = None
        """Why nothing more is recorded."""
        self.on_end: Callable[[str], object] = _nothing
        """Told why, if the broker goes on."""

    def drain(self) -> None:
        """Write what was added."""
        if self._entries:
            self.write(b"")

    def write(self, entry: bytes, data: Buffer = b"") -> None:
        """Write what was added, and then an entry; ``data``: its last bytes."""
        file, entries = self._file, self._entries
        if file is None:
            entries.clear()
            return
        if self._fault is not None:
            self.end(self._fault)
            return
        if entries:
            count = len(entries)  # a job's thread may add more
            entry = b"".join(entries[:count]) + entry
            del entries[:count]
        try:
            file.write(entry, data)
        except Exception as error:  # whatever it is, the broker goes on
            entries.clear()  # what others have added meanwhile would follow a hole
            self.end(
                str(error)
                if isinstance(error, RecordingEnded)
                else f"it cannot be written: {type(error).__name__}: {error}"
            )

    def packed(self, value: object) -> bytes:
        """Encode a value for an entry. If that is impossible, the recording ends before the entry. Any thread
        may call this."""
        try:
            return packed(value)
        except Exception as error:  # of any kind: the value may be
            reason = f"something cannot be recorded: {type(error).__name__}: {error}"
            self.add(_end_entry(reason))  # what comes behind it is not read
            self._fault = reason
            return packed(None)

    def end(self, reason: str) -> None:
        """Record nothing more, and say why in the recording. Ignored if it has ended."""
        file, self._file = self._file, None
        if file is None:
            return
        self.ended = reason
        with contextlib.suppress(Exception):  # there is no room for what was added
            if entries := b"".join(self._entries):
                file.write(entries)
        with contextlib.suppress(Exception):  # it breaks off, as if the process had been killed
            file.finish(_end_entry(reason))
        with contextlib.suppress(Exception):
            file.close()
        self._entries.clear()
        self.on_end(reason)


def _end_entry(reason: str) -> bytes:
    text = reason.encode(errors="replace")[: LAST_BYTES - 8]
    return _SHORT_END + varint(len(text)) + text


def _nothing(_reason: str) -> None:
    pass


# Reading.


NUMBER_BITS_MAX = 128
HEADER_MAX = 1024 * 1024
"""In bytes."""
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding raises of values that a recorder has not written."""


class _Made(TypedDict):
    peername: list[Any] | str | None
    sockname: list[Any] | str | None
    certificate: bytes | None
    has_tls: bool


_VALUES: dict[int, Any] = {
    ASK: tuple[str, list[Any], bool, Any],
    OPEN: tuple[str, bool, Any],
    **dict.fromkeys((APPEND_FAILED, READ_FAILED, FAILED), list[Any]),
    WAIT: tuple[str, list[Any]],
    TRANSPORT: str,
    DONE: tuple[bool, Any],
    MADE: _Made,
    LOST: list[Any] | None,
    GATE_BEGIN: tuple[str, int],
    GATE_END: tuple[str],
}
_DECODERS = {kind: msgspec.msgpack.Decoder(value) for kind, value in _VALUES.items()}
"""Of the values of MessagePack that each kind has."""


class NotARecording(Exception):
    """A file is no recording, or one that is damaged or cut."""


class Entry:
    """An entry: its kind, the job that made the call (0: the event loop), after how many callbacks since the
    last event it did, and where the fields begin."""

    __slots__ = ("at", "count", "job", "kind")

    def __init__(self, kind: int, job: int, count: int, at: int) -> None:
        self.kind = kind
        self.job = job
        self.count = count
        self.at = at

    @property
    def is_event(self) -> bool:
        return self.kind >= EVENT


class TapeReader:
    """Reads entries one after the other. :attr:`head` is the next one, None at the end of the tape."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        """``frames``: without the header."""
        self._frames = frames
        self._data: bytes = b""
        self._at = 0
        self.entries = 0
        """How many entries were taken."""
        self.damage: NotARecording | None = None
        """What was raised: a broker that is replayed may handle it as an error of its call."""
        self.head: Entry | None = None
        self.advance()

    def advance(self) -> None:
        """Go to the next entry, after all fields of this one were read. Behind END nothing is read."""
        if self.head is not None and self.head.kind == END:
            self.head = None
            return
        if self._at == len(self._data):
            try:
                following = next(self._frames, None)
            except NotARecording as error:
                self.damage = error
                raise
            if following is None:
                self.head = None
                return
            self._data, self._at = following, 0
        self.entries += 1
        kind, job, count = self.byte(), 0, 0
        if kind == JOB:
            job, count = self.number(), self.number()
            kind = self.byte()
        if kind not in FIELDS:
            raise self._damaged(f"of the unknown kind {kind}")
        self.head = Entry(kind, job, count, self._at)

    def event_head(self) -> tuple[int, int, bool]:
        """Read what each event begins with: callbacks since the last one, milliseconds since then, and
        whether it came in within a call."""
        count, time = self.number(), self.number()
        return count, unsigned(time >> 1), bool(time & 1)

    def back(self) -> None:
        """Return to the first field of this entry."""
        assert self.head is not None
        self._at = self.head.at

    def skip(self) -> None:
        """Go to the next entry without reading the fields of this one."""
        self.pass_fields()
        self.advance()

    def pass_fields(self) -> None:
        """Pass all fields of this entry, of which none was read."""
        assert self.head is not None
        for field in FIELDS[self.head.kind]:
            if field == "n":
                self.number()
            elif field == "c":
                self.content()
            else:
                self.raw(int(field))

    def _damaged(self, how: str) -> NotARecording:
        self.damage = NotARecording(f"the recording is damaged: entry {self.entries} is {how}")
        return self.damage

    def byte(self) -> int:
        return self.raw(1)[0]

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            if shift > NUMBER_BITS_MAX:
                raise self._damaged("no number")
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def signed(self) -> int:
        return unsigned(self.number())

    def raw(self, length: int) -> bytes:
        self._at += length
        if self._at > len(self._data):
            raise self._damaged("cut short")
        return self._data[self._at - length : self._at]

    def content(self) -> bytes:
        return self.raw(self.number())

    def packed(self) -> Any:
        """Read a value of MessagePack, of the shape that this kind has."""
        assert self.head is not None
        try:
            value = _DECODERS[self.head.kind].decode(self.content())
        except UNREADABLE as error:
            raise self._damaged(f"no {NAMES[self.head.kind]}: {error}") from None
        return list(cast(tuple[Any, ...], value)) if isinstance(value, tuple) else value
