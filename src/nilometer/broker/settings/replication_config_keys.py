"""The broker's settings for topics, their replicas, leaderships and logs: log directories and compaction as
well.
"""

from __future__ import annotations

from nilometer.config import key_table

LONG_MAX = (1 << 63) - 1
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"

TOPICS = key_table(
    """
num.partitions: int 1.. = 1
    Partitions of a topic that is created without a partition count.
default.replication.factor: int 1..32_767 = 1
    Replicas of a topic that is created without a replication factor.
auto.create.topics.enable: boolean = true
    Whether a Metadata request for an unknown topic creates it, if the client allows that.
delete.topic.enable: boolean = true
    Whether topics can be deleted.
"""
)

REPLICATION = key_table(
    f"""
replica.lag.time.max.ms: long 1.. = 10_000
    A follower that has not caught up for this long leaves the ISR.
replica.fetch.max.bytes: int 0.. = 1_048_576
    Bytes that a follower requests for each partition.
replica.fetch.response.max.bytes: int 0.. = 10_485_760
    Bytes that a follower requests in one fetch.
replica.fetch.min.bytes: int 0.. = 1
    Bytes that a follower's fetch waits for at the leader.
replica.fetch.wait.max.ms: int 1.. = 500
    The longest time that a follower's fetch waits at the leader.
replica.fetch.backoff.ms: int 0.. = 1000
    How long a follower waits after an error before it fetches again.
num.replica.fetchers: int 1..64 = 1
    Fetchers, each with a connection, for each other broker.
replica.high.watermark.checkpoint.interval.ms: long 1.. = 5000
    How often high watermarks are checkpointed.
replica.selector.class: string
    How consumers' preferred replica is chosen (KIP-392).
auto.leader.rebalance.enable: boolean = true
    Whether leaderships are moved back to preferred replicas.
leader.imbalance.check.interval.seconds: long 1.. = 300
    How often the controller checks for leaderships to move back to preferred replicas.
leader.imbalance.per.broker.percentage: int 0.. = 10
    The percentage of its preferred leaderships that a broker may lack before they are moved back.
leader.replication.throttled.rate: long 0.. dynamic = {LONG_MAX}
    Bytes a second that this broker sends to throttled replicas.
follower.replication.throttled.rate: long 0.. dynamic = {LONG_MAX}
    Bytes a second that this broker fetches for its throttled replicas.
replica.alter.log.dirs.io.max.bytes.per.second: long 0.. dynamic = {LONG_MAX}
    Bytes a second that this broker copies for replicas that are moved between its log directories (KIP-113).
controlled.shutdown.enable: boolean = true
    Whether a broker that stops first moves its leaderships to other brokers.
""",
    choices={"replica.selector.class": (RACK_AWARE_SELECTOR, LEADER_SELECTOR)},
)


LOGS = key_table(
    f"""
log.dir: string = /tmp/kafka-logs
    The log directory, if log.dirs is not given.
log.dirs: list =
    The log directories.
log.flush.offset.checkpoint.interval.ms: int 0.. = 60_000
    Without effect: recovery points are checkpointed with the high watermarks.
log.flush.start.offset.checkpoint.interval.ms: int 0.. = 60_000
    Without effect: log start offsets are checkpointed with the high watermarks.
log.flush.scheduler.interval.ms: long = {(1 << 63) - 1}
    How long a record may stay unflushed if neither flush.ms nor log.flush.interval.ms is set.
log.roll.hours: int 1..
    log.roll.ms, in hours.
log.roll.jitter.hours: int 0..
    log.roll.jitter.ms, in hours.
log.retention.minutes: int
    log.retention.ms, in minutes; -1: no time limit.
log.retention.hours: int
    log.retention.ms, in hours; -1: no time limit.
log.retention.check.interval.ms: long 1.. = 300_000
    How often logs are checked for segments to delete.
producer.id.expiration.ms: int 1.. = 86_400_000
    How long the state of an idempotent producer is kept after its last write.
"""
)

CLEANER = key_table(
    f"""
log.cleaner.enable: boolean = true
    Whether logs with cleanup.policy=compact are compacted.
log.cleaner.threads: int 0.. = 1
    How many logs are compacted at once.
log.cleaner.io.max.bytes.per.second: double 1.. = 1.7976931348623157e+308
    The maximum bytes a second that compaction reads and writes.
log.cleaner.dedupe.buffer.size: long {1 << 20}.. = {128 << 20}
    Memory of all cleaners together for the newest offset of each key (24 bytes a key); an eighth more
    marks the records that were read.
log.cleaner.io.buffer.size: int 1024.. = {512 << 10}
    Bytes that all cleaners together read and rewrite in one step.
log.cleaner.io.buffer.load.factor: double 0.1..1 = 0.9
    How full the cleaner's table of newest offsets may become, as a share of its size.
log.cleaner.backoff.ms: long 1.. = 15_000
    How often logs are checked for one to compact.
"""
)
