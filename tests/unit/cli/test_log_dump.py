"""`nilometer log dump`: what files hold, and what is wrong with them, by place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nilometer.cli.log import dump_file, is_known
from nilometer.cli.main import cli
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage import checkpoints
from nilometer.storage.segments.indexes import OffsetIndex, TimeIndex
from nilometer.wire.compression import Codec
from nilometer.wire.record_batch import patched_header
from nilometer.wire.records import BatchBuilder, ControlType

NAME = "00000000000000000000"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition's folder: three batches of two records, indexes, an epoch checkpoint."""
    log, position, index, times = b"", 0, OffsetIndex(0), TimeIndex(0)
    for number in range(3):
        builder = BatchBuilder(Codec.ZSTD if number == 1 else Codec.NONE)
        for offset in (2 * number, 2 * number + 1):
            builder.append(1000 + offset, b"k%d" % offset, b"v%d" % offset, [("h", b"\xff")])
        data = builder.build(producer_id=9, producer_epoch=1, base_sequence=2 * number)
        head = patched_header(data, 0, base_offset=2 * number, leader_epoch=4)
        if number:
            index.append(2 * number + 1, position)
            times.maybe_append(1000 + 2 * number + 1, 2 * number + 1)
        log += head + data[len(head) :]
        position = len(log)
    (tmp_path / f"{NAME}.log").write_bytes(log)
    (tmp_path / f"{NAME}.index").write_bytes(index.to_bytes())
    (tmp_path / f"{NAME}.timeindex").write_bytes(times.to_bytes())
    (tmp_path / "leader-epoch-checkpoint").write_bytes(checkpoints.encode_epochs([(4, 0)]))
    (tmp_path / "unrelated").write_text("x")
    return tmp_path


def entries(path: Path, **options: Any) -> list[dict[str, Any]]:
    return list(dump_file(str(path), **options))


def test_batches_and_records(folder: Path) -> None:
    batches = entries(folder / f"{NAME}.log", records=True)
    assert [(one["base_offset"], one["last_offset"], one["codec"]) for one in batches] == [
        (0, 1, "none"),
        (2, 3, "zstd"),
        (4, 5, "none"),
    ]
    assert {(one["producer_id"], one["producer_epoch"], one["leader_epoch"]) for one in batches} == {
        (9, 1, 4)
    }
    assert batches[1]["records"][1] == {
        "offset": 3,
        "timestamp": 1003,
        "key": "k3",
        "value": "v3",
        "headers": [{"name": "h", "value_base64": "/w=="}],
    }
    assert "records" not in entries(folder / f"{NAME}.log")[0]


def test_control_batches_are_named(tmp_path: Path) -> None:
    builder = BatchBuilder()
    builder.append(0, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x07", ())
    path = tmp_path / f"{NAME}.log"
    path.write_bytes(builder.build(producer_id=1, producer_epoch=0, transactional=True, control=True))
    (batch,) = entries(path, records=True)
    assert batch["control"]
    assert batch["records"][0]["control_type"] == ControlType.COMMIT.name


def test_indexes_agree_with_their_log(folder: Path) -> None:
    index = entries(folder / f"{NAME}.index")
    assert [one["offset"] for one in index] == [3, 5]
    assert [(one["timestamp"], one["offset"]) for one in entries(folder / f"{NAME}.timeindex")] == [
        (1003, 3),
        (1005, 5),
    ]
    assert not any("problem" in one for one in index)


def test_indexes_that_do_not_agree(folder: Path) -> None:
    index, times = OffsetIndex(0), TimeIndex(0)
    index.append(4, 17)
    times.maybe_append(2000, 3)
    (folder / f"{NAME}.index").write_bytes(index.to_bytes())
    (folder / f"{NAME}.timeindex").write_bytes(times.to_bytes())
    assert entries(folder / f"{NAME}.index")[0]["problem"] == "the log has no batch at position 17"
    assert "up to offset 3 is 1003" in entries(folder / f"{NAME}.timeindex")[0]["problem"]


def test_flipped_bit_is_found_at_its_batch(folder: Path) -> None:
    path = folder / f"{NAME}.log"
    data = bytearray(path.read_bytes())
    second = entries(path)[1]["position"]
    data[second + 70] ^= 1
    path.write_bytes(data)
    *good, damage = entries(path)
    assert [one["base_offset"] for one in good] == [0]
    assert damage["position"] == second
    assert damage["problem"].startswith("CORRUPT_MESSAGE")
    result = CliRunner().invoke(cli, ["log", "dump", str(folder)])
    assert result.exit_code == 1
    assert f"DAMAGED  position: {second}" in result.output


def test_torn_tail_is_found(folder: Path) -> None:
    path = folder / f"{NAME}.log"
    path.write_bytes(path.read_bytes()[:-5])
    *good, damage = entries(path)
    assert len(good) == 2
    assert "bytes after the last complete batch" in damage["problem"]


def test_checkpoints(folder: Path) -> None:
    assert entries(folder / "leader-epoch-checkpoint") == [
        {"type": "leader_epoch", "epoch": 4, "start_offset": 0}
    ]
    path = str(folder / "replication-offset-checkpoint")
    checkpoints.write_offsets(SystemDisk(), path, {checkpoints.TopicPartition("t", 0): 6})
    assert list(dump_file(path)) == [{"type": "checkpoint", "topic": "t", "partition": 0, "offset": 6}]
    (folder / "leader-epoch-checkpoint").write_text("rubbish")
    assert "problem" in entries(folder / "leader-epoch-checkpoint")[0]


def test_whole_folder_as_lines_of_json(folder: Path) -> None:
    result = CliRunner().invoke(cli, ["log", "dump", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert [line["type"] for line in lines] == ["index"] * 2 + ["batch"] * 3 + ["timeindex"] * 2 + [
        "leader_epoch"
    ]


def test_names_that_are_known() -> None:
    assert is_known("/x/00000000000000000042.snapshot")
    assert is_known("partition.metadata")
    assert not is_known("42.log")
    assert not is_known("00000000000000000042.deleted")
