"""Archives topics: every partition that has a replica in some folders, one after the other.

A partition that cannot be archived does not stop the others: its result says why. What the archive's storage
refuses ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby

from nilometer.pipeline.archive.archive_target import ArchiveTarget
from nilometer.pipeline.archive.partition_archiver import PartitionArchiver, PartitionResult
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.places import shown
from nilometer.pipeline.source.log_folders.replica_folders import ReplicaFolder, find_replicas


def archive(
    places: Sequence[str],
    topics: Collection[str],
    target: ArchiveTarget,
    say: Callable[[str], None] = lambda what: None,
) -> list[PartitionResult]:
    """Copy the sealed segments that are missing in the archive; return a result for each partition.

    Raises SourceError if a topic is not in ``places``, TargetError.
    """
    replicas = [one for one in find_replicas(places) if one.part.topic in topics]
    missing = sorted(set(topics) - {one.part.topic for one in replicas})
    if missing:
        where = ", ".join(shown(one) for one in places)
        raise SourceError(
            f"topic {missing[0]} has no replica in {where}: `nilometer topic list` shows topics"
        )
    target.require()
    ordered = sorted(replicas, key=lambda one: (one.part, one.topic_id or ""))
    groups = [list(group) for _, group in groupby(ordered, key=lambda one: (one.part, one.topic_id))]
    return [_archive_partition(target, group, say) for group in groups]


def _archive_partition(
    target: ArchiveTarget, replicas: Sequence[ReplicaFolder], say: Callable[[str], None]
) -> PartitionResult:
    first = replicas[0]
    result = PartitionResult(first.part, first.topic_id or "")
    try:
        archiver = PartitionArchiver(target, replicas, say)
        result = archiver.result
        archiver.run()
    except SourceError as error:
        result.problem = str(error)
    return result
