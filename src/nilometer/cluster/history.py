"""The history of the metadata log: its entries one after the other, each with its effect.

For tools that show the log. An entry of a deposed controller is listed, too, as not accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from nilometer.cluster.entries import Entry, decode_entry, decode_snapshot
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import Record, ScramCredentialChanged
from nilometer.identifiers import EntryNumber, TopicId
from nilometer.security.scram import ScramCredential

HIDDEN = b""
"""Stands for salts and keys."""


class DecodedEntry(msgspec.Struct, frozen=True):
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
            if topic is not None:
                names[topic.id] = topic.name
        return names


def record_fields(record: Record) -> dict[str, object]:
    """Return the record's set fields as plain values, without keys of users; ``type`` is first."""
    fields: dict[str, object] = msgspec.to_builtins(without_keys(record))
    return fields


def without_keys(record: Record) -> Record:
    """Return the record to show: a credential keeps its iterations only."""
    if not isinstance(record, ScramCredentialChanged) or record.credential is None:
        return record
    shown = ScramCredential(HIDDEN, HIDDEN, HIDDEN, record.credential.iterations)
    return msgspec.structs.replace(record, credential=shown)


def snapshot_fields(image: ClusterImage) -> dict[str, object]:
    """Return a snapshot of the image as plain values, without keys of users."""
    snapshot = image.snapshot()
    shown = tuple(without_keys(record) for record in snapshot.scram)
    fields: dict[str, object] = msgspec.to_builtins(msgspec.structs.replace(snapshot, scram=shown))
    return fields
