"""Sends lines as records: adds headers, skips lines that are in the topic already, handles long lines."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from nilometer.client.ingest.ledger import Ledger
from nilometer.client.ingest.line_splitter import LINE_BYTES_MAX, LinePart, LineTooLong
from nilometer.client.ingest.long_line import HEADERS_MAX, NUMBER_MAX, LongLine
from nilometer.client.ingest.options import IngestOptions, IngestTotals, Oversized, line_refused
from nilometer.client.ingest.read_back import LINE_HEADER, PIECE_HEADER, checksum
from nilometer.client.ingest.record_limit import RecordLimit
from nilometer.client.ingest.source_run import SourceRun
from nilometer.client.producer.producer import Headers, Producer
from nilometer.wire.errors import KafkaError

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
        self._ledger.on_sent(delivery, run, number)
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
