"""Sends lines as records: adds headers, skips lines that are in the topic already, handles long lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

from nilometer.client.admin.admin import Admin, ResourceType
from nilometer.client.ingest.ledger import IngestOptions, IngestTotals, Ledger, Oversized, line_refused
from nilometer.client.ingest.line_splitter import LINE_BYTES_MAX, LinePart, LineTooLong
from nilometer.client.ingest.source_run import SourceRun
from nilometer.client.ingest.state_file import LINE_HEADER, PIECE_HEADER, checksum
from nilometer.client.producer.batch import Deliveries, size_bound
from nilometer.client.producer.producer import Headers, Producer
from nilometer.client.producer.producer_settings import ProducerConfig
from nilometer.client.settings import GivenConfig
from nilometer.invariants import check
from nilometer.runtime import Runtime
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import HEADER_BYTES
from nilometer.wire.records import BatchBuilder, NumberedHeaders

# The maximum size of a record, from ``max.request.size`` and the topic's ``max.message.bytes``.
#
# It is read before anything is sent, so that a line that is too long is detected before later lines are in
# the topic. If this client may not read the topic's configuration, a broker must reject the record.

MESSAGE_BYTES_KEY = "max.message.bytes"
SETTINGS_NOT_TOLD = frozenset(
    {
        ErrorCode.unsupported_version,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
    }
)


@dataclass(frozen=True, slots=True)
class RecordLimit:
    request_bytes: int
    """``max.request.size``: the limit for a record before compression."""
    message_bytes: int | None = None
    """The topic's ``max.message.bytes``: the limit for a batch after compression; None if unknown."""
    codec: Codec = Codec.NONE
    level: int | None = None

    def value_bytes(self, key: bytes | None, headers: Headers) -> int:
        """Return the size up to which every value fits; 0 if none does."""
        most = self.request_bytes
        if self.message_bytes is not None:
            most = min(most, self.message_bytes - HEADER_BYTES)
        return max(most - size_bound(key, b"", headers), 0)

    def value_bytes_max(self, key: bytes | None, headers: Headers) -> int:
        """Return the size above which no value fits, however well it compresses."""
        return max(self.request_bytes - size_bound(key, b"", headers), 0)

    def fits(self, key: bytes | None, value: bytes, headers: Headers) -> bool:
        """Whether the record fits, if compressed alone in its batch."""
        if size_bound(key, value, headers) > self.request_bytes:
            return False
        if self.message_bytes is None:
            return True
        batch = BatchBuilder(self.codec, level=self.level)
        batch.append(0, key, value, headers)
        return len(batch.build()) <= self.message_bytes

    def __str__(self) -> str:
        named = [f"max.request.size is {self.request_bytes}"]
        if self.message_bytes is not None:
            named.append(f"the topic's {MESSAGE_BYTES_KEY} {self.message_bytes}")
        return " and ".join(named)


async def learn_record_limit(
    runtime: Runtime, common: GivenConfig, producer: ProducerConfig, topic: str
) -> RecordLimit:
    """Return the limit for records of ``topic``. Raises KafkaError.

    ``common`` are the settings to connect with; ``producer`` has the size limit and the compression.
    """
    message_bytes: int | None = None
    try:
        async with Admin(runtime, common) as admin:
            entry = (await admin.describe_configs(ResourceType.TOPIC, topic)).get(MESSAGE_BYTES_KEY)
        if entry is not None and entry.value is not None:
            message_bytes = int(entry.value)
    except KafkaError as error:
        if error.code not in SETTINGS_NOT_TOLD:
            raise
    return RecordLimit(producer.max_request_size, message_bytes, producer.codec, producer.level)


# Makes the records for a line that fits into no record: none, its beginning, or all of it in pieces. Pure.
#
# The records do not depend on the portions in which the line's bytes arrive: after a crash the same records
# are made again. UTF-8 text is cut between characters.

