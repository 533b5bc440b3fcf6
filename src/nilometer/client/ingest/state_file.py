"""The state of an ingest between its runs: one JSON file that is replaced as a whole.

The file is written *before* the first line of a new source is sent, and at each checkpoint, after the
acknowledgements. So each record in the topic comes from a source of the state. If its line is neither counted
by the source nor among the lines ``there``, its offset is at or after the state's offset of its partition.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from nilometer.client.ingest.found_files import Identity
from nilometer.client.ingest.source import Fingerprint, Source
from nilometer.runtime import Disk

VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Version 1 lacks ``watched``, ``may_be_unread`` and ``there``."""

LinesThere = dict[int, dict[int, set[int]]]
"""Source number to the lines that are in the topic but not counted: line number to CRCs of its records."""


class BadState(ValueError):
    """The state file is invalid; the message says why and what to do."""


@dataclass(slots=True)
class IngestState:
    name: str
    """Random; distinguishes the records of this ingest from those of others in the same topic."""
    cluster_id: str
    topic: str
    topic_id: str
    partitions: dict[int, int] = field(default_factory=dict[int, int])
    """Partition to the offset from which there may be lines that the sources do not count yet."""
    sources: dict[int, Source] = field(default_factory=dict[int, Source])
    next_number: int = 0
    closed: bool = False
    """Whether the last run ended with all lines acknowledged and counted, and no request in flight."""
    there: LinesThere = field(default_factory=dict[int, dict[int, set[int]]])
    """Lines before the offsets of ``partitions`` that the sources do not count yet."""
    watched: set[str] = field(default_factory=set[str])
    """Named files and folders that an earlier look has listed: unknown files there are newer than that."""
    may_be_unread: set[Identity] = field(default_factory=set[Identity])
    """Files made by a rotation of which it is not known yet whether they are copies."""

    def tag(self, number: int) -> bytes:
        """Return the ``source`` header of the records of source ``number``."""
        return f"{self.name}-{number}".encode()

    def number_of(self, tag: bytes) -> int | None:
        """Return the source number in a ``source`` header; None if it is another ingest's."""
        name, _, number = tag.decode("utf-8", "replace").rpartition("-")
        return int(number) if name == self.name and number.isdecimal() else None

    def add(self, path: str, device: int, inode: int, birth_ns: int = 0) -> Source:
        """Add a source with the next number, and return it."""
        source = Source(self.next_number, path, device, inode, birth_ns=birth_ns)
        self.next_number += 1
        self.sources[source.number] = source
        return source


def encode_state(state: IngestState) -> bytes:
    document = {
        "version": VERSION,
        "name": state.name,
        "cluster_id": state.cluster_id,
        "topic": state.topic,
        "topic_id": state.topic_id,
        "partitions": {str(partition): offset for partition, offset in sorted(state.partitions.items())},
        "next_number": state.next_number,
        "closed": state.closed,
        "there": {
            str(number): {str(line): sorted(checks) for line, checks in lines.items()}
            for number, lines in sorted(state.there.items())
        },
        "watched": sorted(state.watched),
        "may_be_unread": sorted(state.may_be_unread),
        "sources": [_entry(source) for _, source in sorted(state.sources.items())],
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _entry(source: Source) -> dict[str, Any]:
    return {
        "number": source.number,
        "path": source.path,
        "device": source.device,
        "inode": source.inode,
        "offset": source.offset,
        "head": source.fingerprint.head,
        "tail": source.fingerprint.tail,
        "preview": [source.preview.offset, source.preview.head, source.preview.tail],
        "lines": source.lines,
        "finished": source.finished,
        "read_at": source.read_at,
        "birth_ns": source.birth_ns,
        "skipped": source.skipped,
        "truncated": source.truncated,
        "gone_ms": source.gone_ms,
    }


def decode_state(data: bytes, origin: str) -> IngestState:
    """Decode a state file; ``origin`` names it in errors. Raises BadState."""
    try:
        document = json.loads(data)
        if document["version"] not in READABLE_VERSIONS:
            raise BadState(
                f"{origin} is of version {document['version']}, this program knows up to {VERSION}; "
                "use a newer program, or give another file with --state"
            )
        sources = [_source(entry) for entry in document["sources"]]
        return IngestState(
            name=str(document["name"]),
            cluster_id=str(document["cluster_id"]),
            topic=str(document["topic"]),
            topic_id=str(document["topic_id"]),
            partitions={int(number): int(offset) for number, offset in document["partitions"].items()},
            sources={source.number: source for source in sources},
            next_number=int(document["next_number"]),
            closed=bool(document.get("closed", False)),  # missing in older states
            there={
                int(number): {int(line): {int(check) for check in checks} for line, checks in lines.items()}
                for number, lines in document.get("there", {}).items()
            },
            watched={str(path) for path in document.get("watched", ())},
            may_be_unread={(int(device), int(inode)) for device, inode in document.get("may_be_unread", ())},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, BadState):
            raise
        raise BadState(
            f"{origin} is not a state of nilometer ingest ({type(error).__name__}: {error}); "
            "give another file with --state, or remove it to read everything from the beginning"
        ) from error


def _source(entry: dict[str, Any]) -> Source:
    size, head, tail = entry["preview"]
    read_at, gone_ms = entry.get("read_at"), entry.get("gone_ms")
    return Source(
        number=int(entry["number"]),
        path=str(entry["path"]),
        device=int(entry["device"]),
        inode=int(entry["inode"]),
        fingerprint=Fingerprint(int(entry["offset"]), str(entry["head"]), str(entry["tail"])),
        preview=Fingerprint(int(size), str(head), str(tail)),
        lines=int(entry["lines"]),
        finished=bool(entry["finished"]),
        read_at=(int(read_at[0]), int(read_at[1])) if read_at else None,
        birth_ns=int(entry.get("birth_ns", 0)),
        skipped=bool(entry.get("skipped", False)),
        truncated=bool(entry.get("truncated", False)),
        gone_ms=int(gone_ms) if gone_ms is not None else None,
    )


def load_state(disk: Disk, path: str) -> IngestState | None:
    """Return the state in file ``path``, or None if there is no such file. Raises BadState."""
    return decode_state(disk.read_file(path), path) if disk.exists(path) else None
