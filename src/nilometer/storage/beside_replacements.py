"""Reading on another thread while the owner of the log may replace segments by cleaned ones.

Such a reader opens files by name, one after another. Between its look at the segments, at an index and at a
log file, another file may have got the name. Nothing read then is believed, neither a result nor damage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nilometer.storage.local_log import LocalLog
from nilometer.storage.segments.offset_index import CorruptIndex
from nilometer.wire.errors import KafkaError

T = TypeVar("T")


def read_apart(log: LocalLog, work: Callable[[], T]) -> T:
    """What ``work`` returns or raises, done again where segments were replaced meanwhile."""
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
