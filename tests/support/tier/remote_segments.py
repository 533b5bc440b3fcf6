"""Puts the segments of a folder of a partition into a tier, without the code that brokers copy them with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from nilometer.simulation.object_store import Bucket
from nilometer.steps import at_once
from nilometer.tier.format import (
    IndexSections,
    Manifest,
    RemoteSegment,
    TopicFacts,
    encode_index,
    partition_folder,
)
from nilometer.tier.plan import first_manifest

TOPIC = TopicFacts("cluster", "topic-id", "events", 0, 1, {"remote.storage.enable": "true"}, 7)
FOLDER = partition_folder(TOPIC.cluster_id, TOPIC.topic_id, TOPIC.partition)


def segment(base: int, last: int, *, epochs: Sequence[tuple[int, int]] = (), **more: object) -> RemoteSegment:
    """Return an entry of a manifest about ``[base, last]``."""
    values = {
        "max_timestamp": last,
        "log_bytes": 100,
        "index_bytes": 10,
        "has_aborted": False,
        "attempt": f"a{base}",
    } | more
    return RemoteSegment(base, last, epochs=tuple(epochs) or ((0, base),), **values)  # type: ignore[arg-type]


def manifest(*segments: RemoteSegment, log_start: int = 0) -> Manifest:
    first = first_manifest(TOPIC, log_start)
    for one in segments:
        first = at_once(first.adding(one, 0))
    return first


def copy_folder(
    bucket: Bucket,
    folder: Path,
    bases: Sequence[int],
    end_offset: int,
    *,
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
    producers: bytes = b"",
) -> Manifest:
    """Put the segments at ``bases`` into the bucket; return the manifest that names them."""
    entries = list[RemoteSegment]()
    for base, end in zip(bases, (*bases[1:], end_offset), strict=True):
        files = {
            suffix: path.read_bytes() if (path := folder / f"{base:020d}.{suffix}").exists() else b""
            for suffix in ("log", "index", "timeindex", "txnindex")
        }
        index = encode_index(
            IndexSections(files["index"], files["timeindex"], files["txnindex"], producers and b"%d" % end)
        )
        within = [(epoch, max(start, base)) for epoch, start in epochs if start < end]
        kept = [entry for entry, later in pairwise(within) if later[1] > base]
        entries.append(
            segment(
                base,
                end - 1,
                epochs=[*kept, within[-1]],
                max_timestamp=end - 1,
                log_bytes=len(files["log"]),
                index_bytes=len(index),
                has_aborted=bool(files["txnindex"]),
            )
        )
        bucket.write(FOLDER + entries[-1].log_name, files["log"])
        bucket.write(FOLDER + entries[-1].index_name, index)
    return manifest(*entries, log_start=bases[0])
