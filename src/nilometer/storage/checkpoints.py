"""Kafka's small text files: offset checkpoints of a log directory, epochs and metadata of a partition.

The common form is a version line, a line with the number of entries, and one line for each entry, all ended
by a newline. There is no checksum: a file torn by a machine crash is recognised by the number of entries or
a missing last newline. Every writer replaces the file as a whole; ``partition.metadata`` is written once.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterable, Mapping, Sequence

from nilometer.identifiers import uuid_from_text, uuid_to_text
from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import TopicPartition

VERSION = 0


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Read an offset checkpoint (``topic partition offset`` lines); empty if there is no file.

    Raises CorruptCheckpoint.
    """
    offsets: dict[TopicPartition, int] = {}
    for fields in _read_lines(disk, path, fields=3):
        offsets[TopicPartition(fields[0], _number(path, fields[1]))] = _number(path, fields[2])
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True) -> None:
    """Replace an offset checkpoint. With ``sync`` the file is durable on return, and the call may block."""
    lines = [f"{key.topic} {key.partition} {offset}" for key, offset in sorted(offsets.items())]
    disk.replace_file(path, _encode(lines), sync=sync)


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """Read the (epoch, start offset) lines of ``leader-epoch-checkpoint``; empty if there is no file.

    Raises CorruptCheckpoint.
    """
    return [
        (_number(path, epoch), _number(path, offset)) for epoch, offset in _read_lines(disk, path, fields=2)
    ]


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    return _encode([f"{epoch} {offset}" for epoch, offset in entries])


def read_partition_metadata(disk: Disk, path: str) -> uuid.UUID | None:
    """Read the topic id from ``partition.metadata``; None if there is no file. Raises CorruptCheckpoint."""
    try:
        text = disk.read_file(path).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise CorruptCheckpoint(path, "is not text") from None
    lines = {name: value for name, _, value in (line.partition(": ") for line in text.splitlines())}
    if lines.get("version") != str(VERSION):
        raise CorruptCheckpoint(path, f"has version {lines.get('version')!r}, not {VERSION}")
    try:
        return uuid_from_text(lines.get("topic_id", ""))
    except ValueError:
        raise CorruptCheckpoint(path, f"has no valid topic id: {lines.get('topic_id')!r}") from None


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    return f"version: {VERSION}\ntopic_id: {uuid_to_text(topic_id)}\n".encode()


def write_partition_metadata(disk: Disk, folder: str, topic_id: uuid.UUID) -> None:
    """Create ``folder``, which has no records yet, and its ``partition.metadata``. Raises OSError.

    It is not durable before :func:`sync_partition_metadata`, and may be torn.
    """
    disk.make_directories(folder)
    file = disk.open(posixpath.join(folder, names.PARTITION_METADATA), create=True)
    try:
        file.truncate(0)
        file.append([encode_partition_metadata(topic_id)])
    finally:
        file.close()


def sync_partition_metadata(disk: Disk, folder: str) -> None:
    """Make the ``partition.metadata`` of ``folder`` durable, content and name. Blocks. Raises OSError."""
    make_durable(disk, posixpath.join(folder, names.PARTITION_METADATA))


def make_durable(disk: Disk, path: str) -> None:
    """Make a file durable, and then all names in its folder. Blocks. Raises OSError."""
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()
    disk.sync_directory(posixpath.dirname(path))


def _encode(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(lines)), *lines)).encode()


def _read_lines(disk: Disk, path: str, fields: int) -> list[list[str]]:
    try:
        text = disk.read_file(path).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise CorruptCheckpoint(path, "is not text") from None
    if not text.endswith("\n"):
        raise CorruptCheckpoint(path, "does not end with a newline: it was not written completely")
    lines = text.splitlines()
    if _number(path, lines[0]) != VERSION:
        raise CorruptCheckpoint(path, f"has version {lines[0]}, not {VERSION}")
    entries = [line.split() for line in lines[2:] if line.strip()]
    if len(lines) < 2 or _number(path, lines[1]) != len(entries):
        raise CorruptCheckpoint(path, f"has {len(entries)} entries, which does not match its entry count")
    for entry in entries:
        if len(entry) != fields:
            raise CorruptCheckpoint(path, f"has a line of {len(entry)} fields, not {fields}")
    return entries


def _number(path: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CorruptCheckpoint(path, f"has {text!r} instead of a number") from None
