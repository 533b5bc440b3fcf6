"""The headers of many batches at once, as columns of numbers: what reading and auditing go by.

Knows how to walk bytes into a table and how to check its batches; never decodes records.

Invariant: after ``check`` every batch of the table is whole and its bytes, from the attributes on, are those
that its writer signed. Offset, length and leader epoch lie outside the CRC and are the reader's to judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from nilometer.wire.compression import Codec
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import check_batch, read_header

if TYPE_CHECKING:
    import numpy

ROWS_MAX = 8_192
"""Batches of one table; a megabyte of numbers."""

TRANSACTIONAL = 0x10
CONTROL = 0x20
CODEC_MASK = 0x07
_CRC_START = 21
_CODEC_LAST = max(Codec)


@dataclass(slots=True)
class BatchTable:
    """Whole batches of ``buffer``, in their order there."""

    buffer: bytes | memoryview
    rows: numpy.ndarray[Any, Any]
    """One row a batch, one column a field of ``batch_kernels``."""
    end: int
    """Where in ``buffer`` the last batch ends."""
    is_header: bool
    """False where the bytes at ``end`` are no batch, whatever may follow them."""

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, field: int) -> Any:
        return self.rows[:, field]

    @property
    def next_offsets(self) -> Any:
        from nilometer.pipeline import batch_kernels as fields

        return self.rows[:, fields.BASE_OFFSET] + self.rows[:, fields.LAST_OFFSET_DELTA] + 1

    def first_damaged(self) -> int:
        """The row of the first batch that fails a check, or the number of rows."""
        from nilometer.pipeline import batch_kernels as fields

        rows = self.rows
        deltas, counts = rows[:, fields.LAST_OFFSET_DELTA], rows[:, fields.RECORDS_COUNT]
        codecs = rows[:, fields.ATTRIBUTES] & CODEC_MASK
        wrong = (deltas < 0) | (counts < 0) | (counts > deltas + 1) | (codecs > _CODEC_LAST)
        first = int(wrong.argmax()) if wrong.any() else len(rows)
        starts = rows[:first, fields.POSITION]
        spans = zip(
            (starts + _CRC_START).tolist(),
            (starts + rows[:first, fields.SIZE]).tolist(),
            rows[:first, fields.CRC].tolist(),
            strict=True,
        )
        with memoryview(self.buffer) as view:
            for number, (start, end, crc) in enumerate(spans):
                if crc32c(view[start:end]) != crc:
                    return number
        return first

    def check(self) -> None:
        """Raises CorruptBatch, with the offset, for the first batch that is damaged."""
        first = self.first_damaged()
        if first < len(self.rows):
            from nilometer.pipeline import batch_kernels as fields

            position = int(self.rows[first, fields.POSITION])
            header = read_header(self.buffer, position)
            try:
                check_batch(self.buffer, position, header)
            except CorruptBatch as error:
                raise CorruptBatch(f"batch at offset {header.base_offset}: {error.message}") from error


def walk(buffer: bytes | memoryview, position: int = 0, rows_max: int = ROWS_MAX) -> BatchTable:
    """The whole batches from ``position`` on, ``rows_max`` at most."""
    import numpy as np

    from nilometer.pipeline import batch_kernels

    rows = np.empty((rows_max, batch_kernels.FIELDS), np.int64)
    data = np.frombuffer(buffer, np.uint8)
    count, end, is_header = batch_kernels.walk(data, position, rows)
    return BatchTable(buffer, rows[:count], int(end), bool(is_header))
