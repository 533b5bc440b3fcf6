"""The settings of remote storage (tiered topics) on one broker: their keys, and what they result in."""

from __future__ import annotations

import msgspec
from msgspec import structs

from nilometer.config import ConfigError, ConfigValues, Settings, key_table
from nilometer.storage.topic_config import SYSTEM_ENABLE, why_local_exceeds_total

LONG_MAX = (1 << 63) - 1
FETCH_WAIT_MS = 500
SEARCH_WAIT_MS = 30_000
URI = "nilometer.tier.uri"


TIER_KEYS = key_table(
    f"""
{SYSTEM_ENABLE}: boolean = false
    Whether topics may keep their older records in remote storage, which {URI} names.
{URI}: string secret
    Where the remote storage is: file:///folder, which all brokers must share, or s3://bucket/prefix.
nilometer.tier.grace.ms: long 0.. = 3_600_000
    How long objects that no reader needs any more stay in remote storage.
nilometer.tier.unknown.topic.grace.ms: long 0.. = 604_800_000
    How long the objects of a topic that this cluster does not know stay in remote storage: it was deleted
    while its brokers were down, or the cluster's metadata were restored from an older backup.
nilometer.tier.claim: int 0.. = 0
    The number under which this cluster has its remote storage, the same on all brokers. One with a higher
    number takes it from a former cluster with the same id, which then copies and removes nothing there.
remote.log.manager.task.interval.ms: long 1.. = 30_000
    How often segments are copied to remote storage, and removed from there. A follower looks at least every
    second time at what is there, before it deletes that here.
remote.log.manager.copier.thread.pool.size: int 1.. dynamic = 10
    How many segments are copied to remote storage at once.
remote.log.manager.copy.max.bytes.per.second: long 1.. dynamic = {LONG_MAX}
    Bytes a second that this broker copies to remote storage.
remote.log.manager.fetch.max.bytes.per.second: long 1.. dynamic = {LONG_MAX}
    Bytes a second that this broker reads from remote storage.
remote.log.reader.threads: int 1.. = 10
    How many reads from remote storage go on at once.
remote.log.reader.max.pending.tasks: int 1.. = 100
    How many reads from remote storage may wait for others; a fetch that would need one more is answered
    without it.
remote.log.index.file.cache.total.size.bytes: long 1.. dynamic = {64 << 20}
    The maximum memory for indexes of segments in remote storage. Apache Kafka keeps them in files, by default
    1 GiB.
remote.fetch.max.wait.ms: int 1.. dynamic = {FETCH_WAIT_MS}
    How long a fetch waits for remote storage; after that the client asks again.
remote.list.offsets.request.timeout.ms: long 1.. dynamic = {SEARCH_WAIT_MS}
    How long a request for the offset of a time waits for remote storage, if it names no time-out itself.
"""
)


class TierConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of remote storage, for a broker that has it."""

    uri: str
    grace_ms: int
    unknown_topic_grace_ms: int
    claim: int
    task_interval_ms: int
    copies_at_once: int
    copy_bytes_per_second: int
    fetch_bytes_per_second: int
    reads_at_once: int
    pending_reads_max: int
    index_cache_bytes: int
    fetch_wait_max_ms: int
    list_offsets_timeout_ms: int


def tier_config(config: Settings, of_topics: ConfigValues) -> TierConfig | None:
    """Return the settings; None if the broker has no remote storage. ``of_topics``: the defaults of topics.

    Raises ConfigError.
    """
    if not config.boolean(SYSTEM_ENABLE):
        return None
    uri = config.optional_string(URI)
    if not uri:
        raise ConfigError(URI, f"{SYSTEM_ENABLE} is true: {URI} must say where the remote storage is")
    for unit in ("ms", "bytes"):
        local, total = f"local.retention.{unit}", f"retention.{unit}"
        if (why := why_local_exceeds_total(of_topics, local, total)) is not None:
            raise ConfigError(f"log.{local}", why)
    numbers = {field: config.integer(key) for field, key in _NUMBERS.items()}
    return TierConfig(uri=uri, **numbers)


_NUMBERS = {
    "grace_ms": "nilometer.tier.grace.ms",
    "unknown_topic_grace_ms": "nilometer.tier.unknown.topic.grace.ms",
    "claim": "nilometer.tier.claim",
    "task_interval_ms": "remote.log.manager.task.interval.ms",
    "copies_at_once": "remote.log.manager.copier.thread.pool.size",
    "copy_bytes_per_second": "remote.log.manager.copy.max.bytes.per.second",
    "fetch_bytes_per_second": "remote.log.manager.fetch.max.bytes.per.second",
    "reads_at_once": "remote.log.reader.threads",
    "pending_reads_max": "remote.log.reader.max.pending.tasks",
    "index_cache_bytes": "remote.log.index.file.cache.total.size.bytes",
    "fetch_wait_max_ms": "remote.fetch.max.wait.ms",
    "list_offsets_timeout_ms": "remote.list.offsets.request.timeout.ms",
}
"""The keys of the fields of TierConfig. Only some can change while a broker runs."""


def with_dynamic(config: TierConfig, dynamic: ConfigValues) -> TierConfig:
    """Return ``config``, changed by what was set while the broker runs, for all brokers or this one."""
    changed = {field: dynamic[key] for field, key in _NUMBERS.items() if key in dynamic}
    return structs.replace(config, **changed)
