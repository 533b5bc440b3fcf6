"""``nilometer log``: prints and checks files of a log; lists and deletes stray logs.

``log dump`` reads the files of a partition's folder as plain values, which it prints.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import confirm, json_option, print_json, yes_option
from nilometer.cli.record_format import as_text_or_base64
from nilometer.coordination.quorum.commands import without_secret
from nilometer.identifiers import uuid_to_text
from nilometer.raft.quorum_state import FOLDER
from nilometer.runtime import Disk
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage import checkpoints, names, producers
from nilometer.storage.directories.log_directory import LogDirectory
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import FolderKind
from nilometer.storage.producers import CorruptSnapshot
from nilometer.storage.segments import transaction_index
from nilometer.storage.segments.batch_scan import ScannedBatch, scan
from nilometer.storage.segments.indexes import CorruptIndex, OffsetIndex, TimeIndex
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import check_batch
from nilometer.wire.records import control_type, decode_records

# Reads the files of a partition's folder as plain values, which `nilometer log dump` prints.
#
# Uses the storage engine's readers, and checks what these do not: the CRC of each batch, and each index entry
# against the log. A damaged file ends with an entry that has a ``problem``; nothing is repaired or written.

Entry = dict[str, Any]

CHECKPOINT_FILES = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.REPLICATION_OFFSET_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
)
PLAIN_FILES = (names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA, *CHECKPOINT_FILES)


def is_known(path: str) -> bool:
    """Whether a file can be dumped, by its name."""
    name = os.path.basename(path)
    if name in PLAIN_FILES:
        return True
    parsed = names.parse_offset_name(name)
    return parsed is not None and parsed[1] in (*names.SEGMENT_SUFFIXES, names.SNAPSHOT_SUFFIX)


def dump_file(path: str, *, records: bool = False, disk: Disk | None = None) -> Iterator[Entry]:
    """Yield the entries of a file; an entry with a ``problem`` is damaged. ``records`` includes records."""
    disk = disk or SystemDisk()
    name = os.path.basename(path)
    parsed = names.parse_offset_name(name)
    base_offset, suffix = parsed if parsed is not None else (0, "")
    try:
        match suffix:
            case names.LOG_SUFFIX:
                yield from _batches(disk, path, records)
            case names.INDEX_SUFFIX:
                yield from _offset_index(disk, path, base_offset)
            case names.TIME_INDEX_SUFFIX:
                yield from _time_index(disk, path, base_offset)
            case names.TXN_INDEX_SUFFIX:
                yield from _transactions(disk, path, base_offset)
            case names.SNAPSHOT_SUFFIX:
                yield from _snapshot(disk, path)
            case _:
                yield from _plain_file(disk, path, name)
    except (KafkaError, CorruptIndex, CorruptSnapshot, CorruptCheckpoint, ValueError) as error:
        yield {"type": "damage", "problem": str(error)}


def _batches(disk: Disk, path: str, records: bool) -> Iterator[Entry]:
    file = disk.open(path, writable=False)
    is_of_quorum = os.path.basename(os.path.dirname(os.path.abspath(path))) == FOLDER
    shown = without_secret if is_of_quorum else bytes
    try:
        size, end = file.size(), 0
        try:
            for found in scan(file, 0, size):
                check_batch(found.buffer, found.at, found.header)
                yield _batch(found, records, shown)
                end = found.position + found.header.size
        except KafkaError as error:
            yield {"type": "damage", "position": end, "problem": str(error)}
            return
        if end < size:
            reason = f"{size - end} bytes after the last complete batch"
            yield {"type": "damage", "position": end, "problem": reason}
    finally:
        file.close()


def _batch(found: ScannedBatch, records: bool, shown: Callable[[bytes], bytes]) -> Entry:
    header = found.header
    entry: Entry = {
        "type": "batch",
        "position": found.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.records_count,
        "size": header.size,
        "leader_epoch": header.partition_leader_epoch,
        "codec": header.codec.name.lower(),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
    }
    if records:
        entry["records"] = list(_records(found, shown))
    return entry


def _records(found: ScannedBatch, shown: Callable[[bytes], bytes]) -> Iterator[Entry]:
    for record in decode_records(found.buffer, found.at, found.header):
        entry: Entry = {"offset": record.offset, "timestamp": record.timestamp}
        if found.header.is_control:
            entry["control_type"] = control_type(record).name
        else:
            entry |= as_text_or_base64("key", record.key)
            entry |= as_text_or_base64("value", None if record.value is None else shown(record.value))
            entry["headers"] = [
                {"name": name, **as_text_or_base64("value", value)} for name, value in record.headers
            ]
        yield entry


def _offset_index(disk: Disk, path: str, base_offset: int) -> Iterator[Entry]:
    index = OffsetIndex.parse(base_offset, disk.read_file(path))
    headers = {found.position: found.header for found in _readable(disk, path)}
    for offset, position in index.entries():
        entry: Entry = {"type": "index", "offset": offset, "position": position}
        header = headers.get(position)
        if headers and (header is None or header.last_offset != offset):
            there = "no batch" if header is None else f"a batch with last offset {header.last_offset}"
            entry["problem"] = f"the log has {there} at position {position}"
        yield entry


def _time_index(disk: Disk, path: str, base_offset: int) -> Iterator[Entry]:
    index = TimeIndex.parse(base_offset, disk.read_file(path))
    highest: dict[int, int] = {}
    """Last offset of each batch to the highest timestamp up to it."""
    so_far = -1
    for found in _readable(disk, path):
        so_far = max(so_far, found.header.max_timestamp)
        highest[found.header.last_offset] = so_far
    for timestamp, offset in index.entries():
        entry: Entry = {"type": "timeindex", "timestamp": timestamp, "offset": offset}
        there = highest.get(offset, timestamp)
        if there != timestamp:
            entry["problem"] = f"the log's highest timestamp up to offset {offset} is {there}"
        yield entry


def _readable(disk: Disk, index_path: str) -> Iterator[ScannedBatch]:
    """Yield the batches of an index's log, up to the first damaged one; none if there is no log file."""
    log_path = os.path.splitext(index_path)[0] + names.LOG_SUFFIX
    if not disk.exists(log_path):
        return
    file = disk.open(log_path, writable=False)
    try:
        yield from scan(file, 0, file.size())
    except KafkaError:
        return  # dumping the log file reports the damage
    finally:
        file.close()


