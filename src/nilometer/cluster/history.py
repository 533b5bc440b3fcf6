"""The history of the metadata log: its entries one after the other, each with its effect.

For tools that show the log. An entry of a deposed controller is listed, too, as not accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from nilometer.cluster.entries import Entry, decode_entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import Record
from nilometer.cluster.snapshot import decode_snapshot
from nilometer.identifiers import EntryNumber, TopicId


@dataclass(frozen=True, slots=True)
class DecodedEntry:
    number: int
    entry: Entry
    accepted: bool
    """False: the entry is of a deposed controller, so it has no effect."""
    topics: dict[TopicId, str]
    """The names of the topics in its records."""


class MetadataHistory:
    """Applies entries to an image. Raises BadEntry for an entry that cannot be read."""

    def __init__(self) -> None:
        self.image = ClusterImage()

    @property
    def next_number(self) -> int:
        return self.image.number + 1

    def load_snapshot(self, data: bytes) -> None:
        """Start with the image in the snapshot ``data``."""
        self.image = ClusterImage.from_snapshot(decode_snapshot(data))

    def apply(self, entries: Iterable[tuple[int, bytes]]) -> Iterator[DecodedEntry]:
        for number, data in entries:
            entry = decode_entry(data)
            before = self._names(entry.records)
            delta = self.image.apply_entry(EntryNumber(number), entry)
            yield DecodedEntry(number, entry, delta.accepted, {**before, **self._names(entry.records)})

    def _names(self, records: Iterable[Record]) -> dict[TopicId, str]:
        names: dict[TopicId, str] = {}
        for record in records:
            topic_id: TopicId | None = getattr(record, "topic_id", None)
            topic = self.image.topic_by_id(topic_id) if topic_id is not None else None
            if topic_id is not None and topic is not None:
                names[topic_id] = topic.name
        return names


def record_fields(record: Record) -> dict[str, object]:
    """Return the record's set fields as plain values; ``type`` is first."""
    fields: dict[str, object] = msgspec.to_builtins(record)
    return fields
