"""What ``format("nilometer-log")`` reads: its options, the range of each partition, and the slices that tasks
get.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, cast

from nilometer.pipeline.errors import DataLoss, OptionError, SourceError
from nilometer.pipeline.source.log_folders import log_slices
from nilometer.pipeline.source.log_folders.log_slices import (
    LogPart,
    LogSlice,
    ReadableLog,
    SliceReader,
    plan_slices,
    reader_of,
    total_bytes,
)
from nilometer.pipeline.source.log_folders.places import (
    ReplicaFolder,
    StoredTopic,
    find_replicas,
    find_stored,
    in_tier,
    place_in_tier,
    shown,
)
from nilometer.pipeline.source.log_folders.storages import each
from nilometer.pipeline.source.log_folders.tiers import TieredPartition
from nilometer.pipeline.source.positions import Bounds
from nilometer.pipeline.source.source_options import (
    EARLIEST,
    LATEST,
    AtTime,
    Bound,
    SourceOptions,
    parse_options,
)
from nilometer.storage import checkpoints, names
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.log_reader import LogFolderReader
from nilometer.storage.names import TopicPartition
from nilometer.tier import segment_ranges
from nilometer.wire.record_batch import read_header
from nilometer.wire.records import decode_records

# The options of ``format("nilometer-log")``: the folders, and what to read from them.
#
# The options of both data sources (topics, offsets, times, tasks) are checked by ``source_options``; this
# module checks those of this source only. An invalid option raises :class:`OptionError`.

OWN = {
    "path": "a partition's folder, a log directory, or a folder of several; also what load() is given",
    "paths": "several of these, as a JSON list; also what load([...]) is given",
    "logDirs": "several of these, separated by commas",
    "archive": "the folder or URI of an archive, or of the remote storage of tiered topics, read before the "
    "log; then path and the like may be left out",
    "tier": "the same as archive",
    "archiveTopicId": "the id of a topic, if the archive or remote storage has several topics of that name; "
    "CLUSTER_ID/TOPIC_ID if several clusters have the id",
    "highWatermark": "checkpoint (default): read up to what is checkpointed; logEnd: all that is there",
    "isolation.level": "read_uncommitted (default) or read_committed",
    "bytesPerPartition": "about how many bytes of segments one task reads; a number of 1 or more",
}
NOT_FOR_FOLDERS = ("groupidprefix", "kafkaconsumer.polltimeoutms")
BYTES_PER_PARTITION = 64 * 1024 * 1024
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
HIGH_WATERMARKS = ("checkpoint", "logEnd")

_CANONICAL = {name.lower(): name for name in OWN} | {"kafka.isolation.level": "isolation.level"}
_CHOICES = ("subscribe", "assign", "subscribepattern")
_NO_BROKER = {"kafka.bootstrap.servers": "folders:1"}
"""A placeholder: the shared options require brokers, which this source does not use."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    places: tuple[str, ...]
    until_log_end: bool
    read_committed: bool
    bytes_per_partition: int
    archive: str | None
    archive_topic_id: str | None
    common: SourceOptions
    """The options of both sources; without a choice of topics all but the internal ones are read."""


def parse_log_options(given: Mapping[str, str]) -> LogOptions:
    """Parse the options that Spark passes; keys are case-insensitive. Raises OptionError."""
    own: dict[str, str] = {}
    common: dict[str, str] = {}
    for key, value in given.items():
        name = key.lower()
        if name in _CANONICAL:
            own[_CANONICAL[name]] = value
        elif name.startswith("kafka.") or name in NOT_FOR_FOLDERS:
            raise OptionError(key, value, f"has no effect here, because no broker is contacted. {_allowed()}")
        else:
            common[key] = value
    chosen = any(key.lower() in _CHOICES for key in common)
    choice = {} if chosen else {"subscribePattern": ".*"}
    try:
        shared = parse_options({**common, **choice, **_NO_BROKER}, streaming=False)
    except OptionError as error:
        if "no such option" not in str(error):
            raise
        raise OptionError(
            error.option, given.get(error.option), f"there is no such option. {_allowed()}"
        ) from None
    return LogOptions(
        places=_places(own),
        archive=_archive(own),
        archive_topic_id=own.get("archiveTopicId"),
        until_log_end=_one_of(own, "highWatermark", HIGH_WATERMARKS) == "logEnd",
        read_committed=_one_of(own, "isolation.level", ISOLATION_LEVELS) == "read_committed",
        bytes_per_partition=_positive(own, "bytesPerPartition", BYTES_PER_PARTITION),
        common=shared,
    )


