"""What an ingest is asked for, and what it tells of itself."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from nilometer.wire.errors import ErrorCode, KafkaError


class Oversized(enum.Enum):
    """What is done about a line that no record of the topic can hold."""

    FAIL = "fail"
    """Its file is not read any further; the others are."""
    SKIP = "skip"
    TRUNCATE = "truncate"
    """Its beginning is sent."""
    SPLIT = "split"
    """It is sent in pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    paths: Sequence[str]
    topic: str
    state_path: str
    follow: bool = False
    key_by_path: bool = False
    """Give all lines of a file the same key, and so the same partition and their order."""
    oversized: Oversized = Oversized.FAIL


@dataclass(slots=True)
class IngestTotals:
    lines: int = 0
    lines_there: int = 0
    """Lines that were in the topic already."""
    bytes_read: int = 0
    bytes_total: int = 0
    """Of the files being read, as they lie there."""
    files: dict[str, int] = field(default_factory=dict[str, int])
    """Lines sent, by file."""
    oversized: dict[str, int] = field(default_factory=dict[str, int])
    """Lines that no record could hold as they are and that were skipped, truncated or split, by file."""
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """Files that are not read, and why."""
    looks: int = 0
    """How often the files were looked for."""
    errors: list[str] = field(default_factory=list[str])


class LineRefused(Exception):
    """A line that the topic does not take; the message names file, line and reason."""


def line_refused(path: str, line: int, error: KafkaError) -> LineRefused:
    hint = ""
    if error.code == ErrorCode.message_too_large:
        hint = (
            "; the topic's max.message.bytes was lowered, or this client may not read it: "
            "start again, or set max.request.size to it"
        )
    return LineRefused(f"{path}, line {line}: {error}{hint}")
