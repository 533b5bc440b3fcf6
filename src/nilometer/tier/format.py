"""What the tier's objects contain, and their names. Pure.

The folder of a partition, ``CLUSTER/TOPIC ID/PARTITION/``, has

- for each segment two objects that are never changed: ``BASE-ID.log``, the bytes of the log file, and
  ``BASE-ID.index``, all its indexes and the producers' state at its end. Each attempt to copy a segment has
  another id, so no name is written twice: random digits and, behind an ``x``, the CRC of the last batch;
- ``manifest-NUMBER``: a list of all segments at a moment. Each number is created once; the manifests together
  are the *chain* (see :mod:`nilometer.tier.chain`);
- ``head``: a number to begin with when the chain is read.

A manifest is a line of JSON with all but the segments, a line for each thousand of these, and one with the
CRC-32C of all before it. A manifest or an index object
that is not exactly as written raises DamagedObject, which says what is wrong.
"""

from __future__ import annotations

import itertools
import re
import struct
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from crc32c import crc32c
from msgspec import structs

from nilometer.steps import at_once
from nilometer.storage.segments.indexes import CorruptIndex, OffsetIndex, TimeIndex
from nilometer.storage.segments.transaction_index import PackedEntries

T = TypeVar("T")
FORMAT_VERSION = 2
"""Version 1 is that of :mod:`nilometer.tier.earlier_archives`."""

HEAD = "head"
_MANIFEST = "manifest-"


class DamagedObject(Exception):
    """The bytes of an object are not what a writer of the tier wrote."""


def partition_folder(cluster_id: str, topic_id: str, partition: int) -> str:
    return f"{cluster_id}/{topic_id}/{partition}/"


def manifest_name(number: int) -> str:
    return f"{_MANIFEST}{number:020d}"


def manifest_number(name: str) -> int | None:
    """Return the number of the manifest called ``name``; None if it is another object."""
    digits = name.removeprefix(_MANIFEST)
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() else None


# The manifest.


class RemoteSegment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A segment in the tier. Two of them may overlap: leaders roll their segments at different offsets."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    log_bytes: int
    """0 if compaction has left no record in it."""
    index_bytes: int
    has_aborted: bool
    """Whether a transaction was aborted in it: else its indexes need not be read to know of none."""
    attempt: str
    """The random part of its id."""
    epochs: tuple[tuple[int, int], ...]
    """(Leader epoch, first offset) of its records; the first one begins at the base offset."""
    last_crc: int | None = None
    """The CRC of its last batch, which tells its records from those of another cluster with the same epochs;
    None if compaction may have rewritten that batch, or it was not noted. It is a part of the id."""
    log_crc: int | None = None
    """CRC-32C of the bytes of the log file. Archives have it."""
    records: int | None = None
    """How many records it has. Archives say it."""

    @property
    def end_offset(self) -> int:
        return self.last_offset + 1

    @property
    def id(self) -> str:
        """What its names have besides the base offset."""
        return self.attempt if self.last_crc is None else f"{self.attempt}x{self.last_crc:08x}"

    @property
    def log_name(self) -> str:
        return f"{self.base_offset:020d}-{self.id}.log"

    @property
    def index_name(self) -> str:
        return f"{self.base_offset:020d}-{self.id}.index"

    @property
    def index_names(self) -> tuple[str, ...]:
        """The names of the objects that :meth:`sections` is given."""
        return (self.index_name,)

    def sections(self, objects: Sequence[bytes], folder: str) -> IndexSections:
        """Return what these objects of ``folder`` have. Raises DamagedObject."""
        return decode_index(objects[0], folder + self.index_name)

    @property
    def object_names(self) -> tuple[str, ...]:
        return (self.log_name, *self.index_names)


