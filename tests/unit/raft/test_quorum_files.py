"""The quorum's files: their bytes are Kafka's, and damage is named, never taken for nothing."""

from __future__ import annotations

import json
import uuid

import pytest

from nilometer.broker.replicas.log_directories import find_logs
from nilometer.coordination.quorum.folder_reader import inspect
from nilometer.identifiers import NO_LEADER, uuid_to_text
from nilometer.raft import snapshot_files
from nilometer.raft.control_records import (
    ControlRecord,
    Endpoint,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    VoterEntry,
    control_batch,
    read_control_batch,
)
from nilometer.raft.exchange import Election
from nilometer.raft.quorum_state import OWNER, QUORUM_STATE, identify, read_election, write_election
from nilometer.raft.recovery import LOG_CONFIG, format_folder, recover
from nilometer.raft.snapshots import SnapshotId
from nilometer.raft.voters import NO_VOTERS, VoterKey, VoterSet
from nilometer.storage.directories.log_directory import MetaProperties, write_meta_properties
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import batches
from nilometer.wire.records import decode_records
from support.logs.memory_disk import MemoryDisk

DIRECTORY = uuid.UUID(int=0x0102030405060708090A0B0C0D0E0F10)
KEY = VoterKey(258, uuid_to_text(DIRECTORY))
ENTRY = VoterEntry(KEY, (Endpoint("C", "h", 65_535),))
FOLDER = "/meta/__cluster_metadata-0"

# ── control records ─────────────────────────────────────────────────────────────────────────────
# Compact lengths are one more than the length; each structure ends with a zero, for no tagged fields.
BYTES: list[tuple[ControlRecord, int, str]] = [
    (LeaderChange(258, (1, 258), (258,)), 2, "0000 00000102 03 00000001 00 00000102 00 02 00000102 00 00"),
    (SnapshotHeader(1_000), 3, "0000 00000000000003e8 00"),
    (SnapshotFooter(), 4, "0000 00"),
    (KRaftVersion(1), 5, "0000 0001 00"),
    (
        KRaftVoters((ENTRY,)),
        6,
        "0000 02 00000102 0102030405060708090a0b0c0d0e0f10 02 0243 0268 ffff 00 0000 0001 00 00 00",
    ),
]


@pytest.mark.parametrize(("record", "kind", "value"), BYTES)
def test_a_control_record_has_the_bytes_of_kafkas_schema(
    record: ControlRecord, kind: int, value: str
) -> None:
    batch = control_batch([record], 7, 3, 1_000)
    [(position, header)] = batches(batch)
    assert (header.is_control, header.base_offset, header.partition_leader_epoch) == (True, 7, 3)
    [plain] = decode_records(batch, position, header)
    assert (plain.key, plain.value) == (bytes.fromhex(f"0000 000{kind}"), bytes.fromhex(value))
    assert read_control_batch(batch, position, header) == [(7, record)]


@pytest.mark.parametrize("second", [1, 0, 5])
def test_a_batch_that_does_not_follow_is_named_with_both_offsets(second: int) -> None:
    """It is the next one, one more with an offset that the log has, or one after a gap."""
    disk = MemoryDisk()
    disk.make_directories("/meta")
    write_meta_properties(disk, "/meta/meta.properties", MetaProperties(258, "cluster", KEY.directory_id))
    format_folder(disk, FOLDER, [ENTRY], 1_000)
    batches_of = [control_batch([KRaftVersion(1)], offset, 1, 1_000) for offset in (0, second)]
    file = disk.open(f"{FOLDER}/{0:020d}.log", create=True)
    file.write_at(0, b"".join(batches_of))
    file.close()
    found = inspect(disk, "/meta")
    assert found is not None
    follows = second == 1
    assert found.log_end_offset == (2 if follows else 1)
    assert (found.damage is None) == follows
    assert follows or f"a batch begins at offset {second}, but 1 must follow" in str(found.damage)