def _transactions(disk: Disk, path: str, base_offset: int) -> Iterator[Entry]:
    for one in transaction_index.parse(base_offset, disk.read_file(path)):
        yield {"type": "aborted_transaction", **one._asdict()}


def _snapshot(disk: Disk, path: str) -> Iterator[Entry]:
    for one in producers.decode_snapshot(disk.read_file(path)):
        yield {"type": "producer", **one._asdict()}


def _plain_file(disk: Disk, path: str, name: str) -> Iterator[Entry]:
    if name == names.LEADER_EPOCH_CHECKPOINT:
        for epoch, start_offset in checkpoints.read_epochs(disk, path):
            yield {"type": "leader_epoch", "epoch": epoch, "start_offset": start_offset}
    elif name == names.PARTITION_METADATA:
        topic_id = checkpoints.read_partition_metadata(disk, path)
        yield {"type": "partition_metadata", "topic_id": uuid_to_text(topic_id) if topic_id else None}
    else:
        for partition, offset in sorted(checkpoints.read_offsets(disk, path).items()):
            yield {
                "type": "checkpoint",
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": offset,
            }


# The commands.

_PATH = click.Path(exists=True)


@commands.group()
def log() -> None:
    """Print the contents of log files; list and delete stray logs."""


@log.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH…", type=_PATH)
@click.option("--records", is_flag=True, help="Also print the records of each batch.")
@json_option
def dump(paths: tuple[str, ...], records: bool, as_json: bool) -> None:
    """Print the contents of log files: batches, index entries, leader epochs, producers.

    For a folder, all such files in it and its subfolders are printed. The checksum of every batch is
    verified, and every index entry is compared with its log. The exit code is 1 if a file is damaged. With
    --json each line is one object.
    """
    damaged = False
    for path in _files(paths):
        if not as_json:
            click.echo(f"{path}:")
        for entry in dump_file(path, records=records):
            damaged = damaged or "problem" in entry
            click.echo(json.dumps({"file": path, **entry}) if as_json else f"  {_line(entry)}")
    if damaged:
        raise click.exceptions.Exit(1)


