"""Kafka's own log reader over a segment written here, in every codec."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nilometer.wire.compression import Codec
from nilometer.wire.record_batch import HEADER_BYTES, patched_header
from nilometer.wire.records import BatchBuilder, ControlType, EndTxnMarker, build_end_txn_marker
from support.kafka.apache_kafka import run_tool
from support.wire.compressed_batches import recompress


@pytest.mark.java
def test_java_decompresses_and_decodes_what_is_built_here(tmp_path: Path) -> None:
    log = b""
    offset = 0
    for codec in Codec:
        builder = BatchBuilder(codec)
        for number in range(50):
            builder.append(1000 + number, b"key%d" % number, b"%d;" % number * 3000, [("name", b"header")])
        built = builder.build(offset, 9, 1, offset)
        log += built
        offset += 50
        other = recompress(built, Codec.LZ4 if codec is Codec.ZSTD else Codec.ZSTD)
        log += patched_header(
            other, 0, base_offset=offset, leader_epoch=3, max_timestamp=77_777, log_append_time=True
        )
        log += other[HEADER_BYTES:]
        offset += 50
    marker = EndTxnMarker(ControlType.COMMIT, 4, 5)
    log += build_end_txn_marker(marker, producer_id=9, producer_epoch=1, base_offset=offset)
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(log)

    told = run_tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--deep-iteration",
        "--print-data-log",
        "--files",
        str(segment),
    )

    batch_lines = re.findall(
        r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .*isvalid: (true|false)", told
    )
    assert len(batch_lines) == 11
    assert {line[3] for line in batch_lines} == {"true"}
    codecs = re.findall(r"compresscodec: (\w+)", told)
    assert codecs == ["none", "zstd", "gzip", "zstd", "snappy", "zstd", "lz4", "zstd", "zstd", "lz4", "none"]
    assert [int(n) for n in re.findall(r"\| offset: (\d+) ", told)] == list(range(offset + 1))
    payloads = re.findall(r"headerKeys: \[name\] key: (key\d+) payload: ([\d;]+)", told)
    assert payloads == [(f"key{n}", f"{n};" * 3000) for n in range(50)] * 10
    assert len(re.findall(r"\| offset: \d+ LogAppendTime: 77777 ", told)) == 250
    assert re.search(r"endTxnMarker: COMMIT coordinatorEpoch: 4", told)