TRUNCATED_HEADER = "truncated"
"""The header with the size of the whole line, in bytes."""
PIECES_HEADER = "pieces"
"""The header with the number of pieces; only on the last piece."""

NUMBER_MAX = b"9" * 20
HEADERS_MAX: Headers = tuple((name, NUMBER_MAX) for name in (TRUNCATED_HEADER, PIECE_HEADER, PIECES_HEADER))
"""Headers that are at least as large as those of any record made here."""

LineRecord = tuple[bytes, Headers]
"""Value and headers."""


class LongLine:
    """One line that is too long, while its bytes arrive."""

    def __init__(self, action: Oversized, value_bytes: int) -> None:
        """``value_bytes`` is the maximum size of a record's value; at least 4, the largest character."""
        check(action is not Oversized.FAIL, "a line that is kept is cut or split", action)
        check(value_bytes >= len("🙂".encode()), "a record has room for a character", value_bytes)
        self.size = 0
        self._action = action
        self._value_bytes = value_bytes
        self._kept = bytearray()
        self._pieces = 0

    def feed(self, data: bytes) -> list[LineRecord]:
        """Take the line's next bytes; return the records that they complete."""
        self.size += len(data)
        match self._action:
            case Oversized.TRUNCATE:
                self._kept += data[: max(self._value_bytes + 1 - len(self._kept), 0)]
            case Oversized.SPLIT:
                self._kept += data
                return self._full_pieces()
            case _:
                pass
        return []

    def finish(self) -> list[LineRecord]:
        """Return the last records, after all of the line's bytes."""
        match self._action:
            case Oversized.TRUNCATE:
                cut = _cut(self._kept, self._value_bytes)
                return [(bytes(self._kept[:cut]), ((TRUNCATED_HEADER, b"%d" % self.size),))]
            case Oversized.SPLIT:
                value, (piece,) = self._piece(bytes(self._kept))
                return [(value, (piece, (PIECES_HEADER, b"%d" % self._pieces)))]
            case _:
                return []

    def _full_pieces(self) -> list[LineRecord]:
        """Return the pieces that are followed by more of the line."""
        found: list[LineRecord] = []
        position, end = 0, len(self._kept)
        while end - position > self._value_bytes:
            cut = _cut(self._kept, position + self._value_bytes)
            found.append(self._piece(bytes(self._kept[position:cut])))
            position = cut
        del self._kept[:position]
        return found

    def _piece(self, value: bytes) -> LineRecord:
        self._pieces += 1
        return value, ((PIECE_HEADER, b"%d" % self._pieces),)


def _cut(data: bytearray, limit: int) -> int:
    """Return where to cut ``data``: at ``limit``, or up to 3 bytes earlier to avoid cutting a character."""
    if len(data) <= limit:
        return len(data)
    for cut in range(limit, limit - 4, -1):
        if data[cut] & 0xC0 != 0x80:  # a character begins here
            return cut
    return limit  # not UTF-8


PIECE_BYTES_MIN = 4
"""The smallest useful maximum size of a piece: the largest UTF-8 character."""


class Allowance(NamedTuple):
    """Limits for the lines of one source, in bytes."""

    surely: int
    """Up to this size every line fits into a record."""
    at_most: int
    """Above this size no line does; between the two it depends on compression."""
    piece: int
    """The maximum size of the pieces of a line that does not fit."""


