"""Finds what can be read of each partition: an archive, then a replica's log up to its high watermark.

Invariants: of several replicas the one that is readable furthest is chosen; records of two topics of one name
are never in one log, and neither are an archive and a log that diverge.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders import archive_manifest, log_transactions
from nilometer.pipeline.source.log_folders.archived_partition import ArchivedPartition, find_archived
from nilometer.pipeline.source.log_folders.log_options import LogOptions
from nilometer.pipeline.source.log_folders.log_parts import LogPart, ReadableLog
from nilometer.pipeline.source.log_folders.places import open_place, shown
from nilometer.pipeline.source.log_folders.replica_folders import ReplicaFolder, find_replicas
from nilometer.pipeline.source.log_folders.slice_reader import SliceReader
from nilometer.storage import checkpoints, names
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import TopicPartition

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")


def readable_logs(options: LogOptions) -> dict[TopicPartition, ReadableLog]:
    """Return the selected partitions, each with the replica that is readable furthest, and its archive.

    Raises SourceError if a selected topic or partition is not there.
    """
    replicas = [one for one in find_replicas(options.places) if _is_selected(options, one.part)]
    live = _live_logs(options, replicas)
    archived = _archived(options, replicas) if options.archive is not None else {}
    _require_selected(options, {one.part for one in replicas} | set(archived))
    logs: dict[TopicPartition, ReadableLog] = {}
    for part in sorted(live.keys() | archived.keys()):
        log = _joined(archived.get(part), live.get(part))
        logs[part] = _stable(log) if options.read_committed else log
    return logs


def _live_logs(options: LogOptions, replicas: Sequence[ReplicaFolder]) -> dict[TopicPartition, LogPart]:
    logs: dict[TopicPartition, LogPart] = {}
    for part, group in groupby(replicas, key=lambda one: one.part):
        candidates = list(group)
        _require_one_topic_id(part, candidates)
        readable = [log for one in candidates if (log := _readable(options, one)) is not None]
        if readable:
            logs[part] = max(readable, key=lambda one: (one.end, -one.start))
    return logs


def _require_one_topic_id(part: TopicPartition, replicas: Sequence[ReplicaFolder]) -> None:
    """Raise SourceError if replicas have different topic ids: one may be of a deleted topic of that name."""
    first = replicas[0]
    for other in replicas[1:]:
        if first.topic_id and other.topic_id and first.topic_id != other.topic_id:
            raise SourceError(
                f"{shown(first.place)} and {shown(other.place)} belong to two topics named {part.topic} "
                f"({first.topic_id}, {other.topic_id}): give only the folders of the topic to read"
            )


def _is_selected(options: LogOptions, part: TopicPartition) -> bool:
    selection = options.common.selection
    if selection.assigned is not None:
        return part.partition in selection.assigned.get(part.topic, ())
    if selection.pattern is not None:
        return selection.matches(part.topic) and part.topic not in INTERNAL_TOPICS
    return part.topic in selection.topics


def _require_selected(options: LogOptions, found: set[TopicPartition]) -> None:
    places = [*options.places, *([options.archive] if options.archive is not None else [])]
    where = ", ".join(shown(one) for one in places)
    selection, topics = options.common.selection, {part.topic for part in found}
    for name in selection.names or ():
        if name not in topics:
            raise SourceError(f"topic {name} has no replica in {where}")
    for topic, numbers in (selection.assigned or {}).items():
        for number in numbers:
            if TopicPartition(topic, number) not in found:
                raise SourceError(f"partition {topic}-{number} has no replica in {where}")


def _readable(options: LogOptions, replica: ReplicaFolder) -> LogPart | None:
    try:
        bases = replica.segments()
    except FileNotFoundError:
        return None  # deleted since it was found
    start = replica.log_start(bases)
    end = _log_end(replica, bases) if options.until_log_end else replica.high_watermark
    if end is None:
        raise SourceError(
            f"no high watermark is checkpointed for {shown(replica.place)}, so it is unknown which records "
            "are committed. highWatermark=logEnd reads to the end of the log"
        )
    return LogPart(replica, tuple(bases), start, max(start, end))


def _stable(log: ReadableLog) -> ReadableLog:
    """Return the log up to its last stable offset. Of what precedes a gap, ``cut_off`` takes care."""
    tail = log.behind_gaps()
    if tail[0].start == tail[-1].end:
        return log
    return replace(log, stable_end=log_transactions.last_stable_offset(tail))


def _log_end(replica: ReplicaFolder, bases: Sequence[int]) -> int:
    """Return the offset after the last complete batch."""
    end = bases[-1] if bases else 0
    for table in SliceReader(replica.place, fail_on_data_loss=False).tables(end, 1 << 62):
        end = max(end, int(table.next_offsets[-1]))
    return end


# --- the archive


def _archived(
    options: LogOptions, replicas: Iterable[ReplicaFolder]
) -> dict[TopicPartition, ArchivedPartition]:
    """Return the selected partitions of the archive: of the replicas' topics, and of other topics."""
    assert options.archive is not None
    live_ids = {one.part.topic: one.topic_id for one in replicas}
    found = find_archived(options.archive, options.common.selection.names)
    selected = [one for one in found if _is_selected(options, one.part)]
    kept: dict[TopicPartition, ArchivedPartition] = {}
    for topic, group in groupby(selected, key=lambda one: one.part.topic):
        partitions = list(group)
        topic_id = _topic_id(options, topic, live_ids, sorted({one.topic_id for one in partitions}))
        kept.update((one.part, one) for one in partitions if one.topic_id == topic_id)
    return kept


