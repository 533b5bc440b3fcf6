"""What the cleaner finds in batches of records whose bytes were changed at random, a line for each:
``python -m support.logs.hostile_layouts SEED COUNT``. Both forms of its modules must print the same."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from nilometer.storage.cleaning.batch_cleaner import kept_records, read_keys, record_spans
from nilometer.storage.cleaning.offset_map import DROP, KEEP, OffsetMap, RecordMarks
from nilometer.wire.compression import Codec
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import BatchHeader, read_header
from nilometer.wire.records import BatchBuilder, records_data

LIMIT = 1 << 20


def findings(seed: int, count: int) -> Iterator[str]:
    chance = random.Random(seed)
    for number in range(count):
        data, header = _changed(chance)
        marks = bytes(chance.choice((KEEP, DROP)) for _ in range(header.records_count - 1)) + bytes((KEEP,))
        try:
            spans = record_spans(data, header)
            found = read_keys(data, header)
            offsets, put = OffsetMap(4_000), RecordMarks(0, LIMIT)
            put.add(header, found.deltas, found.tombstones)
            pairs = zip(found.keys, found.deltas, strict=True)
            full_at = offsets.put_all((pair for pair in pairs if pair[1] >= 0), 0, put)
            newest = offsets.newest(found.keys)
            yield f"{number} {spans} {full_at} {newest} {bytes(put.marks)!r} {kept_records(data, marks)}"
        except CorruptBatch:
            yield f"{number} is corrupt"


def _changed(chance: random.Random) -> tuple[bytes, BatchHeader]:
    """Return the records of a batch, with some bytes changed, and its header."""
    builder, size = BatchBuilder(Codec.NONE), chance.choice((0, 3, 70, 9_000))
    is_uniform = chance.random() < 0.5
    for at in range(chance.choice((1, 5, 40))):
        value = None if chance.random() < 0.1 else bytes(size if is_uniform else chance.randint(0, size))
        key = None if chance.random() < 0.1 else b"%02d" % chance.randrange(20)
        builder.append(at * chance.choice((1, 1_000, 1 << 40)), key, value, ())
    batch = builder.build(0)
    header = read_header(batch)
    data = bytearray(records_data(batch, 0, header, LIMIT))
    for _ in range(chance.choice((0, 0, 1, 3))):
        at = chance.randrange(min(len(data), 300))
        wild = bytes(chance.choice((0xFF, 0x80, chance.randrange(256))) for _ in range(chance.choice((1, 9))))
        data[at : at + len(wild)] = wild
    return bytes(data), header


if __name__ == "__main__":
    print("\n".join(findings(int(sys.argv[1]), int(sys.argv[2]))))