class Dropped(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """An object that no reader of this manifest needs; one of an earlier manifest may still read it."""

    name: str
    since_ms: int


class TopicFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What makes the topic again from its tier."""

    cluster_id: str
    topic_id: str
    topic: str
    partition: int
    partition_count: int
    settings: dict[str, str]
    metadata_entry: int
    """The last entry of the metadata log that the writer knew: the topic exists there."""


class Sums(NamedTuple):
    """What all segments of a manifest have together."""

    log_bytes: int
    newest_ms: int
    """The largest timestamp; -1 if there is no record."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the tier has of one partition. ``segments`` are ordered by base offset and by last offset."""

    format: int
    number: int
    oldest: int
    """Every manifest with a lower number was removed."""
    leader_epoch: int
    writer: str
    """A random id: two writers never write the same bytes."""
    written_ms: int
    """By the writer's clock; rising from one of its manifests to the next, also if that is set back."""
    log_start_offset: int
    """The first offset of the whole log that may be read, as of then."""
    segments: tuple[RemoteSegment, ...]
    dropped: tuple[Dropped, ...]
    topic: TopicFacts
    is_deleted: bool = False
    """Whether the topic was deleted: the last manifest of a chain."""
    claim: int = 0
    """The number under which its writer's cluster has the store: one with a higher number has taken it from
    those with lower ones, and their leader epochs do not count."""
    is_archive: bool = False
    """Whether it is of an archive: its writers are no leaders, and records that were deleted from the topic
    stay. All its manifests have the leader epoch -1: that each number is created once orders them."""

    @property
    def rank(self) -> tuple[int, int]:
        """Claim and leader epoch: a manifest with a lower rank than one before it is void."""
        return self.claim, self.leader_epoch

    @property
    def end_offset(self) -> int:
        """The offset after the last record in the tier; the log start offset if there is none."""
        return self.segments[-1].end_offset if self.segments else self.log_start_offset

    @property
    def sums(self) -> Sums:
        return at_once(self.summing())

    def summing(self) -> Generator[int, None, Sums]:
        """Return :attr:`sums`, in steps of so many segments."""
        log_bytes, newest_ms = 0, -1
        for some in in_lines(self.segments):
            log_bytes += sum(one.log_bytes for one in some)
            newest_ms = max(newest_ms, *(one.max_timestamp for one in some))
            yield len(some)
        return Sums(log_bytes, newest_ms)

    @property
    def objects(self) -> set[str]:
        """The names of all objects that this manifest mentions."""
        names = {name for one in self.segments for name in one.object_names}
        return names | {one.name for one in self.dropped}

    def holding(self, offset: int) -> int | None:
        """Return the place in ``segments`` of the first one that has ``offset``; None if none has it."""
        place = bisect_left(self.segments, offset, key=_last_offset)
        if place == len(self.segments) or self.segments[place].base_offset > offset:
            return None
        return place

    def mentions(self, segment: RemoteSegment) -> bool:
        """Whether this manifest has the segment, or had it."""
        place, name = self.holding(segment.last_offset), segment.log_name
        is_here = place is not None and self.segments[place] == segment
        return is_here or any(one.name == name for one in self.dropped)

    def adding(self, segment: RemoteSegment, now_ms: int) -> Generator[int, None, Manifest]:
        """Return a manifest that ends with ``segment``, without those it covers: another leader had rolled
        its segments at other offsets. In steps."""
        first = bisect_left(self.segments, segment.base_offset, key=_base_offset)
        kept = yield from self.dropping(self.segments[first:], now_ms)
        return structs.replace(kept, segments=(*kept.segments, segment))

    def without(self, gone: Sequence[RemoteSegment], now_ms: int) -> Manifest:
        """Return this manifest without the segments ``gone``. Their objects stay in the store for the grace
        period."""
        return at_once(self.dropping(gone, now_ms))

    def dropping(self, gone: Sequence[RemoteSegment], now_ms: int) -> Generator[int, None, Manifest]:
        """As :meth:`without`, in steps of so many segments."""
        if not gone:
            return self
        attempts, dropped, kept = set[str](), list(self.dropped), list[RemoteSegment]()
        for some in in_lines(gone):
            attempts.update(one.attempt for one in some)
            dropped += (Dropped(name, now_ms) for one in some for name in one.object_names)
            yield len(some)
        for some in in_lines(self.segments):
            kept += (one for one in some if one.attempt not in attempts)
            yield len(some)
        return structs.replace(self, segments=tuple(kept), dropped=tuple(dropped))


def _base_offset(segment: RemoteSegment) -> int:
    return segment.base_offset


def _last_offset(segment: RemoteSegment) -> int:
    return segment.last_offset


_WITH_CRC = re.compile(r"([0-9A-Za-z]+)x([0-9a-f]{8})")
"""An id with the CRC of the last batch."""


def _as_written(segment: RemoteSegment) -> tuple[object, ...]:
    """Return the elements of a segment in a manifest: eight, which earlier versions read, but in archives."""
    own = structs.astuple(segment)[:_PLAIN]
    written = (*own[:_ID], segment.id, *own[_ID + 1 :])
    return written if segment.log_crc is None else (*written, None, segment.log_crc, segment.records)


def _as_read(written: RemoteSegment) -> RemoteSegment:
    """Return the segment with the CRC that its id has."""
    found = _WITH_CRC.fullmatch(written.attempt)
    if found is None:
        return written if written.last_crc is None else structs.replace(written, last_crc=None)
    return structs.replace(written, attempt=found[1], last_crc=int(found[2], 16))


_ID = RemoteSegment.__struct_fields__.index("attempt")
_PLAIN = RemoteSegment.__struct_fields__.index("last_crc")
_to_manifest = msgspec.json.Decoder(Manifest).decode
_to_dropped = msgspec.json.Decoder(tuple[Dropped, ...]).decode
_to_segments = msgspec.json.Decoder(tuple[RemoteSegment, ...]).decode
_CRC_DIGITS = 8
_DROPPED, _BEHIND_DROPPED = b'"dropped":[', b']],"topic":'
"""What stands before and behind the names in a manifest's first line, which earlier versions read as one."""
_LONG_HEAD = 64 << 10
"""A first line of more bytes is read in parts of so many, about a thousand names."""
SEGMENTS_OF_A_LINE = 1_000
"""A line of so many is read in less than two milliseconds."""


def in_lines(elements: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """Yield the elements in parts of a line of a manifest."""
    rest = iter(elements)
    while part := tuple(itertools.islice(rest, SEGMENTS_OF_A_LINE)):
        yield part


def encode_manifest(manifest: Manifest) -> bytes:
    return at_once(encoding_manifest(manifest))


def encoding_manifest(manifest: Manifest) -> Generator[int, None, bytes]:
    """As :func:`encode_manifest`, in steps of so many segments, or names of what is dropped."""
    segments, dropped, encode = manifest.segments, manifest.dropped, msgspec.json.encode
    head = encode(structs.replace(manifest, segments=(), dropped=()))
    before, empty, behind = head.partition(_DROPPED + b"]")  # in a text of the head its quotes are escaped
    parts = [before, empty[:-1]]
    for at in range(0, len(dropped), SEGMENTS_OF_A_LINE):
        some = dropped[at : at + SEGMENTS_OF_A_LINE]
        parts += (b"," if at else b"", encode(some)[1:-1])
        yield len(some)
    parts += (b"]", behind, b"\n")
    for at in range(0, len(segments), SEGMENTS_OF_A_LINE):
        some = segments[at : at + SEGMENTS_OF_A_LINE]
        parts += (encode(tuple(map(_as_written, some))), b"\n")
        yield len(some)
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return b"".join((*parts, b"%08x\n" % crc))


def manifest_start(manifest: Manifest) -> bytes:
    """Return the first bytes of its object, which no other one of this number has: there are its writer, and
    when it was written."""
    head = msgspec.json.encode(structs.replace(manifest, segments=(), dropped=()))
    return head[: head.index(b',"segments":')]


def decode_manifest(data: bytes, number: int) -> Manifest:
    """Return the manifest in the object of ``number``. Raises DamagedObject."""
    return at_once(decoding_manifest(data, number))


def decoding_manifest(data: bytes, number: int) -> Generator[int, None, Manifest]:
    """As :func:`decode_manifest`, in steps of so many segments, or names of what is dropped."""
    end = max(len(data) - _CRC_DIGITS - 1, 0)
    if data[end:] != b"%08x\n" % crc32c(memoryview(data)[:end]) or data[end - 1 : end] != b"\n":
        raise DamagedObject(f"{manifest_name(number)} is not as it was written: its CRC differs")
    try:
        head, dropped = yield from _read_head(data, data.find(b"\n", 0, end))
        version = msgspec.json.decode(head, type=_Versioned).format
        if version != FORMAT_VERSION:
            raise DamagedObject(
                f"{manifest_name(number)} has format {version}, which this version cannot read"
            )
        manifest = _to_manifest(head)
        if manifest.number != number:
            raise DamagedObject(f"{manifest_name(number)} says that its number is {manifest.number}")
        segments, lines = list[RemoteSegment](), _lines(data, data.index(b"\n") + 1, end)
        for found in itertools.chain((manifest.segments,), map(_to_segments, lines)):
            _check_order((*segments[-1:], *found), number)
            segments += map(_as_read, found)
            yield len(found)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedObject(f"{manifest_name(number)}: {error}") from error
    return structs.replace(manifest, segments=tuple(segments), dropped=(*manifest.dropped, *dropped))


def _read_head(data: bytes, end: int) -> Generator[int, None, tuple[bytes, list[Dropped]]]:
    """Return the first line, which ends at ``end``, without what is dropped if that is much, and this."""
    dropped = list[Dropped]()
    start, stop = data.find(_DROPPED, 0, end) + len(_DROPPED), data.rfind(_BEHIND_DROPPED, 0, end) + 1
    if end <= _LONG_HEAD or not len(_DROPPED) <= start < stop:
        return data[:end], dropped
    at = start
    while at < stop:
        following = data.find(b"],[", at + _LONG_HEAD, stop) + 1 or stop
        found = _to_dropped(b"[%b]" % data[at:following])
        dropped += found
        at = following + 1
        yield len(found)
    return data[:start] + data[stop:end], dropped


def _lines(data: bytes, at: int, end: int) -> Iterator[memoryview]:
    """Yield the lines of ``data[at:end]``, each when it is wanted: all of them are many megabytes."""
    while at < end:
        following = data.index(b"\n", at)
        yield memoryview(data)[at:following]
        at = following + 1


class _Versioned(msgspec.Struct):
    format: int


def _check_order(segments: Sequence[RemoteSegment], number: int) -> None:
    before: RemoteSegment | None = None
    for one in segments:
        is_whole = 0 <= one.base_offset <= one.last_offset and one.log_bytes >= 0 and one.index_bytes > 0
        if not is_whole or (before is not None and not _precedes(before, one)):
            raise DamagedObject(f"{manifest_name(number)} has its segments in no valid order")
        before = one


def _precedes(before: RemoteSegment, after: RemoteSegment) -> bool:
    return before.base_offset < after.base_offset and before.last_offset < after.last_offset


# The index object: its sections in this order, each with its length and CRC-32C.

_INDEX_MAGIC = b"NLTI"
_INDEX_HEAD = struct.Struct(">4sHH")
"""Magic, format and the number of sections."""
_SECTION_HEAD = struct.Struct(">II")


class IndexSections(NamedTuple):
    """The files beside a log file, as on disk."""

    offsets: bytes
    times: bytes
    aborted: bytes
    producers: bytes
    """The snapshot of the producers at the segment's end; empty if the log has none."""


class RemoteIndexes(NamedTuple):
    """The indexes of a remote segment, parsed."""

    offsets: OffsetIndex
    times: TimeIndex
    aborted: PackedEntries


def encode_index(sections: IndexSections) -> bytes:
    parts = [_INDEX_HEAD.pack(_INDEX_MAGIC, FORMAT_VERSION, len(sections))]
    for section in sections:
        parts += (_SECTION_HEAD.pack(len(section), crc32c(section)), section)
    return b"".join(parts)


def decode_index(data: bytes, name: str) -> IndexSections:
    """Return the sections of the index object called ``name``. Raises DamagedObject."""
    try:
        magic, version, count = _INDEX_HEAD.unpack_from(data)
        if (magic, version, count) != (_INDEX_MAGIC, FORMAT_VERSION, len(IndexSections._fields)):
            raise DamagedObject(f"{name} is not an index of format {FORMAT_VERSION}")
        at, sections = _INDEX_HEAD.size, list[bytes]()
        for field in IndexSections._fields:
            length, crc = _SECTION_HEAD.unpack_from(data, at)
            at += _SECTION_HEAD.size
            section = data[at : at + length]
            if len(section) != length or crc32c(section) != crc:
                raise DamagedObject(
                    f"{name} is not as it was written: the CRC of its section {field} differs"
                )
            sections.append(section)
            at += length
    except struct.error:
        raise DamagedObject(f"{name} ends too early: it has {len(data)} bytes") from None
    if at != len(data):
        raise DamagedObject(f"{name} has {len(data) - at} bytes too many")
    return IndexSections(*sections)


def parse_indexes(sections: IndexSections, base_offset: int, name: str) -> RemoteIndexes:
    """Return the indexes of the segment at ``base_offset``. Raises DamagedObject."""
    try:
        return RemoteIndexes(
            OffsetIndex.parse(base_offset, sections.offsets),
            TimeIndex.parse(base_offset, sections.times),
            PackedEntries(base_offset, sections.aborted),
        )
    except CorruptIndex as error:
        raise DamagedObject(f"{name}: {error}") from error
