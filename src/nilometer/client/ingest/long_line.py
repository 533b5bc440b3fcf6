"""What becomes of a line that no record can hold: nothing, its beginning, or all of it in pieces. Pure.

The records do not depend on how the bytes of the line came: after a crash the same ones are made again. Cuts
are made between the characters of UTF-8 where the line is of that.
"""

from __future__ import annotations

from nilometer.client.ingest.options import Oversized
from nilometer.client.ingest.read_back import PIECE_HEADER
from nilometer.client.producer.producer import Headers

TRUNCATED_HEADER = "truncated"
"""The bytes that the line had."""
PIECES_HEADER = "pieces"
"""How many there are: on the last one."""

NUMBER_MAX = b"9" * 20
HEADERS_MAX: Headers = tuple((name, NUMBER_MAX) for name in (TRUNCATED_HEADER, PIECE_HEADER, PIECES_HEADER))
"""As large as the headers of any record made here."""

LineRecord = tuple[bytes, Headers]
"""Value and headers."""


class LongLine:
    """One line, as its bytes come."""

    def __init__(self, action: Oversized, value_bytes: int) -> None:
        """``value_bytes``: of each record, at most; at least 4, as many as a character has."""
        assert action is not Oversized.FAIL and value_bytes >= len("🙂".encode())
        self.size = 0
        self._action = action
        self._value_bytes = value_bytes
        self._kept = bytearray()
        self._pieces = 0

    def feed(self, data: bytes) -> list[LineRecord]:
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
        """After the last of its bytes."""
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
        """Those behind which there is more of the line."""
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
    """Where to cut ``data``: at ``limit``, or up to three bytes before it where a character would be cut."""
    if len(data) <= limit:
        return len(data)
    for cut in range(limit, limit - 4, -1):
        if data[cut] & 0xC0 != 0x80:  # a character begins here
            return cut
    return limit  # not UTF-8
