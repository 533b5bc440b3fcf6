"""Generates logs with everything that Kafka's format allows, by seed, and the rows that a reader must return.

The batches are encoded here, with only the compression codecs of Nilometer. They contain gaps as after
compaction, empty batches, control batches, aborted and open transactions, nulls, headers, and timestamps
before 1970.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from nilometer.wire.compression import Codec, compress

CREATE_TIME, LOG_APPEND_TIME = 0, 1
TRANSACTIONAL, CONTROL = 0x10, 0x20
PRODUCERS = (7, 8, 9)
"""The ids of the transactional producers; producer 5 is idempotent only."""
_STARTS = (0, 0, 0, 0, 17, 2**31 - 9, 5_000_000_000)
_TIMES = (-1, 0, 1, -86_400_000, -1_900_000_000_000, 1_700_000_000_000, 4_000_000_000_000)
_HEADER_KEYS = (b"", b"a", b"a", "ü€😀".encode(), b"\xff\xfe", b"half \xe2\x82", b"k" * 300)
_CODECS = tuple(Codec)


class Row(NamedTuple):
    """A record as a reader returns it; the timestamp is in milliseconds."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...] | None


class _Record(NamedTuple):
    delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


@dataclass(slots=True)
class GeneratedLog:
    start: int
    end: int = 0
    segments: list[tuple[int, bytearray]] = field(default_factory=list[tuple[int, bytearray]])
    rows: list[Row] = field(default_factory=list[Row])
    aborted: set[int] = field(default_factory=set[int])
    times: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(offset, timestamp) of every record, including those of control batches."""
    last_stable: int = 0
    operations: list[str] = field(default_factory=list[str])

    def readable(self, committed: bool) -> list[Row]:
        if not committed:
            return self.rows
        return [row for row in self.rows if row.offset < self.last_stable and row.offset not in self.aborted]

    def readable_end(self, committed: bool) -> int:
        return self.last_stable if committed else self.end

    def write(self, folder: Path) -> None:
        """Replace the files of an empty partition's folder by this log; its broker must be stopped."""
        for path in folder.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for base_offset, data in self.segments:
            (folder / f"{base_offset:020d}.log").write_bytes(data)


def generated_log(chance: random.Random) -> GeneratedLog:
    return _Generator(chance).log


