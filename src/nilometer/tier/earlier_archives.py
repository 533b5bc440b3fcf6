"""Archives of format 1, which are read and no longer written, as manifests of the present format.

The folder of a partition is ``TOPIC/TOPIC ID/PARTITION/``. A segment has its files there as objects,
``BASE-CRC-TOKEN.SUFFIX`` with the CRC-32C of the bytes; the producers' state at its end, too. A manifest,
``manifest-NUMBER-TOKEN.json``, names all segments that its writer knew: the union of all manifests counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from crc32c import crc32c

from nilometer.runtime.object_store import ObjectNotFound, ObjectStore, ObjectStoreError
from nilometer.tier.format import (
    FORMAT_VERSION,
    DamagedObject,
    IndexSections,
    Manifest,
    RemoteSegment,
    TopicFacts,
    encode_index,
    partition_folder,
)
from nilometer.tier.segment_ranges import chain

_MANIFEST_NAME = re.compile(r"manifest-([0-9]{10})-[0-9a-f]{8}\.json")
_SUFFIXES = (".index", ".timeindex", ".txnindex", ".snapshot")
"""In the order of the sections of an index."""
_NO_INDEX_BYTES = len(encode_index(IndexSections(b"", b"", b"", b"")))
_ATTEMPTS_MAX = 20
"""How often manifests are read again that a run of an earlier version has replaced meanwhile."""


class EarlierSegment(RemoteSegment, frozen=True, array_like=True):
    """A segment whose indexes are an object each. Its log has the name that ``log_name`` gives."""

    files: tuple[str, ...] = ()
    """The names of its indexes, in the order of :data:`_SUFFIXES`; empty for one that it has not."""

    @property
    def index_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.files if name)

    def sections(self, objects: Sequence[bytes], folder: str) -> IndexSections:
        contents = dict(zip(self.index_names, objects, strict=True))
        for name, data in contents.items():
            if crc32c(data) != int(name.split("-")[1], 16):
                raise DamagedObject(f"{folder}{name} is not as it was written: its CRC differs")
        return IndexSections(*(contents.get(name, b"") for name in self.files))


async def read_earlier(store: ObjectStore, topic: str, topic_id: str, partition: int) -> Manifest | None:
    """Return what the archive has of a partition; None if it has no manifest of format 1.

    Raises ObjectStoreError, DamagedObject.
    """
    folder = partition_folder(topic, topic_id, partition)
    for _ in range(_ATTEMPTS_MAX):
        numbers = {
            name: _number(name.removeprefix(folder)) for name in await store.names(f"{folder}manifest-")
        }
        found = {name: number for name, number in numbers.items() if number is not None}
        if not found:
            return None
        try:
            texts = {name: await store.get(name) for name in found}
        except ObjectNotFound:
            continue
        segments = [one for name, text in texts.items() for one in _segments(text, name, folder)]
        linked = tuple(chain({one.log_name: one for one, _ in segments}.values()))
        starts = {one.log_name: start for one, start in segments}
        return Manifest(
            FORMAT_VERSION,
            max(found.values()),
            oldest=0,
            leader_epoch=-1,
            writer="",
            written_ms=-1,
            log_start_offset=min((starts[one.log_name] for one in linked), default=0),
            segments=linked,
            dropped=(),
            topic=TopicFacts("", topic_id, topic, partition, 0, {}, 0),
            is_archive=True,
        )
    raise ObjectStoreError(f"{folder}: manifests are replaced faster than they can be read")


async def has_earlier(store: ObjectStore, topic: str, topic_id: str) -> bool:
    """Whether the archive has a partition of the topic in format 1. Raises ObjectStoreError."""
    for folder in await store.folders(f"{topic}/{topic_id}/"):
        names = await store.names(f"{folder}manifest-")
        if any(_number(name.removeprefix(folder)) is not None for name in names):
            return True
    return False


def _number(name: str) -> int | None:
    found = _MANIFEST_NAME.fullmatch(name)
    return int(found[1]) if found else None


def _segments(text: bytes, name: str, folder: str) -> list[tuple[EarlierSegment, int]]:
    """Return the segments of a manifest, each with its first offset that may be read."""
    try:
        whole = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedObject(f"{name}: {error}") from error
    if (whole.get("format"), whole.get("version")) != ("nilometer-archive", 1):
        raise DamagedObject(f"{name} is not the manifest of an archive of format 1")
    body = cast(Mapping[str, Any], whole.get("archive"))
    if (
        whole.get("crc32c")
        != f"{crc32c(json.dumps(body, sort_keys=True, separators=(',', ':')).encode()):08x}"
    ):
        raise DamagedObject(f"{name} is not as it was written: its CRC differs")
    if partition_folder(body["topic"], body["topic_id"], body["partition"]) != folder:
        raise DamagedObject(f"{name} is of {body['topic']}-{body['partition']} ({body['topic_id']})")
    return [(_segment(one), one["start_offset"]) for one in body["segments"]]


def _segment(one: Mapping[str, Any]) -> EarlierSegment:
    files: Mapping[str, Mapping[str, Any]] = one["files"]
    log = files[".log"]
    present = [files[suffix] for suffix in _SUFFIXES if suffix in files]
    return EarlierSegment(
        one["base_offset"],
        one["end_offset"] - 1,
        one["max_timestamp"],
        log["bytes"],
        index_bytes=_NO_INDEX_BYTES + sum(file["bytes"] for file in present),
        has_aborted=bool(files.get(".txnindex", {}).get("bytes")),
        attempt=log["name"].partition("-")[2].removesuffix(".log"),
        epochs=tuple((epoch, offset) for epoch, offset in one["leader_epochs"]),
        log_crc=int(log["crc32c"], 16),
        records=one["records"],
        files=tuple(files[suffix]["name"] if suffix in files else "" for suffix in _SUFFIXES),
    )
