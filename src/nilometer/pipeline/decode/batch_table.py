"""The headers of many batches as a table of numbers, used by the sources and the audit.

Makes a table from bytes and checks its batches; never decodes records.

Invariant: after ``check`` every batch of the table is complete and matches its CRC. The CRC does not cover
base offset, length and leader epoch: the user of the table must check these.
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
"""The maximum number of batches in one table, which then takes about a megabyte."""

TRANSACTIONAL = 0x10
CONTROL = 0x20
CODEC_MASK = 0x07
_CRC_START = 21
_CODEC_LAST = max(Codec)


@dataclass(slots=True)
class BatchTable:
    """The headers of the complete batches of ``buffer``, in order."""

    buffer: bytes | memoryview
    rows: numpy.ndarray[Any, Any]
    """One row per batch, one column per field of ``batch_kernels``."""
    end: int
    """The position in ``buffer`` after the last batch."""
    is_header: bool
    """False if the bytes at ``end`` are not the beginning of a batch."""

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, field: int) -> Any:
        return self.rows[:, field]

    @property
    def next_offsets(self) -> Any:
        from nilometer.pipeline.decode import batch_kernels as fields

        return self.rows[:, fields.BASE_OFFSET] + self.rows[:, fields.LAST_OFFSET_DELTA] + 1

    def first_damaged(self) -> int:
        """Return the row of the first batch that fails a check; the number of rows if none does."""
        from nilometer.pipeline.decode import batch_kernels as fields

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
        """Check all batches. Raises CorruptBatch, with the offset, for the first corrupt one."""
        first = self.first_damaged()
        if first < len(self.rows):
            from nilometer.pipeline.decode import batch_kernels as fields

            position = int(self.rows[first, fields.POSITION])
            header = read_header(self.buffer, position)
            try:
                check_batch(self.buffer, position, header)
            except CorruptBatch as error:
                raise CorruptBatch(f"batch at offset {header.base_offset}: {error.message}") from error


def walk(buffer: bytes | memoryview, position: int = 0, rows_max: int = ROWS_MAX) -> BatchTable:
    """Return a table of the complete batches from ``position`` on, at most ``rows_max``."""
    import numpy as np

    from nilometer.pipeline.decode import batch_kernels

    rows = np.empty((rows_max, batch_kernels.FIELDS), np.int64)
    data = np.frombuffer(buffer, np.uint8)
    count, end, is_header = batch_kernels.walk(data, position, rows)
    return BatchTable(buffer, rows[:count], int(end), bool(is_header))