class _Generator:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        start = chance.choice(_STARTS)
        self.log = GeneratedLog(start, start)
        self._open: dict[int, tuple[int, list[int]]] = {}
        self._sequences = dict.fromkeys((5, *PRODUCERS), 0)
        self._sizes = chance.choice([(0, 5), (0, 40), (30, 40), (50_000, 60_000)])
        self._roll()
        for _ in range(chance.choice([0, 1, 4, 12, 25])):
            self._step()
        self.log.last_stable = min([self.log.end, *(first for first, _ in self._open.values())])

    def _step(self) -> None:
        chance = self._chance
        if chance.random() < 0.15 and self.log.segments[-1][1]:
            self._roll()
        kind = chance.random()
        if kind < 0.3:
            producer_id = chance.choice(PRODUCERS)
            if producer_id in self._open:
                self._gap()  # not right below the last stable offset: Spark's connector waits there in vain
            self._data(producer_id, TRANSACTIONAL)
            return
        self._gap()
        if kind < 0.65:
            self._data(-1)
        elif kind < 0.75:
            self._data(5)
        elif kind < 0.95:
            self._marker(chance.choice([*self._open] or PRODUCERS), commit=chance.random() < 0.5)
        else:
            self._append([], chance.randrange(5), 5 if chance.random() < 0.5 else -1, 0, Codec.NONE)

    def _gap(self) -> None:
        if self._chance.random() < 0.25:
            self.log.end += self._chance.choice([1, 2, 30, 300])

    def _roll(self) -> None:
        self.log.segments.append((self.log.end, bytearray()))

    def _data(self, producer_id: int, attributes: int = 0) -> None:
        chance = self._chance
        delta, records = -1, []
        newest = chance.choice(_TIMES)
        for _ in range(chance.choice([1, 1, 2, 9, 60]) if self._sizes[0] < 1000 else 3):
            delta += chance.choice([1, 1, 1, 1, 7])
            time = newest + chance.randrange(-500, 500) if newest > 1 else chance.choice(_TIMES)
            records.append(_Record(delta, time, self._bytes(), self._bytes(), self._headers()))
        last_delta = delta + chance.choice([0, 0, 0, 4])
        if chance.random() < 0.15:
            attributes |= LOG_APPEND_TIME << 3
        first, offsets = self.log.end, [self.log.end + one.delta for one in records]
        if attributes & TRANSACTIONAL:
            self._open.setdefault(producer_id, (first, []))[1].extend(offsets)
        self._append(records, last_delta, producer_id, attributes, chance.choice(_CODECS))

    def _marker(self, producer_id: int, commit: bool) -> None:
        _, offsets = self._open.pop(producer_id, (0, []))
        if not commit:
            self.log.aborted.update(offsets)
        time = self._chance.choice(_TIMES)
        record = _Record(0, time, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 3), ())
        self._append([record], 0, producer_id, TRANSACTIONAL | CONTROL, Codec.NONE)

    def _append(
        self, records: Sequence[_Record], last_delta: int, producer_id: int, attributes: int, codec: Codec
    ) -> None:
        log, base = self.log, self.log.end
        newest = max((one.timestamp for one in records), default=-1)
        sequence = -1
        if producer_id >= 0 and not attributes & CONTROL:
            sequence = self._sequences[producer_id]
            self._sequences[producer_id] += last_delta + 1
        log.segments[-1][1].extend(
            encode_batch(base, records, last_delta, attributes | codec, newest, producer_id, sequence)
        )
        by_broker = attributes >> 3 & 1
        for one in records:
            time = newest if by_broker else one.timestamp
            log.times.append((base + one.delta, time))
            if not attributes & CONTROL:
                headers = tuple((key.decode("utf-8", "replace"), value) for key, value in one.headers)
                log.rows.append(Row(base + one.delta, one.key, one.value, time, by_broker, headers or None))
        log.end = base + last_delta + 1
        log.operations.append(
            f"{base}..{log.end - 1}: {len(records)} records, {codec.name}, attributes {attributes:#x}, "
            f"producer {producer_id}, newest {newest}"
        )

    def _bytes(self) -> bytes | None:
        chance = self._chance
        if chance.random() < 0.15:
            return None
        return chance.randbytes(3) * (chance.randint(*self._sizes) // 3)

    def _headers(self) -> tuple[tuple[bytes, bytes | None], ...]:
        chance = self._chance
        if chance.random() < 0.7:
            return ()
        count = chance.choice([1, 2, 5])
        return tuple(
            (chance.choice(_HEADER_KEYS), chance.choice([None, b"", b"1", b"v" * 99])) for _ in range(count)
        )


def encode_batch(
    base_offset: int,
    records: Sequence[_Record],
    last_delta: int,
    attributes: int,
    newest: int,
    producer_id: int,
    sequence: int,
) -> bytes:
    """Encode a record batch of format 2 (KIP-98), with leader epoch 0 and producer epoch 0."""
    oldest = records[0].timestamp if records else -1
    body = b"".join(map(bytes, (_encode_record(one, oldest) for one in records)))
    payload = compress(Codec(attributes & 7), body) if records else b""
    epoch = 0 if producer_id >= 0 else -1
    signed = struct.pack(
        ">hiqqqhii", attributes, last_delta, oldest, newest, producer_id, epoch, sequence, len(records)
    )
    signed += payload
    head = struct.pack(">qiibI", base_offset, 9 + len(signed), 0, 2, crc32c(signed))
    return head + signed


def _encode_record(one: _Record, oldest: int) -> bytes:
    parts = [b"\0", _varint(one.timestamp - oldest), _varint(one.delta), *_field(one.key), *_field(one.value)]
    parts.append(_varint(len(one.headers)))
    for key, value in one.headers:
        parts += [*_field(key), *_field(value)]
    body = b"".join(parts)
    return _varint(len(body)) + body


def _field(data: bytes | None) -> Iterator[bytes]:
    yield _varint(-1 if data is None else len(data))
    yield data or b""


def _varint(number: int) -> bytes:
    """Encode a zigzag varint: seven bits per byte, the lowest first."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