def test_a_segment_that_is_missing_between_two_others_is_named_by_its_offsets() -> None:
    disk = MemoryDisk()
    disk.make_directories("/meta")
    write_meta_properties(disk, "/meta/meta.properties", MetaProperties(258, "cluster", KEY.directory_id))
    format_folder(disk, FOLDER, [ENTRY], 1_000)
    for offset in (3, 4, 0):
        file = disk.open(f"{FOLDER}/{offset:020d}.log", create=True)
        file.write_at(0, control_batch([KRaftVersion(1)], offset, 1, 1_000))
        file.close()
    found = inspect(disk, "/meta")
    assert found is not None
    assert found.log_end_offset == 1
    assert found.damage == f"{3:020d}.log: CORRUPT_MESSAGE: the offsets 1 to 2 are missing before it"


def test_all_of_a_log_that_was_opened_is_durable() -> None:
    disk = MemoryDisk()
    format_folder(disk, FOLDER, [ENTRY], 1_000)
    file = disk.open(f"{FOLDER}/{0:020d}.log", create=True)
    file.write_at(0, control_batch([KRaftVersion(1)], 0, 1, 1_000))
    file.close()
    log = recover(disk, FOLDER, LOG_CONFIG, 1_000).log
    assert (log.log_end_offset, log.flushed_offset) == (1, 1)
    disk.crash_machine(1)
    assert recover(disk, FOLDER, LOG_CONFIG, 1_000).log.log_end_offset == 1


def test_a_control_record_that_cannot_be_read_is_a_corrupt_batch() -> None:
    batch = control_batch([KRaftVoters((ENTRY,))], 0, 1, 1_000)
    [(position, header)] = batches(batch)
    damaged = bytearray(batch)
    damaged[batch.rindex(b"\xff\xff\x00\x00\x00") - 5] = 0x7F  # the number of endpoints
    with pytest.raises(CorruptBatch, match="KRAFT_VOTERS"):
        read_control_batch(bytes(damaged), position, header)


@pytest.mark.parametrize("entries", [(), (ENTRY, ENTRY)])
def test_voters_without_ids_of_their_own_are_a_corrupt_batch(entries: tuple[VoterEntry, ...]) -> None:
    batch = control_batch([KRaftVoters(entries)], 0, 1, 1_000)
    [(position, header)] = batches(batch)
    with pytest.raises(CorruptBatch, match="ids of their own"):
        read_control_batch(batch, position, header)


# ── quorum-state and meta.properties ────────────────────────────────────────────────────────────
def test_an_election_is_stored_as_kafkas_quorum_state() -> None:
    disk = MemoryDisk(1)
    disk.make_directories(FOLDER)
    assert read_election(disk, FOLDER) is None
    for election in (Election(4), Election(5, KEY), Election(5, KEY, 258)):
        write_election(disk, FOLDER, election)
        assert read_election(disk, FOLDER) == election
    text = disk.read_file(f"{FOLDER}/{QUORUM_STATE}").decode()
    assert text == (
        '{"leaderId":258,"leaderEpoch":5,"votedId":258,'
        f'"votedDirectoryId":"{KEY.directory_id}","data_version":1}}'
    )
    write_election(disk, FOLDER, Election(6, None, NO_LEADER))
    nothing = json.loads(disk.read_file(f"{FOLDER}/{QUORUM_STATE}"))
    assert (nothing["votedId"], nothing["votedDirectoryId"]) == (-1, "AAAAAAAAAAAAAAAAAAAAAA")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not JSON"),
        ('{"leaderId":1,"leaderEp', "is not JSON"),
        ("\xff", "is not JSON"),
        ("[1]", "not a JSON object"),
        ('{"leaderId":1,"leaderEpoch":2,"votedId":-1}', "data_version None"),
        ('{"leaderId":1,"leaderEpoch":2,"votedId":-1,"data_version":0}', "data_version 0"),
        ('{"leaderId":1,"leaderEpoch":-2,"votedId":-1,"data_version":1}', "leaderEpoch -2"),
        ('{"leaderId":1,"leaderEpoch":true,"votedId":-1,"data_version":1}', "leaderEpoch True"),
        ('{"leaderId":1,"leaderEpoch":2,"votedId":3,"data_version":1}', "votedDirectoryId None"),
        (
            '{"leaderId":1,"leaderEpoch":2,"votedId":3,"votedDirectoryId":"x","data_version":1}',
            "votedDirectoryId 'x'",
        ),
    ],
)
def test_a_damaged_quorum_state_is_named(text: str, complaint: str) -> None:
    disk = MemoryDisk(1)
    disk.make_directories(FOLDER)
    disk.replace_file(f"{FOLDER}/{QUORUM_STATE}", text.encode("latin-1"))
    with pytest.raises(CorruptCheckpoint, match=complaint) as caught:
        read_election(disk, FOLDER)
    assert caught.value.path == f"{FOLDER}/{QUORUM_STATE}"


