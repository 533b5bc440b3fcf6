"""The matcher: definitions -> one function from a line to what it is. Pure.

Invariants: the result depends on the line, its source, and (for times without a year) the record's timestamp,
and on nothing that was read before, so that a repeated batch gives the same rows; no line takes more time
than its length allows, whatever it contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from fnmatch import fnmatchcase
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from nilometer.pipeline.formats.columns import Columns, Line
from nilometer.pipeline.formats.definition import FormatDefinition, FormatError
from nilometer.pipeline.formats.readers import Reader, first_bytes_of, reader_of

BLANK: Final = Line("blank")
UNPARSED: Final = Line("unparsed")
HEADER_LABEL: Final = "header"
"""The label of a line with the names of columns."""
LINE_BYTES_MAX: Final = 1024 * 1024
"""A longer line is of no format. It is kept whole where lines are kept."""
_SOURCES_MAX: Final = 10_000


class _Compiled(NamedTuple):
    definition: FormatDefinition
    read: Reader
    columns: Columns
    first: frozenset[int]


class Matcher:
    """Finds the first of some formats that fits a line."""

    def __init__(self, definitions: Sequence[FormatDefinition], timezone: str = "UTC") -> None:
        """Compile the definitions; times without a zone are in ``timezone``. Raises FormatError."""
        zone = _zone(timezone)
        self.definitions = tuple(definitions)
        self._compiled = [
            _Compiled(one, reader_of(one), Columns(one, zone), first_bytes_of(one)) for one in definitions
        ]
        self._of_anywhere = _by_first_byte([one for one in self._compiled if not one.definition.files])
        self._has_files = any(one.files for one in definitions)
        self._by_source: dict[str, list[list[_Compiled]]] = {}

    @property
    def names(self) -> list[str]:
        """The names of the formats, in the order in which they are tried."""
        return list(dict.fromkeys(one.name for one in self.definitions))

    def match(self, line: bytes, source: str = "", recorded_us: int = 0) -> Line:
        """Return what ``line`` is. ``source`` is the path of its file, if known; ``recorded_us`` the time at
        which it was recorded, from which a time without a year gets one."""
        return self.match_text(text_of(line), source, recorded_us)

    def match_text(self, text: str, source: str = "", recorded_us: int = 0) -> Line:
        """Return what a line, decoded by ``text_of``, is."""
        if not text.strip(" "):
            return BLANK
        line = text.encode("utf-8", "replace")
        if len(line) > LINE_BYTES_MAX:
            return UNPARSED
        for compiled in self._candidates(source)[line[0]]:
            found = compiled.read(text, line)
            if found is None:
                continue
            if not found and compiled.definition.columns is not None:
                return Line(compiled.definition.name, label=HEADER_LABEL)
            fitted = compiled.columns.line(found, recorded_us)
            if fitted is not None:
                return fitted
        return UNPARSED

    def _candidates(self, source: str) -> list[list[_Compiled]]:
        """Return, by first byte, the formats that are tried for lines of this file."""
        if not self._has_files or not source:
            return self._of_anywhere
        known = self._by_source.get(source)
        if known is None:
            if len(self._by_source) >= _SOURCES_MAX:
                self._by_source.clear()
            known = _by_first_byte([one for one in self._compiled if _takes(one.definition, source)])
            self._by_source[source] = known
        return known


def text_of(line: bytes) -> str:
    """Decode a line: what is not UTF-8 becomes U+FFFD, and a carriage return at the end is dropped."""
    return line.decode("utf-8", "replace").removesuffix("\r")


def _takes(definition: FormatDefinition, source: str) -> bool:
    return not definition.files or any(fnmatchcase(source, one) for one in definition.files)


def _by_first_byte(compiled: Sequence[_Compiled]) -> list[list[_Compiled]]:
    return [[one for one in compiled if byte in one.first] for byte in range(256)]


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise FormatError(f"there is no time zone {name!r}; examples are UTC and Europe/Zurich") from None