def _topic_id(
    options: LogOptions, topic: str, live_ids: dict[str, str | None], archived_ids: Sequence[str]
) -> str:
    """Choose one of the topics that are archived under this name."""
    wanted = options.archive_topic_id
    if topic in live_ids:
        live_id = live_ids[topic]
        if live_id is None:
            raise SourceError(
                f"the folder of topic {topic} has no topic id, so it is unknown whether the archive is of it"
            )
        if wanted is not None and wanted != live_id:
            raise SourceError(
                f"archiveTopicId is {wanted}, but the folders have the topic {topic} with the id {live_id}: "
                "leave out the folders to read the archive only"
            )
        return live_id
    if wanted is not None:
        return wanted
    if len(archived_ids) > 1:
        raise SourceError(
            f"the archive has {len(archived_ids)} topics named {topic}: choose one with "
            f"archiveTopicId ({', '.join(archived_ids)})"
        )
    return archived_ids[0]


def _joined(archived: ArchivedPartition | None, live: LogPart | None) -> ReadableLog:
    """Return the log of a partition: the archive, and from its end on the replica's log."""
    if archived is None:
        assert live is not None
        return ReadableLog((live,))
    replica = archived.as_replica()
    parts = [
        LogPart(
            replica,
            tuple(segment.base_offset for segment in run),
            max(run[0].base_offset, archived.start),
            run[-1].end_offset,
        )
        for run in archive_manifest.runs(archived.chain)
    ]
    if live is not None:
        _require_same_history(archived, live)
        start = max(live.start, archived.end)
        # An empty part after a gap stays: it shows that records are missing.
        if start > archived.end or live.end > start:
            parts.append(replace(live, start=start, end=max(start, live.end)))
    return ReadableLog(tuple(parts))


def _require_same_history(archived: ArchivedPartition, live: LogPart) -> None:
    disk, folder = open_place(live.place)
    try:
        epochs = checkpoints.read_epochs(disk, posixpath.join(folder, names.LEADER_EPOCH_CHECKPOINT))
    except CorruptCheckpoint as error:
        raise SourceError(str(error)) from error
    offset = archive_manifest.chain_divergence(archived.chain, epochs, live.end)
    if offset is not None:
        raise SourceError(
            f"the archive of {archived.part} and {shown(live.place)} diverge at offset {offset}: their "
            "leader epochs differ. An unclean election may have removed archived records; read one of the two"
        )