def test_an_empty_directory_gets_an_id_and_keeps_it() -> None:
    disk = MemoryDisk(1)
    first = identify(disk, "/meta", 258, "cluster", DIRECTORY)
    assert first == KEY
    assert identify(disk, "/meta", 258, "cluster", uuid.UUID(int=9 << 64)) == KEY
    with pytest.raises(CorruptCheckpoint, match="belongs to node 258"):
        identify(disk, "/meta", 7, "cluster", DIRECTORY)
    with pytest.raises(CorruptCheckpoint, match="belongs to cluster cluster"):
        identify(disk, "/meta", 258, "another", DIRECTORY)
    disk.remove_tree("/meta")
    assert identify(disk, "/meta", 258, "cluster", uuid.UUID(int=9 << 64)) != KEY, (
        "it has forgotten its votes"
    )


def test_a_metadata_log_is_known_by_the_directory_it_was_made_in() -> None:
    disk, other = MemoryDisk(1), uuid.UUID(int=9 << 64)
    identify(disk, "/meta", 258, "cluster", DIRECTORY)
    disk.remove_tree("/meta/__cluster_metadata-0")
    assert identify(disk, "/meta", 258, "cluster", other) != KEY, "its log is gone, and with it its votes"
    meta = disk.read_file("/meta/meta.properties")
    disk.remove("/meta/meta.properties")
    disk.remove_tree("/meta/__cluster_metadata-0")
    assert identify(disk, "/meta", 258, "cluster", DIRECTORY) == KEY
    disk.replace_file("/meta/meta.properties", meta)
    with pytest.raises(CorruptCheckpoint, match="belongs to the directory"):
        identify(disk, "/meta", 258, "cluster", other)


def test_a_metadata_log_whose_directory_has_lost_its_id_is_not_taken_for_a_new_one() -> None:
    disk = MemoryDisk(1)
    identify(disk, "/meta", 258, "cluster", DIRECTORY)
    snapshot_files.write_snapshot(disk, "/meta/__cluster_metadata-0", SNAPSHOT, [], (), wall_ms=1_000)
    meta = disk.read_file("/meta/meta.properties")
    disk.remove("/meta/meta.properties")  # as a format that was interrupted leaves it
    with pytest.raises(CorruptCheckpoint, match=f"is of the directory {KEY.directory_id}"):
        identify(disk, "/meta", 258, "cluster", uuid.UUID(int=9 << 64))
    for restored in (meta, f"directory.id={KEY.directory_id}\n".encode()):
        disk.replace_file("/meta/meta.properties", restored)
        assert identify(disk, "/meta", 258, "cluster", uuid.UUID(int=9 << 64)) == KEY
        assert disk.read_file("/meta/meta.properties") == meta


def test_a_metadata_log_of_apache_kafka_is_refused() -> None:
    disk = MemoryDisk(1)
    disk.make_directories("/meta/__cluster_metadata-0")
    disk.replace_file("/meta/__cluster_metadata-0/quorum-state", b"{}")
    with pytest.raises(CorruptCheckpoint, match="perhaps one of Apache Kafka"):
        identify(disk, "/meta", 258, "cluster", DIRECTORY)


# ── snapshots ───────────────────────────────────────────────────────────────────────────────────
SNAPSHOT = SnapshotId(42, 3)
VALUES = [b"%d" % number for number in range(5)]


