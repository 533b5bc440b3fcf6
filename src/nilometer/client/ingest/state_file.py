"""What an ingest knows between its runs, as one JSON file that is replaced as a whole.

The file is written *before* the first line of a source new to it is sent, and after acknowledgements at each
checkpoint. So whatever is in the topic comes from a source that the state knows, and lies at or behind the
state's offset for its partition unless the state accounts for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from nilometer.client.ingest.source import Fingerprint, Source
from nilometer.runtime import Disk

VERSION = 1


class BadState(ValueError):
    """The state file cannot be understood; the message says why and what to do."""


@dataclass(slots=True)
class IngestState:
    name: str
    """Random: tells the records of this state from those of any other that writes to the same topic."""
    cluster_id: str
    topic: str
    topic_id: str
    partitions: dict[int, int] = field(default_factory=dict[int, int])
    """By partition, the offset from which on there may be lines that the sources do not count yet."""
    sources: dict[int, Source] = field(default_factory=dict[int, Source])
    next_number: int = 0
    closed: bool = False
    """Whether the last run ended with everything acknowledged and counted: nothing of it is on its way."""

    def tag(self, number: int) -> bytes:
        """What the records of a source carry in their ``source`` header."""
        return f"{self.name}-{number}".encode()

    def number_of(self, tag: bytes) -> int | None:
        """The source that a ``source`` header names, if it is one of this state's."""
        name, _, number = tag.decode("utf-8", "replace").rpartition("-")
        return int(number) if name == self.name and number.isdecimal() else None

    def add(self, path: str, device: int, inode: int) -> Source:
        source = Source(self.next_number, path, device, inode)
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
        "sources": [
            {
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
            }
            for _, source in sorted(state.sources.items())
        ],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def decode_state(data: bytes, origin: str) -> IngestState:
    """Raises BadState."""
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise BadState(f"{origin} is of version {document['version']}, this program knows {VERSION}")
        sources = [_source(entry) for entry in document["sources"]]
        return IngestState(
            name=str(document["name"]),
            cluster_id=str(document["cluster_id"]),
            topic=str(document["topic"]),
            topic_id=str(document["topic_id"]),
            partitions={int(number): int(offset) for number, offset in document["partitions"].items()},
            sources={source.number: source for source in sources},
            next_number=int(document["next_number"]),
            closed=bool(document.get("closed", False)),  # older states do not say
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        if isinstance(problem, BadState):
            raise
        raise BadState(
            f"{origin} is not a state of nilometer ingest ({type(problem).__name__}: {problem}); "
            "give another file with --state, or remove it to read everything from the beginning"
        ) from problem


def _source(entry: dict[str, Any]) -> Source:
    size, head, tail = entry["preview"]
    return Source(
        number=int(entry["number"]),
        path=str(entry["path"]),
        device=int(entry["device"]),
        inode=int(entry["inode"]),
        fingerprint=Fingerprint(int(entry["offset"]), str(entry["head"]), str(entry["tail"])),
        preview=Fingerprint(int(size), str(head), str(tail)),
        lines=int(entry["lines"]),
        finished=bool(entry["finished"]),
    )


def load_state(disk: Disk, path: str) -> IngestState | None:
    """None where there is no such file. Raises BadState."""
    return decode_state(disk.read_file(path), path) if disk.exists(path) else None