def _allowed() -> str:
    return f"Allowed are {', '.join(OWN)}, and those of topics, offsets and tasks that nilometer has"


def _places(own: Mapping[str, str]) -> tuple[str, ...]:
    places: list[str] = []
    if own.get("path"):
        places.append(own["path"])
    if "paths" in own:
        places += _listed(own["paths"])
    places += [place.strip() for place in own.get("logDirs", "").split(",") if place.strip()]
    if not places and not (own.get("archive") or own.get("tier")):
        raise OptionError("path", None, f"give path, paths, logDirs, archive or tier: path is {OWN['path']}")
    return tuple(dict.fromkeys(places))


def _archive(own: Mapping[str, str]) -> str | None:
    archive = own.get("archive", own.get("tier"))
    if archive is None:
        if "archiveTopicId" in own:
            raise OptionError("archiveTopicId", own["archiveTopicId"], "has no effect without archive")
        return None
    if "tier" in own and own["tier"] != archive:
        raise OptionError("tier", own["tier"], "is the same option as archive: give one of them")
    if not archive.strip():
        raise OptionError("archive", archive, f"must be {OWN['archive']}")
    return archive.strip()


def _listed(text: str) -> list[str]:
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, list) or not all(isinstance(one, str) for one in cast(list[Any], parsed)):
        raise OptionError("paths", text, f"must be {OWN['paths']}")
    return cast(list[str], parsed)


