"""The options of an ingest, and its totals."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from nilometer.wire.errors import ErrorCode, KafkaError


class Oversized(enum.Enum):
    """The handling of a line that does not fit into a record of the topic."""

    FAIL = "fail"
    """Its file is not read any further; other files are."""
    SKIP = "skip"
    TRUNCATE = "truncate"
    """Its beginning is sent."""
    SPLIT = "split"
    """It is sent in pieces, one record each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    paths: Sequence[str]
    topic: str
    state_path: str
    follow: bool = False
    key_by_path: bool = False
    """Give all lines of a file the same key, and so the same partition and their order."""
    oversized: Oversized = Oversized.FAIL
    join_traces: bool = False
    """Send the lines of a trace with the line before them, in one record."""


@dataclass(slots=True)
class IngestTotals:
    lines: int = 0
    lines_there: int = 0
    """The number of lines that were in the topic already and were not sent."""
    bytes_read: int = 0
    bytes_total: int = 0
    """The sizes of the files being read, before decompression."""
    files: dict[str, int] = field(default_factory=dict[str, int])
    """File to the number of its lines sent."""
    oversized: dict[str, int] = field(default_factory=dict[str, int])
    """File to the number of its lines that fit into no record and were skipped, truncated or split."""
    holes: dict[str, int] = field(default_factory=dict[str, int])
    """File to the number of NULs before lines, which are no part of them."""
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """File that is not read to the reason."""
    looks: int = 0
    """How often the folders were listed."""
    errors: list[str] = field(default_factory=list[str])


class LineRefused(Exception):
    """The topic rejected a line; the message names file, line and reason."""


def line_refused(path: str, line: int, error: KafkaError) -> LineRefused:
    hint = ""
    if error.code == ErrorCode.message_too_large:
        hint = (
            "; the topic's max.message.bytes was lowered, or this client may not read it: "
            "start again, or set max.request.size to it"
        )
    return LineRefused(f"{path}, line {line}: {error}{hint}")