class LineSender:
    def __init__(
        self,
        producer: Producer,
        ledger: Ledger,
        options: IngestOptions,
        totals: IngestTotals,
        limit: RecordLimit,
    ) -> None:
        self._producer = producer
        self._ledger = ledger
        self._options = options
        self._totals = totals
        self._limit = limit
        self._allowances: dict[int, Allowance] = {}
        self._long: WeakKeyDictionary[SourceRun, LongLine] = WeakKeyDictionary()
        """The long line of each source that is not complete yet."""

    async def take(self, run: SourceRun, data: bytes) -> None:
        """Send the lines that ``data``, the next bytes of a source, completes; advance the run's mark.

        Raises LineRefused. Raises LineTooLong for a line that stops its file: the lines before it are sent,
        and the mark is at their end.
        """
        allowance = self._allowance(run)
        run.splitter.limit = min(allowance.at_most, LINE_BYTES_MAX)
        begun, holes = run.lines, run.splitter.hole_bytes
        lines = run.splitter.feed(data)
        if run.splitter.hole_bytes > holes:
            known = self._totals.holes.get(run.path, 0)
            self._totals.holes[run.path] = known + run.splitter.hole_bytes - holes
        whole, run.held = run.held + data, b""
        try:
            if self._are_usual(run, lines, allowance):
                await self._send_together(run, cast(list[bytes], lines))
            else:
                for line in lines:
                    await self._take_line(run, line, allowance)
        except LineTooLong:
            run.mark.feed(whole[: _end_of_line(whole, run.lines - begun)])
            raise
        if run.joiner.lines:
            end = _end_of_line(whole, run.lines - begun)
            whole, run.held = whole[:end], whole[end:]
        run.mark.feed(whole)

    async def flush(self, run: SourceRun) -> None:
        """Send the open event, to which no line has come for some time. Raises LineRefused."""
        await self._send_event(run, run.joiner.take())
        run.mark.feed(run.held)
        run.held = b""

    async def finish(self, run: SourceRun) -> None:
        """Send what is left, also a last line without a newline. Raises LineRefused, LineTooLong."""
        line, allowance = run.splitter.finish(), self._allowance(run)
        if line is not None:
            if not isinstance(line, bytes) or len(line) > allowance.surely:
                await self.flush(run)  # it may be the line that stops the file
            await self._take_line(run, line, allowance)
        await self.flush(run)
        if line is not None:
            run.mark.finish()

    # --- many lines

    def _are_usual(self, run: SourceRun, lines: list[bytes | LinePart], allowance: Allowance) -> bool:
        """Whether each of ``lines`` is a record of its own that surely fits, and none is in the topic."""
        if self._options.join_traces or self._ledger.has_lines_of(run) or run in self._long:
            return False
        return all(isinstance(line, bytes) and len(line) <= allowance.surely for line in lines)

    async def _send_together(self, run: SourceRun, lines: list[bytes]) -> None:
        """Send lines, a batch's worth at a time. Raises LineRefused."""
        path, source = run.headers
        headers = NumberedHeaders((path,), LINE_HEADER, run.lines + 1, (source,))
        start = 0
        while start < len(lines):
            try:
                sent = await self._producer.send_numbered(
                    self._options.topic, lines, start, key=self._key(run), headers=headers
                )
            except KafkaError as error:
                raise line_refused(run.path, run.lines + 1, error) from error
            self._ledger.on_sent(sent, run, run.lines + 1)
            self._count(run, len(sent))
            run.lines += len(sent)
            start += len(sent)

    # --- one line

    async def _take_line(self, run: SourceRun, line: bytes | LinePart, allowance: Allowance) -> None:
        if not isinstance(line, bytes) or len(line) > allowance.surely:
            await self._send_event(run, run.joiner.take())
            await self._send_above(run, line, allowance)
        elif self._options.join_traces:
            await self._send_event(run, run.joiner.add(line, allowance.surely))
        else:
            await self._send_line(run, line)

    async def _send_event(self, run: SourceRun, lines: list[bytes]) -> None:
        """Send the lines of an event in one record, with the number of the first one.

        Where an event ended before a crash depends on pauses: what is in the topic already is left out.
        """
        while lines:
            there = self._lines_there(run, lines)
            if not there:
                await self._send(run, run.lines + 1, b"\n".join(lines))
                self._count(run, len(lines))
            self._totals.lines_there += there
            run.lines += there or len(lines)
            lines = lines[there:] if there else []

    def _lines_there(self, run: SourceRun, lines: list[bytes]) -> int:
        """Return how many of these lines are one record in the topic already; 0 if there is none."""
        if not self._ledger.has_lines_of(run):
            return 0
        counts = range(len(lines), 0, -1)
        return next((n for n in counts if self._is_there(run, run.lines + 1, b"\n".join(lines[:n]), ())), 0)

    async def _send_line(self, run: SourceRun, line: bytes) -> None:
        run.lines += 1
        if await self._send(run, run.lines, line):
            self._count(run)

    async def _send_above(self, run: SourceRun, line: bytes | LinePart, allowance: Allowance) -> None:
        """Send a line that may not fit into a record, or a part of one, by the option ``oversized``."""
        long = self._long.get(run)
        if isinstance(line, bytes):
            number = run.lines + 1
            if self._limit.fits(self._key(run), line, self._headers(run, number)):
                await self._send_line(run, line)
                return
            line = LinePart(line, is_last=True)
        if long is None:
            long = self._long[run] = self._begin(run, allowance)
        records = long.feed(line.data)
        if line.is_last:
            records += long.finish()
            del self._long[run]
        sent = [await self._send(run, run.lines + 1, value, extra) for value, extra in records]
        if line.is_last:
            run.lines += 1  # not before: a checkpoint between two parts must count complete lines only
            self._totals.oversized[run.path] = self._totals.oversized.get(run.path, 0) + 1
            if any(sent):
                self._count(run)

    def _begin(self, run: SourceRun, allowance: Allowance) -> LongLine:
        action = self._options.oversized
        if action is Oversized.FAIL or (action is not Oversized.SKIP and allowance.piece < PIECE_BYTES_MIN):
            raise LineTooLong(
                f"line {run.lines + 1} does not fit into a record ({self._limit}), "
                "so the file is not read any further; raise the limits, "
                "or give --oversized skip, truncate or split"
            )
        return LongLine(action, max(allowance.piece, PIECE_BYTES_MIN))

    async def _send(self, run: SourceRun, number: int, value: bytes, extra: Headers = ()) -> bool:
        """Send one record; return False, without sending, if it is in the topic already.

        ``extra`` are additional headers. Raises LineRefused.
        """
        if self._ledger.has_lines_of(run) and self._is_there(run, number, value, extra):
            self._totals.lines_there += 1
            return False
        headers = (*self._headers(run, number), *extra) if extra else self._headers(run, number)
        try:
            delivery = await self._producer.send(
                self._options.topic, value, key=self._key(run), headers=headers
            )
        except KafkaError as error:
            raise line_refused(run.path, number, error) from error
        self._ledger.on_sent(Deliveries.of(delivery), run, number)
        return True

    def _is_there(self, run: SourceRun, number: int, value: bytes, extra: Headers) -> bool:
        piece = dict(extra).get(PIECE_HEADER) or b""
        return self._ledger.is_there(run, number, checksum(value, piece))

    def _count(self, run: SourceRun, lines: int = 1) -> None:
        self._totals.lines += lines
        self._totals.files[run.source.path] = self._totals.files.get(run.source.path, 0) + lines

    def _key(self, run: SourceRun) -> bytes | None:
        return run.headers[0][1] if self._options.key_by_path else None

    def _headers(self, run: SourceRun, number: int) -> Headers:
        path, source = run.headers
        return path, (LINE_HEADER, b"%d" % number), source

    def _allowance(self, run: SourceRun) -> Allowance:
        known = self._allowances.get(run.source.number)
        if known is None:
            path, source = run.headers
            key, headers = self._key(run), (path, (LINE_HEADER, NUMBER_MAX), source)
            known = self._allowances[run.source.number] = Allowance(
                surely=self._limit.value_bytes(key, headers),
                at_most=self._limit.value_bytes_max(key, headers),
                piece=self._limit.value_bytes(key, (*headers, *HEADERS_MAX)),
            )
        return known


def _end_of_line(data: bytes, lines: int) -> int:
    """Return the position after so many lines of ``data``."""
    end = 0
    for _ in range(lines):
        end = data.index(b"\n", end) + 1
    return end
