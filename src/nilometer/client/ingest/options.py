"""What an ingest is asked for, and what it tells of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    paths: Sequence[str]
    topic: str
    state_path: str
    follow: bool = False
    key_by_path: bool = False
    """Give all lines of a file the same key, and so the same partition and their order."""


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
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """Files that are not read, and why."""
    looks: int = 0
    """How often the files were looked for."""
    problems: list[str] = field(default_factory=list[str])


class LineRefused(Exception):
    """A line that the topic does not take; the message names file, line and reason."""