def written(entries: list[VoterEntry]) -> tuple[MemoryDisk, str]:
    disk = MemoryDisk(1)
    disk.make_directories(FOLDER)
    size = snapshot_files.write_snapshot(
        disk, FOLDER, SNAPSHOT, entries, VALUES, wall_ms=1_000, last_timestamp=900
    )
    path = f"{FOLDER}/00000000000000000042-0000000003.checkpoint"
    assert disk.list_directory(FOLDER) == [path.rpartition("/")[2]]
    assert disk.file_size(path) == size
    return disk, path


def test_a_snapshot_is_written_and_read() -> None:
    disk, _ = written([ENTRY])
    content = snapshot_files.read_snapshot(disk, FOLDER, SNAPSHOT)
    assert (content.entries, content.last_timestamp) == ((ENTRY,), 900)
    assert (content.snapshot.id, content.snapshot.voters) == (SNAPSHOT, VoterSet.of(KEY))
    assert list(snapshot_files.snapshot_values(disk, FOLDER, SNAPSHOT)) == VALUES
    assert snapshot_files.find_snapshots(disk, FOLDER) == [SNAPSHOT]
    for folder in ("/", "/meta"):
        disk.sync_directory(folder)
    disk.crash_machine()
    assert snapshot_files.read_snapshot(disk, FOLDER, SNAPSHOT) == content


def test_a_snapshot_of_large_records_has_several_batches() -> None:
    disk = MemoryDisk(1)
    disk.make_directories(FOLDER)
    values = [bytes(700_000), bytes(700_000), bytes(2_000_000), b"end"]
    snapshot_files.write_snapshot(disk, FOLDER, SNAPSHOT, [], values, wall_ms=1_000)
    assert snapshot_files.read_snapshot(disk, FOLDER, SNAPSHOT).snapshot.voters == NO_VOTERS
    assert list(snapshot_files.snapshot_values(disk, FOLDER, SNAPSHOT)) == values


def test_a_snapshot_that_is_cut_anywhere_is_not_taken() -> None:
    disk, path = written([ENTRY])
    whole = disk.read_file(path)
    for size in range(len(whole)):
        disk.replace_file(path, whole[:size])
        with pytest.raises(CorruptCheckpoint):
            snapshot_files.read_snapshot(disk, FOLDER, SNAPSHOT)


def test_a_snapshot_with_a_damaged_byte_is_not_taken() -> None:
    disk, path = written([ENTRY])
    whole = disk.read_file(path)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        disk.replace_file(path, damaged)
        with pytest.raises(CorruptCheckpoint):
            snapshot_files.read_snapshot(disk, FOLDER, SNAPSHOT)


def test_a_snapshot_of_two_is_not_taken() -> None:
    disk, path = written([ENTRY])
    whole = disk.read_file(path)
    disk.replace_file(path, whole + whole)
    with pytest.raises(CorruptCheckpoint, match="another snapshot"):
        snapshot_files.read_snapshot(disk, FOLDER, SNAPSHOT)


def test_the_folders_above_a_metadata_log_survive_a_power_cut() -> None:
    path = "/new/folder/meta"
    for seed in range(20):
        disk = MemoryDisk()
        key = identify(disk, path, KEY.node_id, None, uuid.UUID(int=seed))
        disk.crash_machine(seed)
        assert identify(disk, path, KEY.node_id, None, uuid.UUID(int=99)) == key


@pytest.mark.parametrize("left", [[], [f"{OWNER}.7-1.tmp"]])
def test_what_a_power_cut_in_the_first_start_leaves_is_not_taken_for_a_log_of_others(left: list[str]) -> None:
    disk = MemoryDisk()
    disk.make_directories(FOLDER)
    for name in left:
        disk.replace_file(f"{FOLDER}/{name}", b"half")
    assert find_logs(disk, ["/meta"], KEY.node_id) is None
    assert identify(disk, "/meta", KEY.node_id, None, DIRECTORY) == KEY
