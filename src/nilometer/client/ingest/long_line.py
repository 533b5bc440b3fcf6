"""Makes the records for a line that fits into no record: none, its beginning, or all of it in pieces. Pure.

The records do not depend on the portions in which the line's bytes arrive: after a crash the same records are
made again. UTF-8 text is cut between characters.
"""

from __future__ import annotations

from nilometer.client.ingest.options import Oversized
from nilometer.client.ingest.read_back import PIECE_HEADER
from nilometer.client.producer.producer import Headers
from nilometer.invariants import check

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