def _one_of(own: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = own.get(name, allowed[0])
    for one in allowed:
        if value.strip().lower() == one.lower():
            return one
    raise OptionError(name, value, f"must be one of {', '.join(allowed)}")


def _positive(own: Mapping[str, str], name: str, default: int) -> int:
    value = own.get(name)
    if value is None:
        return default
    if not value.strip().isdecimal() or int(value) < 1:
        raise OptionError(name, value, f"must be {OWN[name]}")
    return int(value)


# Plans a read on the driver: the range of each partition (``readable_logs``), divided into slices.
#
# Invariants: nothing at or above a partition's checkpointed high watermark is planned (except with
# ``highWatermark=logEnd``), and with read_committed nothing at or above its last stable offset.

# Finds what can be read of each partition: an archive, then a replica's log up to its high watermark.
#
# Invariants: of several replicas the one that is readable furthest is chosen; records of two topics of one
# name are never in one log, and neither are an archive and a log that diverge.

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")


def readable_logs(options: LogOptions) -> dict[TopicPartition, ReadableLog]:
    """Return the selected partitions, each with the replica that is readable furthest, and its archive.

    Raises SourceError if a selected topic or partition is not there.
    """
    replicas = [one for one in find_replicas(options.places) if _is_selected(options, one.part)]
    live = _live_logs(options, replicas)
    archived = _archived(options, replicas) if options.archive is not None else {}
    _require_selected(options, {one.part for one in replicas} | set(archived))

    def readable(part: TopicPartition) -> ReadableLog:
        log = _joined(archived.get(part), live.get(part), options.archive)
        return _stable(log) if options.read_committed else log

    parts = sorted(live.keys() | archived.keys())
    return dict(zip(parts, each(readable, parts), strict=True))


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
    return replace(log, stable_end=log_slices.last_stable_offset(tail))


def _log_end(replica: ReplicaFolder, bases: Sequence[int]) -> int:
    """Return the offset after the last complete batch."""
    end = bases[-1] if bases else 0
    for table in SliceReader(replica.place, fail_on_data_loss=False).tables(end, 1 << 62):
        end = max(end, int(table.next_offsets[-1]))
    return end


# --- the archive


def _archived(
    options: LogOptions, replicas: Iterable[ReplicaFolder]
) -> dict[TopicPartition, TieredPartition]:
    """Return the selected partitions of the archive or of remote storage: of the replicas' topics, and of
    others."""
    assert options.archive is not None
    names, given = options.common.selection.names, _given_topic(options)
    live = {topic: _live_topic(topic, list(group)) for topic, group in groupby(replicas, _topic_of)}
    known = dict.fromkeys(names or (), given) | live
    found = find_stored(
        options.archive, names, {topic: one for topic, one in known.items() if one is not None}
    )
    selected = [one for one in found if _is_selected(options, one.part)]
    kept: dict[TopicPartition, TieredPartition] = {}
    for topic, group in groupby(selected, _topic_of):
        stored: dict[StoredTopic, list[TieredPartition]] = {}
        for one in group:
            stored.setdefault(StoredTopic(one.topic_id, one.cluster_id), []).append(one)
        wanted = _agreed(topic, live[topic], given) if topic in live else given
        chosen = _chosen(topic, wanted, list(stored))
        if chosen is not None:
            kept.update((one.part, one) for one in stored[chosen])
    return kept


def _topic_of(one: ReplicaFolder | TieredPartition) -> str:
    return one.part.topic


def _given_topic(options: LogOptions) -> StoredTopic | None:
    if options.archive_topic_id is None:
        return None
    cluster_id, _, topic_id = options.archive_topic_id.rpartition("/")
    return StoredTopic(topic_id, cluster_id or None)


def _live_topic(topic: str, replicas: Sequence[ReplicaFolder]) -> StoredTopic | None:
    """Return the topic whose folders these are; None if they have no topic id."""
    clusters = sorted({known for one in replicas if (known := one.directory.cluster_id)})
    if len(clusters) > 1:
        raise SourceError(
            f"the folders of topic {topic} are of several clusters ({', '.join(clusters)}): give those of one"
        )
    topic_id = replicas[-1].topic_id
    return None if topic_id is None else StoredTopic(topic_id, next(iter(clusters), None))


def _agreed(topic: str, live: StoredTopic | None, given: StoredTopic | None) -> StoredTopic:
    """Return the topic of the folders, which must be the one that the options name."""
    if live is None:
        raise SourceError(
            f"the folder of topic {topic} has no topic id, so it is unknown whether the archive is of it"
        )
    if given is not None and not given.may_be(live):
        raise SourceError(
            f"archiveTopicId is {given}, but the folders have the topic {topic} with the id {live}: "
            "leave out the folders to read the archive only"
        )
    return given if given is not None and live.cluster_id is None else live


def _chosen(topic: str, wanted: StoredTopic | None, stored: Sequence[StoredTopic]) -> StoredTopic | None:
    """Choose one of the topics that are archived under this name; None if none of them is wanted."""
    if wanted in stored:
        return wanted
    found = [one for one in stored if wanted is None or wanted.may_be(one)]
    if len(found) > 1:
        are_distinct = len({one.topic_id for one in found}) == len(found)
        ids = ", ".join(sorted(one.topic_id if are_distinct else str(one) for one in found))
        raise SourceError(
            f"the archive has {len(found)} topics named {topic}: choose one with archiveTopicId ({ids})"
        )
    return found[0] if found else None


def _joined(archived: TieredPartition | None, live: LogPart | None, store: str | None) -> ReadableLog:
    """Return the log of a partition: what is archived or in remote storage, and from its end on the replica's
    log."""
    if archived is None:
        assert live is not None
        tier = None if store is None else place_in_tier(store, live.replica)  # its first segments may come
        live = replace(live, replica=replace(live.replica, tier=tier))
        return ReadableLog((*_only_in_tier(live, live.start), live))
    first, replica = archived.start, in_tier(archived)
    if live is not None and not archived.is_archive:
        live = replace(live, replica=replace(live.replica, tier=archived.place, is_in_tier=True))
        first = max(first, live.replica.checkpointed_start)  # it may have moved since the manifest
    parts = [
        LogPart(
            replica,
            tuple(segment.base_offset for segment in run),
            max(run[0].base_offset, first),
            run[-1].end_offset,
        )
        for run in segment_ranges.runs(archived.chain)
    ]
    if live is not None:
        _require_same_history(archived, live)
        start = max(live.start, archived.end)
        # An empty part after a gap stays: it shows that records are missing.
        if start > archived.end or live.end > start:
            parts.append(replace(live, start=start, end=max(start, live.end)))
    return ReadableLog((*(() if live is None else _only_in_tier(live, first)), *parts))


def _only_in_tier(live: LogPart, below: int) -> tuple[LogPart, ...]:
    """Return an empty part where the log begins in remote storage, if that is ``below``: then it shows that
    records are missing here."""
    only_there = live.replica.only_in_tier(list(live.bases))
    if only_there is None or only_there[0] >= below:
        return ()
    return (LogPart(live.replica, (), only_there[0], only_there[0]),)


def _require_same_history(archived: TieredPartition, live: LogPart) -> None:
    disk, folder = live.replica.open()
    try:
        epochs = checkpoints.read_epochs(disk, posixpath.join(folder, names.LEADER_EPOCH_CHECKPOINT))
    except CorruptCheckpoint as error:
        raise SourceError(str(error)) from error
    offset = segment_ranges.chain_divergence(archived.chain, epochs, live.end)
    if offset is not None:
        raise SourceError(
            f"the archive of {archived.part} and {shown(live.place)} diverge at offset {offset}: their "
            "leader epochs differ. An unclean election may have removed archived records; read one of the two"
        )
    if not archived.is_archive:
        _require_same_records(archived, live, LogFolderReader(disk, folder))


def _require_same_records(archived: TieredPartition, live: LogPart, log: LogFolderReader) -> None:
    """Compare the last batch of the newest segment that ends in the log: a second cluster with this id may
    have written other records under the same leader epochs."""
    ending = (one for one in reversed(archived.chain) if live.start <= one.last_offset < live.end)
    segment = next((one for one in ending if one.last_crc is not None), None)
    if segment is None or live.replica.may_have_gaps:
        return
    for batch in log.batches(segment.last_offset, verify=False):
        if batch.header.crc != segment.last_crc:
            raise SourceError(
                f"the remote storage of {archived.part} has other records at offset {segment.last_offset} "
                f"than {shown(live.place)}, under the same leader epochs: a second cluster with this id has "
                "written to it. Read one of the two"
            )
        return


# Finds the first record at or after a timestamp in a partition's folder, with its time indexes.

_WHOLE_SEGMENTS = 1 << 62


def offset_for_time(
    replica: ReplicaFolder, milliseconds: int, start: int, end: int, *, fail_on_data_loss: bool = False
) -> int | None:
    """Return the first offset in [start, end) with a timestamp at or after ``milliseconds``, or None.

    Records need not be in the order of their timestamps: the result is the first in the order of offsets. As
    in brokers, a control record counts too.
    Raises FileNotFoundError if the partition is deleted meanwhile; with ``fail_on_data_loss`` DataLoss, if an
    object of remote storage is gone that may have the record.
    """
    fails = fail_on_data_loss and bool(replica.segments_in_tier)
    slices = plan_slices(replica, start, end, bytes_per_slice=_WHOLE_SEGMENTS, since_ms=milliseconds)
    for one in slices:
        found = _first_in(reader_of(replica, fail_on_data_loss=fails), milliseconds, one.start, one.end)
        if found is not None:
            return found
    replica.segments()  # raises if the partition was deleted: then None would be wrong
    return None


def _first_in(reader: SliceReader, milliseconds: int, start: int, end: int) -> int | None:
    from nilometer.pipeline.decode import batch_kernels as fields

    for table in reader.tables(start, end):
        late = (table.column(fields.MAX_TIMESTAMP) >= milliseconds) & (table.next_offsets > start)
        positions: Sequence[int] = table.column(fields.POSITION)[late].tolist()
        for position in positions:
            header = read_header(table.buffer, position)
            for record in decode_records(table.buffer, position, header):
                if start <= record.offset < end and record.timestamp >= milliseconds:
                    return record.offset
    return None


ATTEMPTS = 20

Begin = Callable[[Mapping[TopicPartition, ReadableLog]], Mapping[TopicPartition, int] | None]
"""Returns the offset at which to begin in each of the logs; None: as the options say."""


@dataclass(frozen=True, slots=True)
class LogPlan:
    slices: tuple[LogSlice, ...]
    ranges: Mapping[TopicPartition, tuple[int, int]]
    """The offsets [start, end) of each selected partition; end is at least start."""
    topic_ids: Mapping[str, str]
    """The topic ids that are known, by the topic's name."""


def plan(options: LogOptions, bounds: Bounds) -> list[LogSlice]:
    """Return the slices to read, one per task. Raises OptionError, SourceError, DataLoss.

    If a broker deletes files meanwhile, the read is planned again.
    """
    return list(plan_from(options, bounds).slices)


def plan_from(options: LogOptions, bounds: Bounds, begin: Begin = lambda _: None) -> LogPlan:
    """Return slices and ranges of a read that begins where ``begin`` says. Raises as ``plan``."""
    missing = None
    for _ in range(ATTEMPTS):
        try:
            return _plan(options, bounds, begin)
        except FileNotFoundError as error:
            missing = error.filename
    raise SourceError(
        f"{missing} was listed and then deleted, {ATTEMPTS} times in a row: run the query again"
    )


def _plan(options: LogOptions, bounds: Bounds, begin: Begin) -> LogPlan:
    logs = readable_logs(options)
    starts = begin(logs) or _resolved(options, "startingOffsets", options.common.starting, logs)
    ends = _resolved(options, "endingOffsets", options.common.ending, logs)
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for part, log in logs.items():
        start = max(_not_before_the_log(options, log, starts[part]), bounds.first)
        end = ends[part] if bounds.last is None else min(ends[part], bounds.last + 1)
        ranges[part] = (start, max(start, end))
    wanted = [
        (logs[part], start, end)
        for part, (start, end) in ranges.items()
        if start < end and bounds.allows(part.topic, part.partition)
    ]
    for log, start, end in wanted:
        _require_no_gap(options, log, start, end)
    size = _bytes_per_slice(options, wanted)
    slices = each(lambda one: _slices(options, bounds, *one, size), wanted)
    ids = {log.part.topic: log.parts[-1].replica.topic_id for log in logs.values()}
    return LogPlan(
        tuple(chain.from_iterable(slices)), ranges, {topic: known for topic, known in ids.items() if known}
    )


def _not_before_the_log(options: LogOptions, log: ReadableLog, start: int) -> int:
    if start >= log.start:
        return start
    if options.common.fail_on_data_loss:
        raise DataLoss(
            f"offsets {start} to {log.start - 1} of {log.part} are no longer available: "
            f"its log starts at {log.start}"
        )
    return log.start


def _require_no_gap(options: LogOptions, log: ReadableLog, start: int, end: int) -> None:
    """Raise DataLoss if offsets of the range are neither in the archive nor in the log."""
    missing = log.missing(start, end)
    if missing and options.common.fail_on_data_loss:
        ranges = ", ".join(f"{low} to {high - 1}" for low, high in missing)
        last = log.parts[-1].replica
        if not last.is_in_tier and last.begins_in_tier:
            raise DataLoss(
                f"offsets {ranges} of {log.part} are not in its folder, because the topic is tiered: "
                f"{_remote_storage(options)}"
            )
        raise DataLoss(f"offsets {ranges} of {log.part} are neither in the archive nor in the log")


def _remote_storage(options: LogOptions) -> str:
    if options.archive is not None:
        return f"{shown(options.archive)} has none of them, so it is not the remote storage of its cluster"
    return (
        "give its remote storage with the option tier, the nilometer.tier.uri of the brokers; or read them "
        'through brokers, with format("nilometer")'
    )


def _resolved(
    options: LogOptions, name: str, bound: Bound, logs: Mapping[TopicPartition, ReadableLog]
) -> dict[TopicPartition, int]:
    if isinstance(bound, int):
        return {part: log.start if bound == EARLIEST else log.end for part, log in logs.items()}
    if isinstance(bound, AtTime):
        return _at_times(options, bound, logs)
    given = _for_each(name, bound, logs)
    found: dict[TopicPartition, int] = {}
    for part, log in logs.items():
        found[part] = {EARLIEST: log.start, LATEST: log.end}.get(given[part], given[part])
        if found[part] > log.end:
            raise OptionError(
                name, None, f"offset {found[part]} of {part} is beyond its end offset, {log.end}"
            )
    return found


def _at_times(
    options: LogOptions, bound: AtTime, logs: Mapping[TopicPartition, ReadableLog]
) -> dict[TopicPartition, int]:
    times = (
        dict.fromkeys(logs, bound.milliseconds)
        if isinstance(bound.milliseconds, int)
        else _for_each(bound.option, bound.milliseconds, logs)
    )
    offsets = each(lambda one: _first_at(options, one[1], times[one[0]]), logs.items())
    found: dict[TopicPartition, int] = {}
    for (part, log), offset in zip(logs.items(), offsets, strict=True):
        if offset is None and not bound.or_latest:
            raise OptionError(
                bound.option,
                str(times[part]),
                f"{part} has no record with this timestamp or a later one. "
                "startingOffsetsByTimestampStrategy=latest starts at its end offset",
            )
        found[part] = log.end if offset is None else offset
    return found


def _first_at(options: LogOptions, log: ReadableLog, milliseconds: int) -> int | None:
    fails = options.common.fail_on_data_loss
    for one in log.parts:
        end = min(one.end, log.end)
        offset = offset_for_time(one.replica, milliseconds, one.start, end, fail_on_data_loss=fails)
        if offset is not None:
            is_first = one.start == offset and one.replica.only_in_tier(list(one.bases)) is not None
            return log.start if is_first else offset  # there may be another one in remote storage
    return None


def _for_each(
    name: str, given: Mapping[str, Mapping[int, int]], logs: Mapping[TopicPartition, ReadableLog]
) -> dict[TopicPartition, int]:
    wanted = {
        TopicPartition(topic, number): value
        for topic, numbers in given.items()
        for number, value in numbers.items()
    }
    missing, unknown = sorted(set(logs) - set(wanted)), sorted(set(wanted) - set(logs))
    if missing or unknown:
        reason = f"{missing[0]} has none" if missing else f"{unknown[0]} is not read"
        raise OptionError(name, None, f"must have a value for each partition that is read: {reason}")
    return wanted


def _bytes_per_slice(options: LogOptions, wanted: Sequence[tuple[ReadableLog, int, int]]) -> int:
    size, least = options.bytes_per_partition, options.common.min_partitions
    if least is not None:
        total = sum(
            total_bytes(part.replica, low, high)
            for log, start, end in wanted
            for part, low, high in log.within(start, end)
        )
        size = max(min(size, total // least), 1)
    return size


def _slices(
    options: LogOptions, bounds: Bounds, log: ReadableLog, start: int, end: int, size: int
) -> list[LogSlice]:
    slices = [
        one
        for part, low, high in log.within(start, end)
        for one in plan_slices(
            part.replica,
            low,
            high,
            bytes_per_slice=size,
            since_ms=bounds.since_ms,
            records_max=options.common.max_records_per_partition,
        )
    ]
    if not options.read_committed:
        return slices
    aborted = [
        *log_slices.find_aborted(log.parts, start, end),
        *(one for part in log.parts_before_gaps() for one in log_slices.cut_off(part)),
    ]
    return [
        replace(one, aborted=tuple(each for each in aborted if each.overlaps(one.start, one.end)))
        for one in slices
    ]
