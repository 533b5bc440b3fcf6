"""Copies of recordings that can be given to others: without secrets, for replay on another machine.

What a broker received has stand-ins where there was a secret (:mod:`nilometer.simulation.stand_ins`). Then
the broker runs again on that. It does the same as before, with the stand-ins: some bytes that it sends
differ, and some that it reads again in its own files, and the copy has their digests. So whatever a broker
makes of a secret, a copy has what it makes of the stand-in, and replays equal.
"""

from __future__ import annotations

import bisect
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import Buffer

from nilometer.broker.quorum.key_file import UNSEAL
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.quorum import PREVIOUS_SECRET_FILE, SECRET_FILE
from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.identifiers import TopicId
from nilometer.recorder import tape as kinds
from nilometer.recorder.collection import CollectionWriter
from nilometer.recorder.replaying import Diverged
from nilometer.recorder.tape import NAMES, Header, TapeReader, packed, varint
from nilometer.simulation.payloads import Payloads
from nilometer.simulation.recorded_cluster import RecordedBroker, RecordingFile, recordings_in
from nilometer.simulation.stand_ins import (
    RequestStream,
    ResponseStream,
    SecretsInPieces,
    StandIns,
    forms_of,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.frames import FrameSplitter
from nilometer.wire.messages import decode_request_header

SECRETS, PAYLOADS = "secrets", "payloads"
"""What a copy says it leaves out."""
NAME_BYTES_MAX = 200
"""Of a file's name, in that of the file that is begun beside it."""
STILL_WRITTEN = "it was being written when it was copied"


OnCopied = Callable[[str, Header], object]
"""Told the name and the header of a copy."""
OnDoubt = Callable[[str], object]


class CopyRefused(Exception):
    """A recording cannot be copied; the message says which one, and why."""


class _EntryReader(TapeReader):
    """Reads whole entries, as bytes."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        self._begin = 0
        super().__init__(frames)

    def advance(self) -> None:
        self._begin = 0 if self._at == len(self._data) else self._at
        super().advance()

    def prefix(self) -> bytes:
        """Return what stands before the fields."""
        assert self.head is not None
        return self._data[self._begin : self.head.at]

    def whole(self) -> bytes:
        """Return the entry. The tape is behind its fields then."""
        self.back()
        self.pass_fields()
        return self._data[self._begin : self._at]


@dataclass
class _Stream:
    """What changes in the bytes that arrived on one connection."""

    places: list[int] = field(default_factory=list[int])
    changes: list[bytes] = field(default_factory=list[bytes])
    arrived: int = 0

    def add(self, changes: Iterable[tuple[int, bytes]]) -> None:
        for at, changed in changes:
            self.places.append(at)
            self.changes.append(changed)

    def next(self, data: bytes) -> bytes:
        """Return what a copy has of what arrives next."""
        begin, self.arrived = self.arrived, self.arrived + len(data)
        found = data
        for number in range(max(0, bisect.bisect_right(self.places, begin) - 1), len(self.places)):
            at, changed = self.places[number], self.changes[number]
            if at >= self.arrived:
                break
            start, end = max(at, begin), min(at + len(changed), self.arrived)
            if start < end:
                found = found[: start - begin] + changed[start - at : end - at] + found[end - begin :]
        return found


class _Original(RecordingFile):
    """A recording up to where it has come now, though its broker may go on. It has replayed equal."""

    def __init__(self, file: RecordingFile) -> None:
        """Raises CopyRefused, SecretsInPieces, and what RecordedBroker raises."""
        self.file = file
        self.path = file.path
        self.header = file.header
        self.paths: dict[int, str] = {}
        """Of the files whose content entries have, by the entries' numbers."""
        self.fetches: dict[int, dict[int, int]] = {}
        """The versions of the broker's own Fetch requests, by connection and correlation id."""
        self.internal_ids = set[TopicId]()
        """The ids of internal topics."""
        self.cluster_id: str | None = None
        self._bytes_max: int | None = None
        try:
            self.is_open_ended = file.is_being_written
        except OSError as error:
            raise CopyRefused(f"{file.name} cannot be read: {error.strerror or error}") from None
        self._bytes_max = sum(map(len, self.frames()))
        self._replay()

    @property
    def name(self) -> str:
        return self.file.name

    def frames(self) -> Iterator[bytes]:
        left = self._bytes_max
        if left == 0:
            return
        try:
            for frame in self.file.frames():
                yield frame if left is None else frame[:left]
                if left is not None and (left := left - len(frame)) <= 0:
                    return  # it ends with a whole entry
        except OSError as error:
            raise CopyRefused(f"{self.name} cannot be read: {error.strerror or error}") from None

    def _replay(self) -> None:
        """Let the broker run as it did: what differs already is no matter of stand-ins."""
        try:
            with closing(RecordedBroker(self)) as broker:
                broker.replay.read_paths = self.paths
                asked = broker.replay.observer = _Asked(self.fetches)
                broker.play(lambda: False)
                self.cluster_id = broker.cluster_id
                if asked.has_fetched_snapshot:
                    raise SecretsInPieces("a snapshot of the metadata that was fetched")
                if broker.broker is not None and broker.broker.has_parts:
                    image = broker.broker.parts.control.metadata.image
                    found = (image.topic(name) for name in INTERNAL_TOPICS)
                    self.internal_ids |= {one.id for one in found if one is not None}
        except Diverged as difference:
            raise CopyRefused(
                f"{self.name} cannot be copied: its replay differs from the recording: {difference}"
            ) from None


class _Inputs(RecordingFile):
    """A recording as its broker gets it in a copy."""

    def __init__(self, original: _Original, stand_ins: StandIns) -> None:
        self.file = original
        self.path = original.path
        self.header = original.header
        self.digests: dict[int, bytes] = {}
        """Of entries whose digests differ, by their numbers."""
        self._stand_ins = stand_ins
        self._streams: dict[int, _Stream] = {}
        config = BrokerConfig(original.header.settings)
        self._key_files = {config.optional_string(name) for name in (SECRET_FILE, PREVIOUS_SECRET_FILE)}
        self._look_through()

    @property
    def name(self) -> str:
        return self.file.name

    def _look_through(self) -> None:
        """Find what changes in what arrives."""
        tape, sent = _EntryReader(self.file.frames()), dict[int, RequestStream | ResponseStream]()
        while tape.head is not None:
            kind = tape.head.kind
            if kind == kinds.CONNECTION:
                tape.event_head()
                number, origin = tape.number(), tape.number()
                sent[number] = (
                    RequestStream(self._stand_ins)
                    if origin & 1
                    else ResponseStream(self._stand_ins, self.file.fetches.get(number, {}))
                )
            elif kind in _ARRIVED:
                tape.event_head()
                number = tape.number()
                if (stream := sent.get(number)) is not None:
                    self._add(number, stream.changes(tape.content()))
            elif kind == kinds.LOST:
                tape.event_head()
                number = tape.number()
                if (stream := sent.pop(number, None)) is not None:
                    self._add(number, stream.rest())
            tape.back()
            tape.skip()
        for number, stream in sent.items():
            self._add(number, stream.rest())

    def _add(self, number: int, changes: Iterable[tuple[int, bytes]]) -> None:
        for change in changes:
            self._streams.setdefault(number, _Stream()).add((change,))

    def frames(self) -> Iterator[bytes]:
        """Yield all entries, one by one."""
        tape = _EntryReader(self.file.frames())
        streams = {number: _Stream(one.places, one.changes) for number, one in self._streams.items()}
        has_ended = False
        while tape.head is not None:
            has_ended = tape.head.kind == kinds.END
            entry = self._entry(tape, streams)
            digest = self.digests.get(tape.entries)
            yield entry if digest is None else entry[: -len(digest)] + digest
            tape.back()
            tape.skip()
        if self.file.is_open_ended and not has_ended:
            text = STILL_WRITTEN.encode()
            yield bytes([kinds.END]) + varint(len(text)) + text

    def _entry(self, tape: _EntryReader, streams: dict[int, _Stream]) -> bytes:
        assert tape.head is not None
        kind = tape.head.kind
        if kind == kinds.ASK:
            name, args, is_done, result = tape.packed()
            cleaned = self._result(name, args, result) if is_done else result
            if cleaned is not result:
                return tape.prefix() + packed([name, args, is_done, cleaned])
        elif kind == kinds.READ:
            if (path := self.file.paths.get(tape.entries)) is None:
                raise SecretsInPieces(f"entry {tape.entries}, of which it is not known what file was read")
            content = tape.content()
            return tape.whole()[: -len(content) or None] + self._stand_ins.read(path, content)
        elif kind in _ARRIVED:
            tape.event_head()
            stream = streams.get(tape.number())
            if stream is not None:
                cleaned = stream.next(tape.content())
                whole = tape.whole()
                return whole[: len(whole) - len(cleaned)] + cleaned
        return tape.whole()

    def _result(self, name: str, args: Sequence[Any], result: Any) -> Any:
        if name == "read_file":
            is_key = args[0] in self._key_files
            return self._stand_ins.key_file(result) if is_key else self._stand_ins.file(args[0], result)
        if name == UNSEAL:
            return None if result is None else self._stand_ins.unsealed(result)
        if name == "bytes" and args[0] >= RANDOM_SECRET_MIN:
            return self._stand_ins.of_bytes(result)
        return self._stand_ins.answer(name, result)


class _Asked:
    """Notes a broker's own Fetch requests. Implements :class:`~nilometer.recorder.replaying.Observer`."""

    def __init__(self, fetches: dict[int, dict[int, int]]) -> None:
        self._fetches = fetches
        self.has_fetched_snapshot = False
        self._frames: dict[int, FrameSplitter] = {}

    def on_made(self, number: int, extra: Mapping[str, Any], *, is_accepted: bool) -> None:
        if not is_accepted:
            self._frames[number] = FrameSplitter()

    def on_sent(self, number: int, parts: Sequence[Buffer]) -> None:
        frames = self._frames.get(number)
        if frames is not None:
            for frame in frames.feed(b"".join(bytes(part) for part in parts)):
                header = decode_request_header(frame)
                self.has_fetched_snapshot |= header.api_key == int(ApiKey.FETCH_SNAPSHOT)
                if header.api_key == int(ApiKey.FETCH):
                    asked = self._fetches.setdefault(number, {})
                    asked[header.correlation_id] = header.api_version

    def on_arrived(self, number: int, data: bytes) -> None: ...

    def on_lost(self, number: int) -> None:
        self._frames.pop(number, None)


_ARRIVED = (kinds.DATA, kinds.BUFFER)
RANDOM_SECRET_MIN = 32
"""Random bytes of which a broker can make a key are as many at least."""


def write_copy(
    files: Sequence[RecordingFile],
    path: Path,
    key: bytes,
    *,
    with_payloads: bool = True,
    on_copied: OnCopied = lambda _name, _header: None,
    on_doubt: OnDoubt = lambda _: None,
) -> None:
    """Write a collection of copies of ``files``, and check it: each copy replays equal, and no secret of the
    cluster that was found is in it. ``on_copied`` is told each that is checked; ``on_doubt``, where one has
    bytes that a client sent as a secret. A client can send any: they are no reason to refuse.

    ``key``: random, of this call. ``with_payloads``: with the keys and values of records. Raises CopyRefused,
    OSError, and what :class:`~nilometer.simulation.recorded_cluster.RecordedBroker` raises. There is no file
    then.
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    stand_ins = StandIns(key)
    left_out = {SECRETS} if with_payloads else {SECRETS, PAYLOADS}
    for file in files:
        _check_possible(file, with_payloads=with_payloads)
    names = list(_names(files))
    begun_name = os.fsdecode(os.fsencode(path.name)[:NAME_BYTES_MAX])
    begun = path.with_name(f".{begun_name}.{os.urandom(4).hex()}")
    writer = CollectionWriter(str(begun))
    try:
        originals = [_Original(file) for file in files]
        _check_one_cluster(originals)
        for original in originals:
            _Inputs(original, stand_ins)  # all secrets are known before any has its stand-in
        if not with_payloads:
            stand_ins.payloads = Payloads(key)
            stand_ins.payloads.internal_ids.update(*(original.internal_ids for original in originals))
        for original, name in zip(originals, names, strict=True):
            inputs = _Inputs(original, stand_ins)
            _learn_digests(inputs)
            writer.add(name, _header(inputs.header, left_out), inputs.frames())
        writer.close()
        for copy, name in zip(recordings_in(begun), names, strict=True):
            _check(copy, f"{path}:{name}", stand_ins, on_doubt)
            on_copied(f"{path}:{name}", copy.header)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # the name is not another's
        begun.replace(path)
    except BaseException as error:
        writer.abandon()
        begun.unlink(missing_ok=True)
        if isinstance(error, SecretsInPieces):
            raise CopyRefused(f"secrets cannot be told in what a recording has: {error}") from None
        raise


def _check_possible(file: RecordingFile, *, with_payloads: bool) -> None:
    config = BrokerConfig(file.header.settings)
    if config.tier is not None and not with_payloads:
        raise CopyRefused(
            f"{file.name} is of a broker with remote storage: records that were read there are in the "
            "recording, and are not copied without their keys and values yet"
        )


def _check_one_cluster(originals: Sequence[_Original]) -> None:
    known = [one for one in originals if one.cluster_id is not None]
    for one in known:
        if one.cluster_id != known[0].cluster_id:
            raise CopyRefused(
                f"{one.name} is of the cluster {one.cluster_id}, and {known[0].name} of "
                f"{known[0].cluster_id}: a file of both could not be replayed; save them apart"
            )


def _names(files: Sequence[RecordingFile]) -> Iterator[str]:
    seen = set[str]()
    for file in files:
        base = name = file.name.rpartition("/")[2].rpartition(":")[2]
        number = 1
        while name in seen:
            number += 1
            name = f"{number}-{base}"
        seen.add(name)
        yield name


def _header(header: Header, left_out: Set[str]) -> Header:
    return msgspec.structs.replace(header, left_out=sorted({*header.left_out, *left_out}))


def _learn_digests(inputs: _Inputs) -> None:
    """Let the broker run with the stand-ins, and note which digests differ."""
    digests: dict[int, bytes] = {}
    try:
        with closing(RecordedBroker(inputs)) as broker:
            broker.replay.retold = digests
            broker.play(lambda: False)
    except Diverged as difference:
        raise CopyRefused(
            f"{inputs.name} cannot be copied: its replay with stand-ins differs: {difference}"
        ) from None
    inputs.digests = digests


def _check(copy: RecordingFile, name: str, stand_ins: StandIns, on_doubt: OnDoubt) -> None:
    try:
        with closing(RecordedBroker(copy)) as broker:
            broker.play(lambda: False)
    except Diverged as difference:
        raise CopyRefused(f"{name} would not replay equal: {difference}") from None
    if (entry := _entry_with(copy, stand_ins.secrets)) is not None:
        raise CopyRefused(f"{name} would have a secret of the cluster, in {entry}")
    if (entry := _entry_with(copy, stand_ins.sent - stand_ins.secrets)) is not None:
        on_doubt(
            f"{name} has in {entry} what a client sent as a password or another secret: it has sent a name "
            "as one, or a secret as a name"
        )


def _entry_with(copy: RecordingFile, secrets: Iterable[bytes]) -> str | None:
    """Return which entry, the first one, has any of these; None if none has."""
    forms = [form for secret in secrets for form in forms_of(secret)]
    if not any(form in frame for frame in copy.frames() for form in forms):
        return None
    tape = _EntryReader(copy.frames())
    while tape.head is not None:
        kind, number, entry = tape.head.kind, tape.entries, tape.whole()
        if any(form in entry for form in forms):
            return f"entry {number} ({NAMES[kind]})"
        tape.advance()
    return None
