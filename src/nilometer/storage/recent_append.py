"""The batches of an append, kept in memory while the fetches that wait for them are answered.

They are the bytes that were checked and written; so these fetches need not read them back.
"""

from __future__ import annotations

from typing import NamedTuple

from nilometer.storage.segments.segment import LogSegment
from nilometer.wire.compression import Bytes


class KeptRecords(NamedTuple):
    """Batches from ``first_offset`` to ``next_offset``, at byte ``position`` of ``segment``."""

    first_offset: int
    next_offset: int
    records: Bytes
    segment: LogSegment
    position: int
