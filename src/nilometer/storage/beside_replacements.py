"""Reading on another thread while the owner of the log may replace segments by cleaned ones, or truncate it.

Such a reader opens an index and a log file by name, one after the other; in between, a replacement may have
given the name to another file, and a truncation may have shortened it. So if either happened meanwhile, the
result is dropped, whether it is a value or an error, and the read is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from nilometer.storage.local_log import LocalLog
from nilometer.storage.segments.offset_index import CorruptIndex
from nilometer.wire.errors import KafkaError

T = TypeVar("T")


def read_apart(log: LocalLog, work: Callable[[], T]) -> T:
    """Call ``work`` until no replacement or truncation met it; return its result or raise its error."""
    while True:
        before = log.replacements, log.truncations
        try:
            found = work()
        except (KafkaError, OSError, CorruptIndex):
            if _is_quiet(log, before):
                raise
        else:
            if _is_quiet(log, before):
                return found


def steps_apart(log: LocalLog, work: Callable[[], Generator[int, None, T]]) -> Generator[int, None, T]:
    """As :func:`read_apart`, for a read in steps, which ``work`` begins; each repetition begins it again."""
    while True:
        before = log.replacements, log.truncations
        try:
            found = yield from work()
        except (KafkaError, OSError, CorruptIndex):
            if _is_quiet(log, before):
                raise
        else:
            if _is_quiet(log, before):
                return found


def _is_quiet(log: LocalLog, before: tuple[int, int]) -> bool:
    return before[0] % 2 == 0 and (log.replacements, log.truncations) == before