@log.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER…", type=_PATH)
@json_option
def strays(folders: tuple[str, ...], as_json: bool) -> None:
    """List the stray logs in log directories, with their sizes.

    A broker renames a log that its cluster does not assign to it to …-stray: the topic was deleted or moved
    while the broker was down, or never existed in this cluster. It keeps the records and never uses them. A
    FOLDER is a log directory, or one stray folder.
    """
    found = [(path, _size(path)) for path in _stray_folders(folders)]
    if as_json:
        print_json([{"folder": path, "bytes": size} for path, size in found])
        return
    for path, size in found:
        click.echo(f"{path}  {size} bytes")
    click.echo(f"{len(found)} stray logs, {sum(size for _, size in found)} bytes", err=True)


@log.command("delete-strays")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER…", type=_PATH)
@yes_option
@json_option
def delete_strays(folders: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete the stray logs in log directories, with all their records.

    The brokers may run meanwhile. A FOLDER is a log directory, or one stray folder. Without a terminal it
    deletes nothing unless --yes is given.
    """
    found = _stray_folders(folders)
    if found:
        lost = [f"{path}  {_size(path)} bytes" for path in found]
        confirm(f"Delete {len(found)} stray logs with their records?", lost, yes=yes)
    for path in found:
        shutil.rmtree(path)
        if not as_json:
            click.echo(f"Deleted {path}.")
    if as_json:
        print_json({"deleted": found})
    elif not found:
        click.echo("There are no stray logs.")


def _stray_folders(folders: Iterable[str]) -> list[str]:
    """Return the stray folders among ``folders`` and in those that are log directories.

    Raises UsageError for a folder that is neither.
    """
    found: dict[str, None] = {}
    for folder in folders:
        parsed = names.parse_folder_name(os.path.basename(os.path.abspath(folder)))
        if parsed is not None and parsed.kind is FolderKind.STRAY and os.path.isdir(folder):
            found[folder] = None
        elif os.path.exists(os.path.join(folder, names.META_PROPERTIES)):
            found.update(dict.fromkeys(LogDirectory(SystemDisk(), folder).find_strays()))
        else:
            raise click.UsageError(
                f"{folder} is no log directory, since it has no {names.META_PROPERTIES}, and no stray folder"
            )
    return list(found)


def _size(folder: str) -> int:
    return sum(
        os.path.getsize(os.path.join(parent, name)) for parent, _, files in os.walk(folder) for name in files
    )


def _files(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):
            if not is_known(path):
                raise click.UsageError(f"{path} is not a log, index, checkpoint or snapshot file")
            yield path
            continue
        found = False
        for parent, folders, files in os.walk(path):
            folders.sort()
            for name in filter(is_known, sorted(files)):
                found = True
                yield os.path.join(parent, name)
        if not found:
            raise click.UsageError(f"{path} has no log, index, checkpoint or snapshot file")


def _line(entry: dict[str, Any]) -> str:
    """Format an entry as ``key: value`` pairs, with its records indented below."""
    shown = "  ".join(f"{name}: {value}" for name, value in entry.items() if name not in ("type", "records"))
    text = f"{entry['type']}  {shown}" if "problem" not in entry else f"DAMAGED  {shown}"
    for record in entry.get("records", ()):
        text += "\n    " + "  ".join(f"{name}: {value!r}" for name, value in record.items())
    return text
