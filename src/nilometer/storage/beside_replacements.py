"""Reading on another thread while the owner of the log may replace segments by cleaned ones.

Such a reader opens an index and a log file by name, one after the other; in between, a replacement may have
given the name to another file. So if a replacement happened meanwhile, the result is dropped, whether it is a
value or an error, and the read is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nilometer.storage.local_log import LocalLog
from nilometer.storage.segments.offset_index import CorruptIndex
from nilometer.wire.errors import KafkaError

T = TypeVar("T")


def read_apart(log: LocalLog, work: Callable[[], T]) -> T:
    """Call ``work`` until no segment was replaced while it ran; return its result or raise its error."""
    while True:
        before = log.replacements
        try:
            found = work()
        except (KafkaError, OSError, CorruptIndex):
            if _is_quiet(log, before):
                raise
        else:
            if _is_quiet(log, before):
                return found


def _is_quiet(log: LocalLog, before: int) -> bool:
    return before % 2 == 0 and log.replacements == before
